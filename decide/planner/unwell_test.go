package planner

import (
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// A host that shows a grave sign is emptied live, takes no guests, says why, and takes guests again when it is well.
func TestUnwellHostIsEmptied(t *testing.T) {
	w, j := running(t, 2, "host1", "host2", "host3")
	show := func(host fleet.HostID, f *fleet.Health) {
		h := w.s.Hosts[host]
		h.Facts.Health = f
		w.s.Hosts[host] = h
	}
	home := w.s.Guests["j1g0"].Home
	show(home, &fleet.Health{Policy: fleet.HealthDrain, Signs: []fleet.Sign{{Kind: fleet.CheckFailed, Says: "smart: failing", Last: t0, Grave: true}}})
	w.tick(2 * time.Second)
	w.answerAll()
	w.tick(2 * time.Second)
	w.answerAll()
	if h, g := w.s.Hosts[home], w.s.Guests["j1g0"]; h.State != fleet.HostDraining || !h.ForHealth || g.Home == home || w.s.Jobs[j].State != fleet.JobRunning {
		t.Fatalf("host: %+v, guest: %+v, job: %s", h, g, w.s.Jobs[j].State)
	}
	if why := w.s.Moves["m1"].Why; !strings.Contains(why, "smart: failing") {
		t.Errorf("the move is made since %s", why)
	}
	explained, err := w.p.Explain(w.s, Subject{Host: home})
	lines := strings.Join(explained, "\n")
	if err != nil || !strings.Contains(lines, "smart: failing") || !strings.Contains(lines, "`pagurus undrain "+string(home)+"`") {
		t.Errorf("explained:\n%s", lines)
	}
	r := submission(1)
	r.ID, r.Spec.On = "b", []fleet.HostID{home}
	if _, err := w.ask(r); err == nil || !strings.Contains(err.Error(), "shows signs of failing") {
		t.Errorf("a job begins there: %v", err)
	}
	w.must(fleet.Request{Verb: fleet.Undrain, Host: home})
	w.tick(2 * time.Second)
	if h := w.s.Hosts[home]; h.State != fleet.HostUp || h.ForHealth {
		t.Errorf("a person undrained it: %+v", h)
	}
	show(home, &fleet.Health{Policy: fleet.HealthDrain, Signs: []fleet.Sign{{Kind: fleet.CheckFailed, Says: "smart: failing", Last: t0.Add(time.Hour), Grave: true}}})
	w.tick(2 * time.Second)
	if h := w.s.Hosts[home]; !h.ForHealth {
		t.Errorf("it failed again: %+v", h)
	}
	show(home, &fleet.Health{Policy: fleet.HealthDrain})
	w.tick(2 * time.Second)
	if h := w.s.Hosts[home]; h.State != fleet.HostUp || h.ForHealth {
		t.Errorf("it is well: %+v", h)
	}
}
