package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	cgroups "github.com/containerd/cgroups/v3"
	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// busy makes a copy of the test binary that does nothing but use the CPU, until the
// test that started it kills it or has died: a busy machine takes minutes for a test.
const busy = "PAGURUS_CGROUP_TEST_BUSY"

func TestMain(m *testing.M) {
	if os.Getenv(busy) != "" {
		parent := os.Getppid()
		for end := time.Now().Add(10 * time.Minute); time.Now().Before(end) && os.Getppid() == parent; {
		}
		os.Exit(0)
	}
	if os.Getenv(greedy) != "" {
		takeMemory()
		os.Exit(0)
	}
	if os.Getpid() == 1 {
		testkit.Init(m, "TestGroups|TestNames|TestContain|TestConfine")
	}
	os.Exit(m.Run())
}

// spinner starts a process that uses all available CPU time.
func spinner(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), busy+"=1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd.Process.Pid
}

// traces are a group's folders in all trees.
func traces(name string) []string {
	var out []string
	for _, pattern := range []string{"/sys/fs/cgroup/" + name, "/sys/fs/cgroup/*/" + name} {
		found, _ := filepath.Glob(pattern)
		out = append(out, found...)
	}
	return out
}

// capped fails if guests that could use more get more than the ceiling, and returns what they
// used. The kernel throttles at its ticks: an emulated machine on a busy one may miss many
// of them, but not each time.
func capped(t *testing.T, g *Groups, ceiling float64) (after time.Duration) {
	t.Helper()
	said := ""
	for range 3 {
		before, err := g.Used()
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		time.Sleep(2 * time.Second)
		if after, err = g.Used(); err != nil {
			t.Fatal(err)
		}
		passed := time.Since(begun)
		most := time.Duration(ceiling*float64(passed)) + 10*period // a period may be counted late at either end
		if after-before <= most && after > before {
			return after
		}
		said = fmt.Sprintf("in %s the guests used %s of at most %s", passed, after-before, most)
	}
	t.Error(said)
	return after
}

func TestGroups(t *testing.T) {
	if os.Getpid() != 1 {
		testkit.Root(t)
	}
	const ceiling = 0.4
	top := fmt.Sprintf("pagurus-test-%d", os.Getpid())
	name := top + "/host1"
	g, err := Open(name, ceiling)
	if err != nil {
		t.Fatal(err)
	}
	pids := map[fleet.GuestID]int{"g1": spinner(t), "g2": spinner(t)}
	for guest, pid := range pids {
		for range 2 {
			if err := g.Place(guest, pid, 2); err != nil {
				t.Fatal(err)
			}
		}
	}
	// A second agent finds the first one's groups.
	if g, err = Open(name, ceiling); err != nil {
		t.Fatal(err)
	}
	after := capped(t, g, ceiling)
	for guest := range pids {
		if used, err := g.UsedBy(guest); err != nil || used <= 0 || used > after {
			t.Errorf("guest %s used %s: %v", guest, used, err)
		}
	}
	if err := g.Close(); err == nil {
		t.Error("a group was removed with guests in it")
	}
	for guest, pid := range pids {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := g.Remove(guest); err != nil {
				t.Error(err)
			}
		}
	}
	for range 2 {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}
	if left := traces(top); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestContain: contained processes and their children are limited in memory, and stopped
// from Freeze to Thaw, including new ones; they can be killed then.
func TestContain(t *testing.T) {
	if os.Getpid() != 1 {
		testkit.Root(t)
	}
	top := fmt.Sprintf("pagurus-test-%d", os.Getpid())
	g, err := Open(top+"/host1", 0)
	if err != nil {
		t.Fatal(err)
	}
	const guest, memory = fleet.GuestID("g1"), 64 << 20
	need := fleet.Resources{CPUs: 1, MemoryBytes: memory}
	if err := g.Thaw(guest); err != nil {
		t.Errorf("a group that is not there cannot be thawed: %v", err)
	}
	if pids, err := g.Members(guest); err != nil || len(pids) != 0 {
		t.Errorf("a group that is not there has %v: %v", pids, err)
	}
	first, second := spinner(t), spinner(t)
	for range 2 {
		if err := g.Contain(guest, need, first); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := g.Freeze(guest); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Contain(guest, need, second); err != nil {
		t.Fatal(err)
	}
	if err := g.Freeze(guest); err != nil {
		t.Fatal(err)
	}
	used := func() time.Duration {
		d, err := g.UsedBy(guest)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	before := used()
	time.Sleep(300 * time.Millisecond)
	if after := used(); after > before+20*time.Millisecond {
		t.Errorf("while they were frozen they used %s", after-before)
	}
	if pids, err := g.Members(guest); err != nil || len(pids) != 2 {
		t.Errorf("the group has %v: %v", pids, err)
	}
	for range 2 {
		if err := g.Thaw(guest); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Until(t, 20*time.Second, "they run again", func() bool { return used() > before+50*time.Millisecond })
	found := 0
	for _, dir := range traces(top + "/host1/g1") {
		for _, name := range []string{"memory.max", "memory.limit_in_bytes"} {
			if text, err := os.ReadFile(filepath.Join(dir, name)); err == nil && strings.TrimSpace(string(text)) == fmt.Sprint(memory) {
				found++
			}
		}
	}
	if found != 1 {
		t.Errorf("%d groups hold them to their memory", found)
	}
	held := 0
	for _, dir := range traces(top + "/host1/g1") {
		most, err := os.ReadFile(filepath.Join(dir, "pids.max"))
		now, nowErr := os.ReadFile(filepath.Join(dir, "pids.current"))
		n, noNumber := strconv.Atoi(strings.TrimSpace(string(now))) // threads count, too
		if errors.Join(err, nowErr, noNumber) == nil && string(most) == "4096\n" && n >= 2 {
			held++
		}
	}
	if held != 1 {
		t.Errorf("%d groups hold them to 4096 processes", held)
	}
	if times, most := g.TasksRefused(guest); times != 0 || most != 4096 {
		t.Errorf("%d processes of at most %d could not start", times, most)
	}
	swapped(t, g, guest, memory)
	if err := g.Contain(guest, fleet.Resources{CPUs: 1}, second); err != nil {
		t.Errorf("the ceiling cannot be taken off: %v", err)
	}
	if err := g.Freeze(guest); err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{first, second} {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Thaw(guest); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := g.Remove(guest); err != nil {
			t.Error(err)
		}
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if left := traces(top); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// swapped checks that swap space gives a guest no more memory, and that a suspended one may be swapped out.
func swapped(t *testing.T, g *Groups, guest fleet.GuestID, memory int) {
	t.Helper()
	read := func() string {
		for _, dir := range traces(strings.TrimPrefix(g.root, "/") + "/" + string(guest)) {
			for _, name := range []string{"memory.memsw.limit_in_bytes", "memory.swap.max"} {
				if text, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
					return name + " " + strings.TrimSpace(string(text))
				}
			}
		}
		return ""
	}
	both := fmt.Sprintf("memory.memsw.limit_in_bytes %d", memory)
	now := read()
	if now == "" {
		t.Log("this kernel does not count swap space")
	}
	for on, want := range map[bool]string{true: "memory.swap.max max", false: "memory.swap.max 0"} {
		if err := g.Swap(guest, on); err != nil {
			t.Error(err)
		}
		if got := read(); got != want && got != both && got != "" {
			t.Errorf("with swapping %t: %s", on, got)
		}
	}
	if now != "" && now != both && now != "memory.swap.max 0" {
		t.Errorf("at first: %s", now)
	}
	if err := g.Swap("g9", true); err != nil {
		t.Errorf("a group that is not there: %v", err)
	}
	for _, dir := range traces(strings.TrimPrefix(g.root, "/") + "/" + string(guest)) {
		if err := write(dir, "memory.nothing", "0"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a file that the kernel lacks: %v", err)
		}
	}
}

// TestConfine: a confined process is limited in memory and threads, has the weight of its CPUs, and
// leaves nothing.
func TestConfine(t *testing.T) {
	if os.Getpid() != 1 {
		testkit.Root(t)
	}
	top := fmt.Sprintf("pagurus-test-%d", os.Getpid())
	g, err := Open(top+"/host1", 0)
	if err != nil {
		t.Fatal(err)
	}
	const guest = fleet.GuestID("g1")
	if why := Unlimited(); why != "" {
		t.Errorf("with a limit: %s", why)
	}
	pid := spinner(t)
	for _, memory := range []int64{64 << 20, 96 << 20} {
		if err := g.Confine(guest, fleet.Resources{CPUs: 2, MemoryBytes: memory}, 77, pid); err != nil {
			t.Fatal(err)
		}
		held := map[string]int{}
		for _, dir := range traces(top + "/host1/g1") {
			here, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			for _, name := range []string{"memory.max", "memory.limit_in_bytes", "pids.max", "cpu.shares", "cpu.weight"} {
				if text, err := os.ReadFile(filepath.Join(dir, name)); err == nil && strings.TrimSpace(string(here)) == fmt.Sprint(pid) {
					held[strings.TrimSpace(string(text))]++
				}
			}
		}
		swapped(t, g, guest, int(memory))
		if held[fmt.Sprint(memory)] != 1 || held["77"] != 1 || held["2048"]+held["200"] != 1 {
			t.Errorf("it is held to %v", held)
		}
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := g.Remove(guest); err != nil {
			t.Error(err)
		}
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if left := traces(top); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestNames(t *testing.T) {
	for _, name := range []string{"", "/", ".", "..", "a/../..", "a\nb"} {
		if g, err := Open(name, 1); err == nil {
			g.Close()
			t.Errorf("a group was made for %q", name)
		}
	}
	if _, err := Open("pagurus-test", -1); err == nil {
		t.Error("a ceiling below nothing was taken")
	}
	g := &Groups{root: "/pagurus-test"}
	for _, guest := range []fleet.GuestID{"", ".", "..", "a/b", "../g1", "g1\n"} {
		if err := g.Place(guest, os.Getpid(), 1); err == nil {
			t.Errorf("a group was made for guest %q", guest)
		}
	}
}

func TestQuota(t *testing.T) {
	for cpus, want := range map[float64]time.Duration{0.6: 12 * time.Millisecond, 2: 40 * time.Millisecond, 0.0001: leastQuota} {
		if got := quota(cpus); got != want {
			t.Errorf("%g CPUs are %s of every %s, want %s", cpus, got, period, want)
		}
	}
}

// TestLongUnified runs the tests with version 2: in a guest, unless this machine has it,
// where they have already run.
func TestLongUnified(t *testing.T) {
	if cgroups.Mode() != cgroups.Unified {
		testkit.InMachine(t, 2)
	}
}
