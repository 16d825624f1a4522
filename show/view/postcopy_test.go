package view

import (
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// A post-copy move is shown while its memory arrives and at its end.
func TestPostCopyIsTold(t *testing.T) {
	at := func(s int) time.Time { return noon.Add(time.Duration(s) * time.Second) }
	s := fleet.NewSnapshot()
	m := fleet.Migration{ID: "m1.j1g0", Move: "m1", Guest: "j1g0", From: "host1", To: "host2", Mode: fleet.PostCopy, Phase: fleet.PostCopying,
		Entered: []fleet.Entered{{Phase: fleet.Preparing, At: noon}, {Phase: fleet.Switching, At: at(1)}, {Phase: fleet.Activating, At: at(2)}, {Phase: fleet.PostCopying, At: at(3)}},
		Cost:    fleet.Progress{TotalBytes: 512 << 20, RemainingBytes: 256 << 20, SentBytes: 300 << 20, PostCopyBytes: 1 << 20, Faults: 1}}
	s.Moves["m1"] = fleet.Move{ID: "m1", Migrations: []fleet.MigrationID{m.ID}, Begun: noon, Choice: "by pre-copy it would not converge"}
	s.Hosts["host1"] = fleet.Host{ID: "host1", Facts: fleet.Facts{Copies: map[fleet.MigrationID]fleet.Progress{
		m.ID: {TotalBytes: 512 << 20, RemainingBytes: 128 << 20, PostCopyBytes: 128 << 20, Faults: 77}}}}
	says := func(now time.Time, want ...string) {
		t.Helper()
		s.Migrations[m.ID] = m
		v, _ := Read(s).Move("m1")
		text := v.Show(now) + v.Parts[0].Line(now) + "\n" + v.Parts[0].Far()
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("it lacks %q:\n%s", w, text)
			}
		}
	}
	says(at(5), "mode: post-copy, because: by pre-copy it would not converge",
		"j1g0: post-copy: 128 MiB came after it ran on host2, and it waited for 77 pages; 128 MiB are still to come, for 2.0 s now",
		"runs at host2, 128 MiB of its memory are still to come", "runs there, 128 MiB to come", "POST-COPY")
	lost := m
	m.Phase, m.Entered = fleet.Finished, append(m.Entered, fleet.Entered{Phase: fleet.Retiring, At: at(7)}, fleet.Entered{Phase: fleet.Finished, At: at(8)})
	m.Cost.PostCopyBytes, m.Cost.Faults, m.Cost.RemainingBytes = 256<<20, 99, 0
	says(at(9), "256 MiB came after it ran on host2, and it waited for 99 pages; all was there 4.0 s later", "moved in 8.0 s")
	m = lost
	m.Phase, m.Cause, m.Entered = fleet.Lost, "the line broke", append(lost.Entered[:4:4], fleet.Entered{Phase: fleet.Lost, At: at(7)})
	says(at(9), "the rest never came", "the guest is lost: the line broke")
}
