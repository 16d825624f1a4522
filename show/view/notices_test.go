package view

import (
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

func TestNoticeNotes(t *testing.T) {
	s := fleet.NewSnapshot()
	s.At = noon
	n := fleet.EndNotice{Kind: fleet.AWSNotice, ID: "x", Says: "Amazon takes \x1b[31mthe instance back", At: noon.Add(90 * time.Second)}
	s.Hosts["spot"] = fleet.Host{ID: "spot", State: fleet.HostDraining, ForNotice: true, EmptyBy: n.At, Facts: fleet.Facts{SeenAt: noon, Connected: true, Notices: &fleet.EndNotices{Pending: []fleet.EndNotice{n}}}}
	s.Hosts["silent"] = fleet.Host{ID: "silent", State: fleet.HostDraining, EmptyBy: noon}
	s.Hosts["well"] = fleet.Host{ID: "well", State: fleet.HostUp}
	text := Read(s).HostTable().Text()
	for _, want := range []string{"spot is emptied: Amazon takes", "the instance back in 1m30s; see `pagurus explain spot`", "silent is emptied: it goes away soon"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in:\n%s", want, text)
		}
	}
	if strings.Contains(text, "well is emptied") || strings.Contains(text, "\x1b") {
		t.Errorf("%q", text)
	}
}
