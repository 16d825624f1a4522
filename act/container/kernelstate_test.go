package container_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// compileState compiles a program of internal/testkit/kernelstate in the first guest, and
// returns the names of its cases.
func (j *job) compileState(area string) []string {
	j.t.Helper()
	var source []byte
	for _, name := range []string{"kernelstate.h", area + ".c"} {
		text, err := os.ReadFile(filepath.Join("../../internal/testkit/kernelstate", name))
		if err != nil {
			j.t.Fatal(err)
		}
		source = append(source, text...)
	}
	if o := j.do(0, time.Minute, sh("cat >p.c && cc -O1 -Wall -Werror -pthread -o "+area+" p.c -lrt"), string(source)); o.exit.Code != 0 {
		j.t.Fatalf("compile: %+v", o)
	}
	o := j.do(0, time.Minute, fleet.Program{Args: []string{"./" + area}}, "")
	return strings.Fields(o.stdout)
}

// beginCase starts a case and waits until it has its state. end makes it check the state, and
// returns the result.
func (j *job) beginCase(area, name string) (end func() outcome) {
	j.t.Helper()
	_ = os.Remove(filepath.Join(j.files, "go"))
	var o outcome
	wait := testkit.Meanwhile(j.t, func() { o = j.do(0, 3*time.Minute, fleet.Program{Args: []string{"./" + area, name}}, "") })
	until(j.t, func() bool { _, err := os.Stat(filepath.Join(j.files, name+".ready")); return err == nil })
	return func() outcome {
		if err := os.WriteFile(filepath.Join(j.files, "go"), nil, 0o644); err != nil {
			j.t.Fatal(err)
		}
		wait()
		return o
	}
}

// keeps runs a program's cases in one guest, all at once, moves it twice, and fails for each
// case that finds a change.
func (j *job) keeps(area string, cases []string, move func(n int)) {
	j.t.Helper()
	script := "for c in " + strings.Join(cases, " ") + "; do (./" + area + " $c >$c.out 2>&1; echo exit $? >>$c.out) & done; wait"
	wait := testkit.Meanwhile(j.t, func() { j.do(0, 5*time.Minute, sh(script), "") })
	until(j.t, func() bool {
		ready, _ := filepath.Glob(filepath.Join(j.files, "*.ready"))
		over, _ := filepath.Glob(filepath.Join(j.files, "*.out"))
		for _, name := range over { // a case that could not begin is reported below
			if text, _ := os.ReadFile(name); strings.Contains(string(text), "exit ") {
				return true
			}
		}
		return len(ready) == len(cases)
	})
	for n := range 2 {
		move(n + 1)
	}
	if err := os.WriteFile(filepath.Join(j.files, "go"), nil, 0o644); err != nil {
		j.t.Fatal(err)
	}
	wait()
	for _, c := range cases {
		text, err := os.ReadFile(filepath.Join(j.files, c+".out"))
		if err != nil || string(text) != "exit 0\n" {
			j.t.Errorf("%s: %s%v", c, text, err)
		}
	}
}

// TestKernelState: the programs' state of each area is unchanged after moves in each mode.
func TestKernelState(t *testing.T) {
	for _, area := range []string{"example", "files", "processes", "sockets", "times"} {
		t.Run(area, func(t *testing.T) {
			hugePages(t)
			j := newJobOf(t, "openmpi", 1, jobUser)
			cases := slices.DeleteFunc(j.compileState(area), func(name string) bool { return stays[name] != "" })
			j.keeps(area, cases, func(n int) { j.move(0, n) })
		})
	}
}

// hugePages reserves huge pages on the host, which programs of an area need, for the test.
func hugePages(t *testing.T) {
	const file, most = "/proc/sys/vm/nr_hugepages", 16
	before, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, fmt.Appendf(nil, "%d", most), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(file, before, 0); err != nil {
			t.Error(err)
		}
	})
}
