package container_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"pagurus/act/container"
	"pagurus/fleet"
	"pagurus/serve/agent"
	"pagurus/serve/agent/drivertest"
)

var (
	_ agent.Profiler = (*container.Driver)(nil)
	_ agent.Examiner = (*container.Driver)(nil)
)

// TestProfile: a guest dirties 16 MiB round and round at a known rate. Its profile is right, at
// the promised cost, before and after a move. A guest that is being moved, or is not here, is
// not profiled.
func TestProfile(t *testing.T) {
	const (
		mib       = 1 << 20
		everyHalf = 30 * time.Second // an agent's sampling interval
	)
	w := newWorld(t)
	tk := task("j1g0")
	defer w.sweep(t, tk.Guest.ID)
	from, to := w.open(t, 0), w.open(t, 1)
	defer from.Close()
	defer to.Close()
	if _, err := from.Profile(t.Context(), tk.Guest.ID); err == nil {
		t.Error("a guest that is not here has a profile")
	}
	if err := from.Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	drivertest.Healthy(t, from, tk.Guest.ID)
	look := func(d *container.Driver, rate string) {
		t.Helper()
		if _, err := drivertest.Ask(t.Context(), d, tk.Guest.ID, "dirty "+rate); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		p, err := d.Profile(t.Context(), tk.Guest.ID)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s MiB/s: %.1f of %.1f MiB filled, looked for %s of a processor, %+v", rate, float64(p.FilledBytes)/mib, float64(p.MemoryBytes)/mib, p.Took, p.Changed)
		if p.Took > everyHalf/100 {
			t.Errorf("a look took %s of a processor, which is more than 1 %% if done every %s", p.Took, everyHalf)
		}
		if p.FilledBytes < 16*mib || p.FilledBytes > memory {
			t.Errorf("%d MiB are filled", p.FilledBytes/mib)
		}
		for _, c := range p.Changed {
			// A program on a busy machine falls behind. The runtime changes some pages of its
			// own.
			each, _ := strconv.ParseFloat(rate, 64)
			want, got := min(each*c.Within.Seconds(), 16), float64(c.Bytes)/mib
			if got > want+3 || got < want*0.5-1 {
				t.Errorf("%s MiB/s: within %s %.1f MiB changed", rate, c.Within, got)
			}
		}
	}
	look(from, "8")
	if found, err := from.Obstacles(t.Context(), tk.Guest.ID); err != nil || len(found) > 0 {
		t.Errorf("a guest that can move has %q, %v", found, err)
	}

	tk.Order.Migration = "m1.j1g0"
	var err error
	if tk.Listen, err = to.Receive(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	if _, err := to.Profile(t.Context(), tk.Guest.ID); err == nil {
		t.Error("a guest that has not come yet has a profile")
	}
	if err := from.Copy(t.Context(), tk, func(fleet.Progress) {}); err != nil {
		t.Fatal(err)
	}
	if _, err := from.Profile(t.Context(), tk.Guest.ID); err == nil {
		t.Error("a guest that is being moved was looked at")
	}
	if _, err := from.Switch(t.Context(), tk, func(bool) {}); err != nil {
		t.Fatal(err)
	}
	if _, err := from.Obstacles(t.Context(), tk.Guest.ID); err == nil {
		t.Error("a guest that has left was examined")
	}
	if err := to.Resume(t.Context(), tk.Guest.ID); err != nil {
		t.Fatal(err)
	}
	if err := from.Stop(t.Context(), tk.Guest.ID); err != nil {
		t.Fatal(err)
	}
	look(to, "4")
}

// TestObstacles: obstacles are reported before a move begins, with the program's name. State
// that a dump includes is not reported.
func TestObstacles(t *testing.T) {
	j := newJob(t, "openmpi", 1)
	id, d := j.tasks[0].Guest.ID, j.drivers[0]
	found := func() string {
		t.Helper()
		found, err := d.Obstacles(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(found, "; ")
	}
	p := sh(`exec 3>/tmp/large; head -c 80M /dev/zero >&3; rm /tmp/large; touch here; while [ ! -e go ]; do sleep 0.05; done
exec perl -e '$two = "\0" x 8; syscall(293, $two, 040000) == 0 or die "pipe: $!"; open(F, ">there"); close(F); select(undef, undef, undef, 0.05) until -e "over"'`)
	done := make(chan struct{})
	go func() { j.do(0, time.Minute, p, ""); close(done) }()
	is := func(name string) bool { _, err := os.Stat(filepath.Join(j.files, name)); return err == nil }
	tell := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(j.files, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	until(t, func() bool { return is("here") })
	if got := found(); got != "" {
		t.Errorf("a large file without a name keeps it: %q", got)
	}
	tell("go")
	until(t, func() bool { return is("there") })
	got := found()
	if !strings.Contains(got, "perl (process ") || !strings.Contains(got, "packet mode") || strings.Contains(got, "; ") {
		t.Errorf("a pipe of packets: %q", got)
	}
	tell("over")
	<-done
	if got := found(); got != "" {
		t.Errorf("when it has ended: %q", got)
	}
}
