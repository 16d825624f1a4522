package planner

import (
	"strings"
	"testing"
	"time"

	"pagurus/decide/desired"
	"pagurus/fleet"
)

func TestMoveToASite(t *testing.T) {
	w := spread(t, 2, "host1", "host2")
	for id, site := range map[fleet.HostID]string{"host1": "attic", "host2": "cellar", "host3": "cellar"} {
		h := w.s.Hosts[id]
		h.Facts.Site = site
		w.s.Hosts[id] = h
	}
	for _, c := range []struct {
		request fleet.Request
		want    string
	}{
		{fleet.Request{Guest: "j1g0", ToSite: "moon"}, "no host is in site moon; there is attic, cellar"},
		{fleet.Request{Guest: "j1g0", ToSite: "attic"}, "guest j1g0 is on host1 already; name another site, or none to let Pagurus choose"},
		{fleet.Request{Guest: "j1g0", ToSite: "attic", To: "host3"}, "both host host3 and site attic are named; name one of them"},
	} {
		c.request.Verb = fleet.Migrate
		if _, err := w.ask(c.request); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.request, err, c.want)
		}
	}
	// The guest in the site stays, the other moves to a host of it.
	a := w.must(fleet.Request{Verb: fleet.Migrate, Job: "j1", ToSite: "cellar"})
	if len(a.Notes) != 1 || !strings.Contains(a.Notes[0], "j1g1 is already on host2") {
		t.Errorf("%q", a.Notes)
	}
	w.answerAll()
	if home := w.s.Guests["j1g0"].Home; home != "host2" && home != "host3" {
		t.Errorf("it went to %s", home)
	}
	if home := w.s.Guests["j1g1"].Home; home != "host2" {
		t.Errorf("who was there went to %s", home)
	}
}

// sited assigns hosts to sites.
func (w *world) sited(sites map[fleet.HostID]string) {
	for id, site := range sites {
		h := w.s.Hosts[id]
		h.Facts.Site = site
		w.s.Hosts[id] = h
	}
}

var twoSites = map[fleet.HostID]string{"host1": "attic", "host2": "cellar", "host3": "attic", "host4": "cellar"}

// sitesOf counts a job's guests by site.
func (w *world) sitesOf(j fleet.JobID) map[string]int {
	out := map[string]int{}
	for _, g := range w.s.Guests {
		if g.Job == j && !g.State.Ended() {
			out[w.s.Hosts[g.Home].Facts.Site]++
		}
	}
	return out
}

// TestJobsStayInASite: a job starts in one site with room for it, otherwise in two, and
// guests that leave a host move to the site of the others.
func TestJobsStayInASite(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3", "host4")
	w.sited(twoSites)
	w.must(submission(4))
	w.must(submission(4))
	w.answerAll()
	for _, j := range []fleet.JobID{"j1", "j2"} {
		if got := w.sitesOf(j); len(got) != 1 {
			t.Errorf("%s is in %v", j, got)
		}
	}
	g := w.s.Guests["j1g0"]
	if site := w.s.Hosts[g.Home].Facts.Site; !strings.HasPrefix(g.Reason, "in site "+site+", with all of its job; ") {
		t.Errorf("it is there because: %s", g.Reason)
	}
	lines, err := w.p.Explain(w.s, Subject{Guest: g.ID})
	if err != nil || !strings.Contains(strings.Join(lines, "\n"), "would take it: in site attic, where the rest of its job is; ") {
		t.Errorf("%q, %v", lines, err)
	}
	w.must(fleet.Request{Verb: fleet.Drain, Host: g.Home})
	w.answerAll()
	if got := w.sitesOf("j1"); got["attic"] != 4 {
		t.Errorf("after the drain j1 is in %v", got)
	}
}

// TestJobsAcrossSites: if no site has room for all, few are used and neighbours stay
// together; sites never cause a refusal.
func TestJobsAcrossSites(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3", "host4")
	w.sited(twoSites)
	w.must(submission(12))
	w.answerAll()
	if got := w.sitesOf("j1"); got["attic"] != 8 || got["cellar"] != 4 {
		t.Errorf("j1 is in %v", got)
	}
	for i, id := range []fleet.GuestID{"j1g0", "j1g7", "j1g8", "j1g11"} {
		if site := w.s.Hosts[w.s.Guests[id].Home].Facts.Site; (site == "attic") != (i < 2) {
			t.Errorf("%s is in %s", id, site)
		}
	}
	w.must(fleet.Request{Verb: fleet.Drain, Host: "host1"})
	w.answerAll()
	if got := w.sitesOf("j1"); got["attic"] != 4 || got["cellar"] != 8 {
		t.Errorf("after the drain j1 is in %v", got)
	}
}

// TestOwnersComeBeforeSites: a site is avoided if its owners have been away much shorter,
// but not if only a little shorter.
func TestOwnersComeBeforeSites(t *testing.T) {
	for away, want := range map[time.Duration]fleet.HostID{8 * time.Hour: "host3", 2 * time.Hour: "host4"} {
		w := newWorld(t, "host1", "host2", "host3", "host4")
		w.sited(map[fleet.HostID]string{"host1": "attic", "host2": "attic", "host3": "attic", "host4": "cellar"})
		r := submission(2)
		r.Spec.On = []fleet.HostID{"host1", "host2"}
		w.must(r)
		w.answerAll()
		for id, since := range map[fleet.HostID]time.Duration{"host2": 0, "host3": away, "host4": 10 * time.Hour} {
			h := w.s.Hosts[id]
			h.Facts.Owner = &fleet.Owner{State: fleet.OwnerAbsent, Since: w.now.Add(-since)}
			w.s.Hosts[id] = h
		}
		w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0"})
		w.answerAll()
		if home := w.s.Guests["j1g0"].Home; home != want {
			t.Errorf("away for %s: it went to %s, want %s", away, home, want)
		}
	}
}

// TestGangsKeepTrafficTogether: guests that must move to two sites are grouped by their
// traffic, once it is known.
func TestGangsKeepTrafficTogether(t *testing.T) {
	for _, talks := range []bool{false, true} {
		w := newWorld(t, "host1", "host2", "host3", "host4")
		for id, h := range w.s.Hosts {
			if h.Facts.Capacity.MemoryBytes = 4 << 30; id != "host1" {
				h.Facts.Capacity.MemoryBytes = 1 << 30
			}
			w.s.Hosts[id] = h
		}
		w.sited(map[fleet.HostID]string{"host1": "attic", "host2": "attic", "host3": "cellar", "host4": "cellar"})
		r := submission(6)
		r.Spec.On = []fleet.HostID{"host1"}
		w.must(r)
		w.answerAll()
		if talks { // even guests among themselves, and odd ones
			traffic := []fleet.Traffic{}
			for a := range 6 {
				for b := a + 2; b < 6; b += 2 {
					traffic = append(traffic, fleet.Traffic{A: a, B: b, Messages: 1000, Bytes: 1 << 30})
				}
			}
			w.observe(fleet.Observation{Job: "j1", Traffic: traffic})
		}
		w.must(fleet.Request{Verb: fleet.Migrate, Job: "j1"})
		w.answerAll()
		got := ""
		for i := range 6 {
			got += w.s.Hosts[w.s.Guests[desired.GuestID("j1", i)].Home].Facts.Site[:1]
		}
		if want := map[bool]string{false: "ccccaa", true: "cacacc"}[talks]; got != want {
			t.Errorf("talks: %t, they went to %s, want %s", talks, got, want)
		}
	}
}
