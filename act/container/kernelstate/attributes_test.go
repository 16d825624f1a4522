package kernelstate

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFewerProcessors: a thread gets those of its processors that this host also has. If there
// are none it may use all. Both cases are reported.
func TestFewerProcessors(t *testing.T) {
	sleeper := exec.Command("sleep", "100")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() }()
	pid := sleeper.Process.Pid
	var all, now unix.CPUSet
	if err := unix.SchedGetaffinity(pid, &all); err != nil {
		t.Fatal(err)
	}
	first := 0
	for !all.IsSet(first) {
		first++
	}
	var here unix.CPUSet
	here.Set(first)
	for _, c := range []struct {
		wanted []int
		want   unix.CPUSet
		said   string
	}{
		{[]int{first}, here, ""},
		{[]int{first, 1000}, here, "thread 7 of process 5 was bound to 2 processors, and this host gives it 1 of them"},
		{[]int{1000, 1001}, here, "was bound to 2 processors, and this host gives it 0 of them"},
	} {
		a := attributesOf{Process: 5, Inside: 7, CPUs: &unix.CPUSet{}}
		for _, cpu := range c.wanted {
			a.CPUs.Set(cpu)
		}
		var box Container
		if err := a.schedule(pid, &box); err != nil {
			t.Errorf("%v: %v", c.wanted, err)
		}
		if err := unix.SchedGetaffinity(pid, &now); err != nil || now != c.want {
			t.Errorf("%v: it has %d processors: %v", c.wanted, now.Count(), err)
		}
		if said := strings.Join(box.rest.Said, "\n"); !strings.Contains(said, c.said) || c.said == "" && said != "" {
			t.Errorf("%v: it says %q", c.wanted, said)
		}
	}
}

// TestNothingToCarry: nothing is recorded of a process that has set nothing.
func TestNothingToCarry(t *testing.T) {
	sleeper := exec.Command("sleep", "100")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() }()
	c, err := find(sleeper.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if noted, err := noteAttributes(c); noted != nil || err != nil {
		t.Errorf("noted %+v: %v", noted, err)
	}
}

func BenchmarkNote(b *testing.B) {
	c, err := find(os.Getpid())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(len(c.Processes[0].Threads)), "threads")
	for b.Loop() {
		if _, err := noteAttributes(c); err != nil {
			b.Fatal(err)
		}
	}
}
