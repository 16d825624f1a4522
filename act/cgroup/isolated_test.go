package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pagurus/internal/testkit"
)

// A guest starts on the isolated CPUs if there are any, and is unchanged otherwise.
func TestGuestsGoToTheIsolatedCPUs(t *testing.T) {
	testkit.Root(t)
	root, err := hierarchy("cpuset")
	if err != nil {
		return // version 2 has one tree, which they are already in
	}
	top := fmt.Sprintf("pagurus-test-isolated-%d", os.Getpid())
	g, err := Open(top+"/inner", 0)
	if err != nil {
		t.Fatal(err)
	}
	where := func(pid int) string {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cpuset", pid))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	before, after := spinner(t), spinner(t)
	was := where(before)
	if err := g.Place("g1", before, 1); err != nil || where(before) != was {
		t.Errorf("it is in %s: %v", where(before), err)
	}
	folder := filepath.Join(root, top)
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, name), text, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Place("g2", after, 1); err != nil || where(after) != "/"+top {
		t.Errorf("it is in %s: %v", where(after), err)
	}
	for _, pid := range []int{before, after} {
		p, err := os.FindProcess(pid)
		if err == nil {
			err = p.Kill()
		}
		if err != nil {
			t.Error(err)
		}
	}
	testkit.Until(t, removeLimit, "the group is empty", func() bool { return os.Remove(folder) == nil })
	for _, guest := range []string{"g1", "g2"} {
		if err := g.remove("/" + top + "/inner/" + guest); err != nil {
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
