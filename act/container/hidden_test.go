package container_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/cgroup"
	"pagurus/act/container/criu"
	"pagurus/act/container/sandbox"
	"pagurus/internal/testkit"
)

// engines lists what container engines hide (moby's daemon/pkg/oci, default paths of 2025, without the counters of
// single processors).
var engines = []string{
	"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
	"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
}

// hiding makes a container hide only these paths, or have only these left out of a move, until the test ends.
func hiding(t *testing.T, paths []string) {
	was := sandbox.Hidden
	sandbox.Hidden = paths
	t.Cleanup(func() { sandbox.Hidden = was })
}

// TestHidden: a container's root sees nothing of the host's kernel that is hidden: not where it
// starts, not after a move, and not where the source has or hides other files.
func TestHidden(t *testing.T) {
	all := sandbox.HiddenHere()
	for _, path := range engines {
		if !slices.Contains(all, path) {
			t.Errorf("container engines hide %s", path)
		}
	}
	hiding(t, all[:len(all)/3])
	j := newJobOf(t, "openmpi", 1, 0)
	look := "for p in " + strings.Join(all, " ") + "; do if [ -d $p ]; then ls -A $p | grep -q . && echo sees $p; elif [ -e $p ]; then timeout 1 head -c 1 $p 2>/dev/null | grep -q . && echo sees $p; " +
		"(: >>$p) 2>/dev/null && echo writes $p >&2; fi; done; for p in /proc/sys/vm/panic_on_oom /proc/irq/default_smp_affinity /proc/sysrq-trigger /sys/kernel/mm/transparent_hugepage/enabled; do (: >>$p) 2>/dev/null && echo writes $p; done; true"
	seen := func(when string) string {
		t.Helper()
		o := j.do(0, time.Minute, sh(look), "")
		if strings.Contains(o.stdout, "writes") || o.exit.Code != 0 {
			t.Errorf("%s: %+v", when, o)
		}
		return o.stdout
	}
	if got := seen("at first"); !strings.Contains(got, "sees") {
		t.Errorf("a host that hides little shows nothing of %q: this looks at nothing", all)
	}
	hiding(t, all)
	j.move(0, 1)
	if got := seen("where more is hidden"); got != "" {
		t.Errorf("where more is hidden a container %s", got)
	}
	hiding(t, all[len(all)/2:])
	j.move(0, 2) // the mounts on the others move with it, as from and to an earlier version
	hiding(t, all)
	if got := seen("after a move with mounts"); got != "" {
		t.Errorf("after a move with mounts a container %s", got)
	}
	mounts := func() string {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", j.process(t, j.at[0], j.tasks[0].Guest.ID)))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	before := mounts()
	if err := sandbox.Hide(j.process(t, j.at[0], j.tasks[0].Guest.ID)); err != nil || mounts() != before {
		t.Errorf("what is hidden was hidden once more: %v", err)
	}
	j.move(0, 3)
	if got := seen("at last"); got != "" {
		t.Errorf("at last a container %s", got)
	}
}

// TestLooseGuest: the root of a source puts a process into a guest with all of its rights. The target
// does not resume it, and the guest goes on where it is. Without the process it moves.
func TestLooseGuest(t *testing.T) {
	j := newJobOf(t, "openmpi", 1, jobUser)
	id, first := j.tasks[0].Guest.ID, j.process(t, 0, j.tasks[0].Guest.ID)
	cmd := exec.Command("nsenter", "-t", fmt.Sprint(first), "-m", "-p", "-i", "-u", "-n", "-r", "-w", "sh", "-c", "cd /; exec </dev/null >/dev/null 2>&1; setsid -f sleep 1000")
	// Nothing that this test was started with may be open in the guest.
	if err := unix.CloseRange(3, 1<<31-1, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var loose int
	until(t, func() bool {
		all, err := criu.Processes(first)
		if err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(all, func(pid int) bool {
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			return string(name) == "sleep\n"
		})
		if at >= 0 {
			loose = all[at]
		}
		return at >= 0
	})
	groups, err := cgroup.Open(j.hosts[0].Group, 0)
	if err == nil {
		err = groups.Contain(id, j.tasks[0].Guest.Need, loose)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.tryMove(0, 1); err == nil || !strings.Contains(err.Error(), "the thread may make every system call") {
		t.Errorf("the move says %v", err)
	}
	if o := j.do(0, time.Minute, sh("echo here"), ""); o.stdout != "here\n" {
		t.Errorf("afterwards it says %+v", o)
	}
	if err := unix.Kill(loose, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return unix.Kill(loose, 0) != nil })
	j.move(0, 2)
	if o := j.do(0, time.Minute, sh("echo there"), ""); o.stdout != "there\n" {
		t.Errorf("after the move it says %+v", o)
	}
}

// TestHiddenInUse: a program has a hidden file open, which is empty. It prevents a move, which is
// known beforehand by name.
func TestHiddenInUse(t *testing.T) {
	j := newJobOf(t, "openmpi", 1, jobUser)
	var o outcome
	wait := testkit.Meanwhile(t, func() {
		o = j.do(0, time.Minute, sh("exec 3</proc/keys; touch began; until [ -e end ]; do sleep 0.05; done; cat <&3; exec 3<&-; touch closed; until [ -e over ]; do sleep 0.05; done; echo end"), "")
	})
	is := func(name string) {
		until(t, func() bool { _, err := os.Stat(filepath.Join(j.files, name)); return err == nil })
	}
	tell := func(name string) {
		if err := os.WriteFile(filepath.Join(j.files, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	is("began")
	const want = "has /proc/keys open, which is empty because it is the host's: let it close it"
	found, err := j.drivers[0].Obstacles(t.Context(), j.tasks[0].Guest.ID)
	if err != nil || len(found) == 0 || !strings.Contains(found[0], want) {
		t.Errorf("Obstacles says %q, %v", found, err)
	}
	if _, err := j.tryMove(0, 1); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the move says %v", err)
	}
	tell("end")
	is("closed")
	j.move(0, 2)
	tell("over")
	wait()
	if o.stdout != "end\n" || o.exit.Code != 0 {
		t.Errorf("it says %+v", o)
	}
}
