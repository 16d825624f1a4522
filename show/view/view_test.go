package view

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pagurus/fleet"
)

var update = flag.Bool("update", false, "write the golden files again")

const mib = 1 << 20

var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

// busy is a cluster with one of everything worth seeing.
func busy() fleet.Snapshot {
	s := fleet.NewSnapshot()
	s.At = noon
	ago := func(d time.Duration) time.Time { return noon.Add(-d) }
	for i, id := range []fleet.HostID{"host1", "host2", "host10"} {
		s.Hosts[id] = fleet.Host{ID: id, State: fleet.HostUp, Since: ago(time.Hour), Facts: fleet.Facts{
			SeenAt: ago(time.Second), Connected: true, Address: "198.18.0." + string(rune('1'+i)),
			Capacity:  fleet.Resources{CPUs: 2, MemoryBytes: 2048 * mib},
			Abilities: map[fleet.Kind]fleet.Abilities{fleet.VM: {Live: true, Accelerator: "tcg"}},
			LoadCPUs:  0.58, CPULimit: 0.6, Guests: map[fleet.GuestID]fleet.GuestFacts{}, Copies: map[fleet.MigrationID]fleet.Progress{},
		}}
	}
	h := s.Hosts["host2"]
	h.State, h.Facts.Connected, h.Facts.SeenAt = fleet.HostDraining, false, ago(75*time.Second)
	h.Facts.Troubles = []string{"the disk under /var/lib/pagurus is full"}
	h.Facts.Abilities[fleet.Container] = fleet.Abilities{Trouble: "CRIU is not installed"}
	s.Hosts["host2"] = h
	h.ID, h.State, h.Facts.SeenAt, h.Facts.Connected, h.Facts.Troubles = "host3", fleet.HostUp, noon, true, nil
	h.Facts.Abilities = map[fleet.Kind]fleet.Abilities{fleet.VM: {Trouble: "qemu-system-x86_64 is not installed"}}
	s.Hosts["host3"] = h
	s.Hosts["host11"] = fleet.Host{ID: "host11", State: fleet.HostUp}

	spec := fleet.JobSpec{Args: []string{"./ring", "-n", "a b", "it's\x1b[2J"}, Ranks: 4, Guests: 3, Image: "openmpi"}
	s.Jobs["j2"] = fleet.Job{ID: "j2", Spec: spec, State: fleet.JobRunning, Submitted: ago(3 * time.Minute), Started: ago(170 * time.Second), Subnet: 1}
	spec.Args = []string{"lmp", "-in", "a-very-long-file-name-for-an-input-deck.in", "-var", "x", "1"}
	s.Jobs["j10"] = fleet.Job{ID: "j10", Spec: spec, State: fleet.JobEnded, Result: fleet.JobFinished, Exit: &fleet.Exit{Code: 137, Signal: "SIGKILL"},
		Submitted: ago(time.Hour), Started: ago(59 * time.Minute), Ended: ago(58 * time.Minute), Subnet: 300}
	s.Jobs["j11"] = fleet.Job{ID: "j11", Spec: spec, State: fleet.JobEnded, Result: fleet.JobFailed, Cause: "guest j11g0 ended by itself", Submitted: ago(50 * time.Hour)}

	for i, home := range []fleet.HostID{"host1", "host1", "host10"} {
		id := fleet.GuestID([]string{"j2g0", "j2g1", "j2g10"}[i])
		s.Guests[id] = fleet.Guest{ID: id, Job: "j2", Index: i, Kind: fleet.VM, State: fleet.GuestRunning, Home: home, Since: ago(2 * time.Minute),
			Need: fleet.Resources{CPUs: 1, MemoryBytes: 512 * mib}}
		s.Hosts[home].Facts.Guests[id] = fleet.GuestFacts{CPUs: 0.29, Run: fleet.Running}
	}
	g := s.Guests["j2g1"]
	g.State = fleet.GuestMoving
	s.Guests["j2g1"] = g
	s.Guests["j9g0"] = fleet.Guest{ID: "j9g0", Job: "j9", State: fleet.GuestLost, Home: "host2", Since: ago(time.Minute), Cause: "host2 did not answer"}

	s.Moves["m1"] = fleet.Move{ID: "m1", Migrations: []fleet.MigrationID{"m1.j2g0"}, Why: "asked for", Begun: ago(time.Minute)}
	s.Migrations["m1.j2g0"] = fleet.Migration{ID: "m1.j2g0", Move: "m1", Guest: "j2g0", Job: "j2", From: "host2", To: "host1", Phase: fleet.Finished, Packed: true,
		Entered: []fleet.Entered{{Phase: fleet.Preparing, At: ago(time.Minute)}, {Phase: fleet.Copying, At: ago(59 * time.Second)}, {Phase: fleet.Switching, At: ago(57500 * time.Millisecond)},
			{Phase: fleet.Finished, At: ago(57 * time.Second)}},
		Cost: fleet.Progress{Rounds: 3, TotalBytes: 512 * mib, SentBytes: 181 * mib, CopiedBytes: 420 * mib, DroppedBytes: 230 * mib, Downtime: 12340 * time.Microsecond},
		Stall: &fleet.Stall{Gap: fleet.Gap{Rank: 1, Took: 209 * time.Millisecond, InMPI: true, Call: fleet.Collective, Why: []fleet.Cause{
			{What: fleet.GuestSuspended, Took: 12340 * time.Microsecond, Rank: new(int)}, {What: fleet.TCPTimeout, Count: 1}}}, Undisturbed: 14 * time.Millisecond, Ranks: 4}}
	s.Moves["m2"] = fleet.Move{ID: "m2", Migrations: []fleet.MigrationID{"m2.j2g1"}, Why: "host1 is draining", Begun: ago(2 * time.Second)}
	s.Migrations["m2.j2g1"] = fleet.Migration{ID: "m2.j2g1", Move: "m2", Guest: "j2g1", Job: "j2", From: "host1", To: "host10", Phase: fleet.Copying,
		Entered: []fleet.Entered{{Phase: fleet.Preparing, At: ago(2 * time.Second)}, {Phase: fleet.Copying, At: ago(1700 * time.Millisecond)}}}
	s.Hosts["host1"].Facts.Copies["m2.j2g1"] = fleet.Progress{Rounds: 2, TotalBytes: 512 * mib, RemainingBytes: 31 * mib, SentBytes: 200 * mib, BytesPerSecond: 80 * mib}
	s.Moves["m3"] = fleet.Move{ID: "m3", Migrations: []fleet.MigrationID{"m3.j2g10"}, Why: "asked for", Begun: ago(2 * time.Second)}
	s.Migrations["m3.j2g10"] = fleet.Migration{ID: "m3.j2g10", Move: "m3", Guest: "j2g10", Job: "j2", From: "host10", To: "host1", Phase: fleet.Aborted, Cause: "host1 has no room",
		Entered: []fleet.Entered{{Phase: fleet.Preparing, At: ago(2 * time.Second)}, {Phase: fleet.Aborted, At: ago(time.Second)}}}
	return s
}

// gang adds a move of three guests: two switched, one did not.
func gang(s fleet.Snapshot) fleet.Snapshot {
	at := func(d time.Duration) time.Time { return noon.Add(d) }
	v := fleet.Move{ID: "m4", Why: "asked for by uid 0", Begun: noon, Ended: at(4 * time.Second),
		Limits: fleet.Limits{BytesPerSecond: 200 * mib, Downtime: 30 * time.Millisecond, Deadline: 3 * time.Second, PageCache: fleet.SendCache, Compress: fleet.CompressOff}}
	for i, g := range []fleet.GuestID{"j3g0", "j3g1", "j3g2"} {
		m := fleet.Migration{ID: fleet.MigrationID("m4." + string(g)), Move: "m4", Guest: g, Job: "j3", From: "host1", To: "host10", Phase: fleet.Finished,
			Entered: []fleet.Entered{{Phase: fleet.Preparing, At: noon}, {Phase: fleet.Waiting, At: at(time.Second)}, {Phase: fleet.Copying, At: at(1100 * time.Millisecond)}}}
		if i == 2 {
			m.Phase, m.Cause = fleet.Aborted, "it was not ready within the deadline of 3s, and the others went without it"
			m.Entered = append(m.Entered, fleet.Entered{Phase: fleet.Cancelling, At: at(3 * time.Second)}, fleet.Entered{Phase: fleet.Discarding, At: at(3010 * time.Millisecond)}, fleet.Entered{Phase: fleet.Aborted, At: at(3020 * time.Millisecond)})
		} else {
			late := time.Duration(i) * 12 * time.Millisecond
			m.Entered = append(m.Entered, fleet.Entered{Phase: fleet.Ready, At: at(2 * time.Second)}, fleet.Entered{Phase: fleet.Switching, At: at(3 * time.Second)},
				fleet.Entered{Phase: fleet.Activating, At: at(3100*time.Millisecond + late)}, fleet.Entered{Phase: fleet.Retiring, At: at(3150*time.Millisecond + late)},
				fleet.Entered{Phase: fleet.Finished, At: at(4 * time.Second)})
			m.Cost = fleet.Progress{Rounds: 4 + i, TotalBytes: 512 * mib, SentBytes: 120 * mib, BytesPerSecond: 90 * mib, DirtyBytesPerSecond: 8 * mib,
				Downtime: 9 * time.Millisecond, SuspendedAt: at(3050*time.Millisecond + late)}
			m.Resumed = at(3120*time.Millisecond + 2*late)
			m.Cost.SlowedPercent = 60 * i
			m.Predicted = &fleet.Prediction{Converges: i == 0, Why: "it changes too much",
				Total:    fleet.Range[time.Duration]{Value: 4 * time.Second, Low: 3 * time.Second, High: 6 * time.Second},
				Downtime: fleet.Range[time.Duration]{Value: 60 * time.Millisecond, Low: 20 * time.Millisecond, High: 180 * time.Millisecond},
				Bytes:    fleet.Range[int64]{Value: 110 * mib, Low: 90 * mib, High: 200 * mib}}
		}
		s.Migrations[m.ID] = m
		v.Migrations = append(v.Migrations, m.ID)
	}
	s.Moves["m4"] = v
	return s
}

// A guest's blackout is the sum of its parts. If no clock measured both ends, the second is
// the controller's.
func TestPartsOfBlackout(t *testing.T) {
	s := gang(fleet.NewSnapshot())
	m, _ := Read(s).Move("m4")
	if r := m.Parts[0].Resuming; r == nil || *r != (Resuming{Took: 50 * time.Millisecond, About: true}) {
		t.Errorf("two machines: %+v", r)
	}
	for _, id := range []fleet.HostID{"host1", "host10"} {
		s.Hosts[id] = fleet.Host{ID: id, Facts: fleet.Facts{Machine: "one"}}
	}
	m, _ = Read(s).Move("m4")
	for _, p := range m.Parts[:2] {
		if r := p.Resuming; r == nil || r.About || p.Progress.Downtime+r.Took != *p.Blackout {
			t.Errorf("one machine: %+v", r)
		}
	}
	if m.Parts[2].Resuming != nil || m.Parts[2].blackoutText() != "" {
		t.Errorf("one that stayed: %+v", m.Parts[2].Resuming)
	}
}

// Times of two hosts are compared only if one clock measured both.
func TestSkew(t *testing.T) {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	is := func(d *time.Duration, want time.Duration) bool { return d != nil && *d == want }
	s := gang(fleet.NewSnapshot())
	m, _ := Read(s).Move("m4")
	k := m.Skew
	if k == nil || k.Switch != ms(162) || !is(k.Suspends, ms(12)) || !is(k.Resumes, ms(24)) || k.Blackout != nil || m.Parts[0].Blackout != nil {
		t.Errorf("two machines: %+v", k)
	}
	for _, id := range []fleet.HostID{"host1", "host10"} {
		s.Hosts[id] = fleet.Host{ID: id, Facts: fleet.Facts{Machine: "one"}}
	}
	m, _ = Read(s).Move("m4")
	if k := m.Skew; !is(k.Blackout, ms(94)) || !is(m.Parts[1].Blackout, ms(82)) || m.Parts[2].Blackout != nil {
		t.Errorf("one machine: %+v %v", k, m.Parts[1].Blackout)
	}
	other := s.Migrations["m4.j3g1"]
	other.From = "host2"
	s.Migrations[other.ID] = other
	m, _ = Read(s).Move("m4")
	if k := m.Skew; k.Suspends != nil || k.Blackout != nil || !is(k.Resumes, ms(24)) {
		t.Errorf("two sources: %+v", k)
	}
	other.Entered = other.Entered[:3]
	s.Migrations[other.ID] = other
	m, _ = Read(s).Move("m4")
	if m.Skew != nil || m.Together() != "" {
		t.Errorf("one that switched: %+v", m.Skew)
	}
}

func TestGolden(t *testing.T) {
	time.Local = time.UTC
	full, none := Read(busy()), Read(fleet.NewSnapshot())
	var shown []string
	withGang := gang(busy())
	for _, id := range []fleet.HostID{"host1", "host10"} {
		h := withGang.Hosts[id]
		h.Facts.Machine = "one"
		withGang.Hosts[id] = h
	}
	for _, m := range Read(withGang).Moves {
		shown = append(shown, m.Show(noon.Add(5*time.Second)))
	}
	lines := func(ls ...string) string { return strings.Join(ls, "\n") + "\n" }
	var moves, jobs []string
	for _, m := range full.Moves {
		moves = append(moves, m.Explain(full.At)...)
	}
	for _, j := range full.Jobs {
		jobs = append(jobs, full.Line(j))
	}
	for name, got := range map[string]string{
		"hosts": full.HostTable().Text(), "guests": full.GuestTable().Text(), "jobs": full.JobTable().Text(), "moves": full.MoveTable().Text(),
		"empty":   none.HostTable().Text() + none.GuestTable().Text() + none.JobTable().Text() + none.MoveTable().Text(),
		"shown":   lines(shown...),
		"stories": lines(append(jobs, moves...)...),
	} {
		t.Run(name, func(t *testing.T) {
			golden(t, name, got)
		})
	}
}

// golden compares text with a golden file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (go test ./show/view -update writes it again)\ngot:\n%s\nwant:\n%s", path, got, want)
	}
}

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 512 * mib: "512 MiB", mib - 1: "1.0 MiB",
		2047 * mib: "2.0 GiB", 1 << 62: "4 EiB", -2048: "-2 KiB", 1<<63 - 1: "8 EiB",
	} {
		if got := Bytes(n); got != want {
			t.Errorf("Bytes(%d) is %q, want %q", n, got, want)
		}
	}
}

func TestDurations(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 s", 1500 * time.Microsecond: "1.5 ms", 171 * time.Millisecond: "171 ms", 4100 * time.Millisecond: "4.1 s",
		61 * time.Second: "1m01s", 2*time.Hour + 3*time.Minute: "2h03m", 50 * time.Hour: "2d02h",
	} {
		if got := Took(d); got != want {
			t.Errorf("Took(%d) is %q, want %q", d, got, want)
		}
	}
}

func TestCompareIsAnOrder(t *testing.T) {
	word := rapid.StringMatching(`[a-c]{0,2}[0-9]{0,3}[a-c]{0,1}[0-9]{0,2}`)
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := word.Draw(t, "a"), word.Draw(t, "b"), word.Draw(t, "c")
		if (Compare(a, b) < 0) != (Compare(b, a) > 0) {
			t.Fatalf("%q and %q: not antisymmetric", a, b)
		}
		if Compare(a, b) < 0 && Compare(b, c) < 0 && Compare(a, c) >= 0 {
			t.Fatalf("%q < %q < %q: not transitive", a, b, c)
		}
	})
	if Compare("j9", "j10") >= 0 || Compare("j2g3", "j2g10") >= 0 || Compare("a", "b") >= 0 {
		t.Error("numbers must count as numbers")
	}
}

func TestCleanKeepsNoControl(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "s")
		if got := Command([]string{s}); strings.ContainsAny(got, "\x1b\n\r\x00\u009b") {
			t.Fatalf("%q became %q", s, got)
		}
	})
}
