package criu

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestStopped: a container with a stopped process is dumped at once, frozen or not, and the
// process stays stopped.
func TestStopped(t *testing.T) {
	all := groups(t)
	b := newBox(t, 0)
	if got := b.ask("open stopped child"); got != "ok" {
		t.Fatal(got)
	}
	for version, g := range all {
		if err := g.add(b.pid); err != nil {
			t.Fatal(err)
		}
		for _, frozen := range []bool{true, false} {
			b.run(fmt.Sprintf("%s, frozen %v", version, frozen), func(t *testing.T) {
				g.set(frozen)
				begun := time.Now()
				if err := b.dump(t.Context(), DumpSpec{Images: b.images(), Running: true, Freezer: g.folder}); err != nil {
					t.Fatal(err)
				}
				t.Logf("dumped in %s", time.Since(begun))
				g.set(false)
				b.well()
				pids, err := Processes(b.pid)
				if err != nil {
					t.Fatal(err)
				}
				states := ""
				for _, p := range pids {
					status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p))
					state := field(status, "State:")[:1]
					if states += state; state == "Z" {
						continue // it is in no group
					}
					groups, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p))
					if !slices.ContainsFunc(strings.Split(string(groups), "\n"), func(line string) bool {
						return strings.HasSuffix(line, g.folder[strings.LastIndex(g.folder, "/"):])
					}) {
						t.Errorf("process %d has left its control group: %s", p, groups)
					}
				}
				if strings.Count(states, "T") != 1 {
					t.Errorf("the processes are in the states %s", states)
				}
			})
		}
	}
}

// TestNotSeized: if one process cannot be stopped, the dump fails within a few seconds, because
// all others are suspended meanwhile. Then they continue.
func TestNotSeized(t *testing.T) {
	all := groups(t)
	b := newBox(t, 0)
	if got := b.ask("open waiting parent"); got != "ok" {
		t.Fatal(got)
	}
	for version, g := range all {
		b.run(version, func(t *testing.T) {
			if err := g.add(b.pid); err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			err := b.dump(t.Context(), DumpSpec{Images: b.images(), Running: true, Freezer: g.folder})
			took := time.Since(begun)
			t.Logf("%s: %v", took, err)
			if err == nil || took > 5*time.Second {
				t.Errorf("after %s: %v", took, err)
			}
			b.well()
		})
	}
}
