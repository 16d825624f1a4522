package container_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// TestHogs: programs that take all they can get end in their container, or stay at its limits,
// while another container of the same host, and the host's agent, go on. What limit it was is told.
func TestHogs(t *testing.T) {
	j := newJobOf(t, "openmpi", 1, jobUser)
	j.move(1, 1) // both are on host 0
	hog, d := j.tasks[0].Guest.ID, j.drivers[0]
	goesOn := func(during string) {
		t.Helper()
		begun := time.Now()
		if o := j.do(1, time.Minute, sh("echo fine >/tmp/x && cat /tmp/x && sleep 0.1"), ""); o.stdout != "fine\n" {
			t.Errorf("%s another guest says %+v", during, o)
		}
		if all, err := d.Inspect(t.Context()); err != nil || len(all) != guests {
			t.Errorf("%s the driver finds %v, %v", during, all, err)
		}
		t.Logf("%s another guest and the driver answer in %s", during, time.Since(begun))
	}
	var o outcome
	wait := testkit.Meanwhile(t, func() { o = j.do(0, time.Minute, sh("perl -e '$x = q(x) x (2000 << 20)'"), "") })
	goesOn("beside a hog of memory")
	if wait(); o.exit == (fleet.Exit{}) {
		t.Errorf("it had more than its guest: %+v", o)
	}
	if r := d.Ending(hog); r == nil || !strings.Contains(strings.Join(r.Limits(), "; "), "because its memory was used up") {
		t.Errorf("of its memory %+v is told", r)
	}
	if r := d.Ending(j.tasks[1].Guest.ID); r != nil {
		t.Errorf("of the other guest %+v is told", r)
	}
	// Its files end where its host bounds them, which another guest's do not, and go on when there is room.
	bounded := j.tasks[1].Guest.ID
	seen := func() fleet.Scratch {
		t.Helper()
		all, err := d.Scratch()
		i := slices.IndexFunc(all, func(s fleet.Scratch) bool { return s.Guest == bounded })
		if err != nil || i < 0 || all[i].UID != jobUser || all[i].Bound < all[i].Used || all[i].Most != j.tasks[1].Guest.Need.MemoryBytes {
			t.Fatalf("guests have %+v, %v", all, err)
		}
		return all[i]
	}
	if err := d.BoundScratch(bounded, seen().Used+4<<20); err != nil {
		t.Error(err)
	}
	if o := j.do(1, time.Minute, sh("head -c 20M /dev/zero >/tmp/much"), ""); o.exit.Code == 0 || !strings.Contains(o.stderr, "No space left") {
		t.Errorf("beyond its bound it says %+v", o)
	}
	if s := seen(); s.Used > s.Bound || d.BoundScratch(bounded, s.Used/2) == nil {
		t.Errorf("it has %+v", s)
	}
	if err := d.BoundScratch(bounded, seen().Most); err != nil {
		t.Error(err)
	}
	if o := j.do(1, time.Minute, sh("head -c 20M /dev/zero >/tmp/much && rm /tmp/much"), ""); o.exit.Code != 0 {
		t.Errorf("with room it says %+v", o)
	}
	// It forks as long as it can, and waits then: what a program does with the CPU is limited elsewhere.
	j.launch(0, "exec perl -e 'while (1) { defined fork or sleep 1 }' >/dev/null 2>&1")
	until(t, func() bool { r := d.Ending(hog); return r != nil && r.Refused > 0 })
	goesOn("beside a fork bomb")
	if says := d.Ending(hog).OutOfTasks(); !strings.Contains(says, "reached its limit of 4096 processes and threads") || !strings.Contains(says, "--guests") {
		t.Errorf("it is told that %q", says)
	}
	if n := tasksOf(t, j, 0); n > 4096 {
		t.Errorf("it has %d processes", n)
	}
	if err := d.Stop(t.Context(), hog); err != nil {
		t.Errorf("a guest with a fork bomb: %v", err)
	}
	// Its files are memory, too, of which the kernel frees none by killing programs.
	other := j.tasks[1].Guest.ID
	j.launch(1, "exec head -c 2000M /dev/zero >/tmp/hog")
	select {
	case <-d.Ended(other):
	case <-time.After(time.Minute):
		t.Error("a guest had more files than memory")
	}
	if r := d.Ending(other); r == nil || !strings.Contains(r.Why, "because its memory was used up") {
		t.Errorf("of its files %+v is told", r)
	}
	if all, err := d.Inspect(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("the driver finds %v, %v", all, err)
	}
}

// launch starts a program in a guest and does not wait for it.
func (j *job) launch(g int, script string) {
	j.t.Helper()
	p := sh(script)
	p.ID, p.Dir = fmt.Sprintf("p%d", time.Now().UnixNano()), j.tasks[g].Job.Spec.Export
	if err := j.inside[g].Launch(j.t.Context(), p); err != nil {
		j.t.Fatal(err)
	}
}

// tasksOf counts the processes of a guest.
func tasksOf(t *testing.T, j *job, g int) int {
	t.Helper()
	first := j.process(t, j.at[g], j.tasks[g].Guest.ID)
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", first))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) == 3 && (f[1] == "pids" || f[1] == "") {
			for _, name := range []string{"/sys/fs/cgroup/pids" + f[2] + "/pids.current", "/sys/fs/cgroup" + f[2] + "/pids.current"} {
				var n int
				if text, err := os.ReadFile(name); err == nil {
					if _, err := fmt.Sscan(string(text), &n); err == nil {
						return n
					}
				}
			}
		}
	}
	t.Fatalf("the processes of guest %d are not counted", g)
	return 0
}

// TestProgramLimits: a container's programs have limits that they cannot raise, before and after a move. One
// that is killed by its memory leaves no dump of it.
func TestProgramLimits(t *testing.T) {
	for _, user := range []uint32{0, jobUser} {
		t.Run(fmt.Sprint(user), func(t *testing.T) {
			j := newJobOf(t, "openmpi", 1, user)
			for n := range 2 {
				if n == 1 {
					j.move(0, 1)
				}
				o := j.do(0, time.Minute, sh("ulimit -Sn; ulimit -Hn; grep -E 'core file|nice|realtime pri' /proc/self/limits | sed 's/  */ /g'; "+
					"(ulimit -Hc unlimited || ulimit -Hn 1000000 || ulimit -Hr 1) 2>/dev/null && echo raised; "+
					"mkdir -p /tmp/c && cd /tmp/c && sh -c 'kill -SEGV $$'; echo $?; ls /tmp/c"), "")
				var open int
				if _, err := fmt.Sscanf(o.stdout, "1024\n%d\n", &open); err != nil || open < 1024 || open > 65536 {
					t.Errorf("%d files may be open: %v", open, err)
				}
				want := fmt.Sprintf("1024\n%d\nMax core file size 1 1 bytes \nMax nice priority 0 0 \nMax realtime priority 0 0 \n139\n", open)
				if o.stdout != want {
					t.Errorf("after %d moves it says %q, not %q", n, o.stdout, want)
				}
			}
		})
	}
}
