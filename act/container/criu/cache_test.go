package criu

import (
	"bytes"
	"os/exec"
	"testing"
)

// TestWarm: CRIU uses the cache that Warm leaves.
func TestWarm(t *testing.T) {
	c := find(t)
	for range 2 {
		if err := c.Warm(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // where /run is in memory, the first call leaves it
		said, err := exec.Command(c.Path, "check", "-v4").CombinedOutput()
		if err == nil && bytes.Contains(said, []byte("Loaded kdat cache")) {
			return
		}
		t.Logf("%v: %s", err, said)
	}
	t.Error("CRIU looks at the kernel itself each time")
}
