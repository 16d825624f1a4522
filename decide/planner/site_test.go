package planner

import (
	"strings"
	"testing"

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
		{fleet.Request{Guest: "j1g0", ToSite: "moon"}, "no host says that it is in site moon; there is attic, cellar"},
		{fleet.Request{Guest: "j1g0", ToSite: "attic"}, "guest j1g0 is on host1 already; name another site, or none to let Pagurus choose"},
		{fleet.Request{Guest: "j1g0", ToSite: "attic", To: "host3"}, "both host host3 and site attic are named; name one of them"},
	} {
		c.request.Verb = fleet.Migrate
		if _, err := w.ask(c.request); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.request, err, c.want)
		}
	}
	// Who is in the site stays, the other goes to some host of it.
	a := w.must(fleet.Request{Verb: fleet.Migrate, Job: "j1", ToSite: "cellar"})
	if len(a.Notes) != 1 || !strings.Contains(a.Notes[0], "j1g1 is on host2 already") {
		t.Errorf("%q", a.Notes)
	}
	w.settle()
	if home := w.s.Guests["j1g0"].Home; home != "host2" && home != "host3" {
		t.Errorf("it went to %s", home)
	}
	if home := w.s.Guests["j1g1"].Home; home != "host2" {
		t.Errorf("who was there went to %s", home)
	}
}
