package view

import (
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

func TestOwnerStatus(t *testing.T) {
	a := fleet.OwnerAnswer{Host: "office3", At: noon}
	for want, change := range map[string]func(*fleet.OwnerAnswer){
		"has only just begun":   func(*fleet.OwnerAnswer) {},
		"yours until you type":  func(a *fleet.OwnerAnswer) { a.Pause = true },
		"yours for 30m00s more": func(a *fleet.OwnerAnswer) { a.Pause, a.Until = true, noon.Add(30*time.Minute) },
		"has no owner":          func(a *fleet.OwnerAnswer) { a.Owner = &fleet.Owner{} },
		"count as away": func(a *fleet.OwnerAnswer) {
			a.Owner = &fleet.Owner{State: fleet.OwnerAbsent, Since: noon.Add(-time.Hour)}
		},
		"count as present at": func(a *fleet.OwnerAnswer) {
			a.Owner = &fleet.Owner{State: fleet.OwnerPresent, Present: true, Why: "keyboard", Since: noon.Add(-time.Hour)}
		},
		"No guest is here": func(*fleet.OwnerAnswer) {},
		"Guest j1g0 is leaving": func(a *fleet.OwnerAnswer) {
			a.Guests = []fleet.OwnerGuest{{ID: "j1g0", Run: fleet.Running, Leaving: true}}
		},
		"it is switched off in 5m": func(a *fleet.OwnerAnswer) {
			a.Notices = &fleet.EndNotices{Pending: []fleet.EndNotice{{Says: "it is switched off", At: noon.Add(5 * time.Minute)}}}
		},
		"controller is not heard": func(a *fleet.OwnerAnswer) { a.Alone = true },
	} {
		b := a
		change(&b)
		if got := OwnerStatus(b); !strings.Contains(got, want) {
			t.Errorf("%q is not in %q", want, got)
		}
	}
	a.Policy = fleet.OwnerPolicy{Owned: true, Cap: 0.5}
	a.Unsent = true
	if got := OwnerPolicyText(a); !strings.Contains(got, "the cluster's policy applies") || strings.Contains(got, "predictive") || !strings.Contains(got, "not taken it yet") {
		t.Errorf("%q", got)
	}
	a.History = []fleet.OwnerEvent{{At: noon, Says: "guest j1g0 came"}}
	if got := OwnerHistory(a).Text(); !strings.Contains(got, "guest j1g0 came") {
		t.Errorf("%q", got)
	}
}
