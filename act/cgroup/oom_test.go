package cgroup

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// greedy is set for a process that takes more memory than its guest has, once it is told to.
const greedy = "PAGURUS_TEST_GREEDY"

func takeMemory() {
	_, _ = os.Stdin.Read(make([]byte, 1))
	all := make([]byte, 128<<20) // twice what it may have
	for i := 0; i < len(all); i += os.Getpagesize() {
		all[i] = 1
	}
}

// TestContainCountsOOMKills: a process that takes more than its guest has is counted.
func TestContainCountsOOMKills(t *testing.T) {
	if os.Getpid() != 1 {
		testkit.Root(t)
	}
	top := fmt.Sprintf("pagurus-test-oom-%d", os.Getpid())
	g, err := Open(top+"/host1", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	const guest = fleet.GuestID("g1")
	if n := g.OOMKills(guest); n != 0 {
		t.Errorf("of no group %d are known", n)
	}
	c := exec.Command("/proc/self/exe") // a machine that boots this test has no shell
	c.Env = append(os.Environ(), greedy+"=1")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Process.Kill()
	if err := g.Contain(guest, fleet.Resources{CPUs: 1, MemoryBytes: 64 << 20}, c.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if n := g.OOMKills(guest); n != 0 {
		t.Errorf("before, %d are known", n)
	}
	fmt.Fprintln(in, "go")
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	most := int64(0)
	for over := false; !over; {
		select {
		case err := <-ended:
			over = true
			t.Log(err)
		default:
			most = max(most, g.Memory())
		}
	}
	if most < 1<<20 || most > 65<<20 {
		t.Errorf("it had at most %d bytes", most)
	}
	if n := g.OOMKills(guest); n != 1 {
		t.Errorf("%d were killed, want 1", n)
	}
	if err := g.Remove(guest); err != nil {
		t.Error(err)
	}
}

func TestReadOOMKills(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, "low 0\nhigh 0\nmax 9\noom 4\noom_kill 3\noom_group_kill 1\n": 3, "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n": 2,
	} {
		if got := countOf("oom_kill ", text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}
