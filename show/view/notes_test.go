package view

import (
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// A move that came to nothing is news for a while, until the guest moves again or ends.
func TestNotesOfMoves(t *testing.T) {
	const note = "m3.j2g10 of j2g10 was cancelled: host1 has no room"
	for name, c := range map[string]struct {
		change func(fleet.Snapshot) fleet.Snapshot
		noted  bool
	}{
		"just now": {func(s fleet.Snapshot) fleet.Snapshot { return s }, true},
		"long ago": {func(s fleet.Snapshot) fleet.Snapshot { s.At = s.At.Add(time.Hour); return s }, false},
		"the guest has ended": {func(s fleet.Snapshot) fleet.Snapshot {
			s.Guests["j2g10"] = fleet.Guest{ID: "j2g10", Job: "j2", State: fleet.GuestEnded}
			return s
		}, false},
		"it moves again": {func(s fleet.Snapshot) fleet.Snapshot {
			s.Moves["m5"] = fleet.Move{ID: "m5", Migrations: []fleet.MigrationID{"m5.j2g10"}}
			s.Migrations["m5.j2g10"] = fleet.Migration{ID: "m5.j2g10", Move: "m5", Guest: "j2g10", From: "host10", To: "host2", Phase: fleet.Preparing, Entered: []fleet.Entered{{Phase: fleet.Preparing, At: s.At}}}
			return s
		}, false},
	} {
		text := Read(c.change(busy())).MoveTable().Text()
		if strings.Contains(text, note) != c.noted {
			t.Errorf("%s: a note is there, %v:\n%s", name, !c.noted, text)
		}
		if !strings.Contains(text, "cancelled") || strings.Contains(text, "aborted") {
			t.Errorf("%s: the phase has no word for people:\n%s", name, text)
		}
	}
}

// A host that is silent or gone takes only those guests with it that run there.
func TestNotesOfSilentHosts(t *testing.T) {
	at := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		home  fleet.HostID
		state fleet.GuestState
		moves fleet.HostID // to where, if it moves
		named bool
	}{
		"runs there":               {"host1", fleet.GuestRunning, "", true},
		"moves away":               {"host1", fleet.GuestMoving, "host2", true},
		"moves there":              {"host2", fleet.GuestMoving, "host1", false},
		"is elsewhere":             {"host2", fleet.GuestRunning, "", false},
		"has ended there":          {"host1", fleet.GuestEnded, "", false},
		"was lost there, long ago": {"host1", fleet.GuestLost, "", false},
	} {
		for _, silent := range []time.Duration{20 * time.Second, time.Hour} {
			s := fleet.NewSnapshot()
			s.At, s.LedSince = at, at.Add(-24*time.Hour)
			s.Hosts["host1"] = fleet.Host{ID: "host1", State: fleet.HostUp, Lease: time.Minute, Facts: fleet.Facts{SeenAt: at.Add(-silent)}}
			s.Guests["j1g0"] = fleet.Guest{ID: "j1g0", Job: "j1", State: c.state, Home: c.home}
			if c.moves != "" {
				s.Migrations["m1.j1g0"] = fleet.Migration{ID: "m1.j1g0", Guest: "j1g0", To: c.moves, Phase: fleet.Copying}
			}
			text := Read(s).HostTable().Text()
			if gone := silent > time.Minute; gone && (!strings.Contains(text, "host1 is gone") || strings.Contains(text, "guests runs")) {
				t.Errorf("%s, gone:\n%s", name, text)
			} else if !gone && strings.Contains(text, "what runs at host1 (j1g0) is stopped there") != c.named {
				t.Errorf("%s, silent: %v:\n%s", name, !c.named, text)
			}
		}
	}
}
