package container_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// TestManyMappings moves programs with tens of thousands of mappings there and back. The
// mappings are adjacent with different rights, apart, of a file, or shared. Afterwards their
// content and their number are unchanged.
func TestManyMappings(t *testing.T) {
	j := newJob(t, "openmpi", 1)
	j.compileOf("../../cmd/pagurus-bench/programs", "mappings")
	n := 0
	for _, c := range []struct {
		kind  string
		count int
	}{{"rights", 3000}, {"rights", 30000}, {"gaps", 30000}, {"file", 30000}, {"shared", 3000}} {
		t.Run(fmt.Sprint(c.kind, c.count), func(t *testing.T) {
			end := j.mapped(t, c.kind, c.count)
			for range 2 {
				n++
				p := j.move(0, n)
				t.Logf("%d mappings (%s): %s down", c.count, c.kind, p.Downtime.Round(time.Millisecond))
			}
			if o := end(); o.exit.Code != 0 || !strings.Contains(o.stdout, "right") {
				t.Errorf("%+v", o)
			}
		})
	}
}

// TestMappingsAreForeseen: a guest's mappings are counted, and if CRIU could not restore as
// many, that is reported beforehand.
func TestMappingsAreForeseen(t *testing.T) {
	j := newJob(t, "openmpi", 1)
	j.compileOf("../../cmd/pagurus-bench/programs", "mappings")
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	const most = 50000 // the kernel allows some 65,000 per process
	many := limit.Max < most
	for kind, count := range map[string]int{"rights": 30000, "shared": min(int(limit.Max), most)} {
		end := j.mapped(t, kind, count)
		p, err := j.drivers[0].Profile(t.Context(), j.tasks[0].Guest.ID)
		if err != nil || p.Mappings < count || (kind == "shared") != (p.Segments >= count) {
			t.Errorf("%s: %d mappings, %d shared: %v", kind, p.Mappings, p.Segments, err)
		}
		found, err := j.drivers[0].Obstacles(t.Context(), j.tasks[0].Guest.ID)
		says := strings.Join(found, "; ")
		if err != nil || strings.Contains(says, "pieces of memory that processes share") != (many && kind == "shared") {
			t.Errorf("%d mappings (%s): %q %v", count, kind, says, err)
		}
		if o := end(); o.exit.Code != 0 {
			t.Errorf("%+v", o)
		}
	}
}

// TestManyProcesses moves programs with dozens of processes there and back: children of one, and
// each the child of the one before. Before, the guest's profile says how many there are.
func TestManyProcesses(t *testing.T) {
	j := newJob(t, "openmpi", 1)
	j.compileOf("../../cmd/pagurus-bench/programs", "processes")
	const count = 60
	n := 0
	for kind, least := range map[string]int{"flat": 2 * count, "chain": count * count / 2} {
		t.Run(kind, func(t *testing.T) {
			end := j.held(t, "./processes", fmt.Sprint(count), kind)
			p, err := j.drivers[j.at[0]].Profile(t.Context(), j.tasks[0].Guest.ID)
			if err != nil || p.Processes <= count || p.Processes > 2*count || p.Ancestors < least || (kind == "flat") != (p.Ancestors < 10*count) {
				t.Errorf("%d processes with %d ancestors: %v", p.Processes, p.Ancestors, err)
			}
			for range 2 {
				n++
				p := j.move(0, n)
				t.Logf("%d processes (%s): %s down", count, kind, p.Downtime.Round(time.Millisecond))
			}
			if o := end(); o.exit.Code != 0 || !strings.Contains(o.stdout, "right") {
				t.Errorf("%+v", o)
			}
		})
	}
}

// mapped starts a program with so many mappings in the first guest and waits until it has them.
// end makes it check them and returns the result.
func (j *job) mapped(t *testing.T, kind string, count int) (end func() outcome) {
	t.Helper()
	return j.held(t, "./mappings", fmt.Sprint(count), kind)
}

// held starts a program in the first guest and waits until it makes the file "ready". end makes
// the file "go", for which the program waits, and returns the result.
func (j *job) held(t *testing.T, program ...string) (end func() outcome) {
	t.Helper()
	for _, name := range []string{"ready", "go"} {
		_ = os.Remove(filepath.Join(j.files, name))
	}
	var o outcome
	wait := testkit.Meanwhile(t, func() {
		o = j.do(0, 3*time.Minute, fleet.Program{Args: program}, "")
	})
	until(t, func() bool { _, err := os.Stat(filepath.Join(j.files, "ready")); return err == nil })
	return func() outcome {
		if err := os.WriteFile(filepath.Join(j.files, "go"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		wait()
		return o
	}
}
