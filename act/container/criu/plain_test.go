package criu

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestCopies: the program called gzip copies in both directions, and is gone afterwards.
func TestCopies(t *testing.T) {
	dir := t.TempDir()
	for range 2 { // a folder that a killed agent left is no obstacle
		if _, err := Make(dir); err != nil {
			t.Fatal(err)
		}
	}
	f, err := Make(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, way := range []string{"-c", "-d"} {
		cmd := exec.Command(filepath.Join(f.Path, "gzip"), way)
		cmd.Stdin = strings.NewReader("as it is")
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != "as it is" {
			t.Errorf("%s: %q, %v", way, out, err)
		}
	}
	f.Close()
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if _, err := Make(filepath.Join(dir, "none")); err == nil {
		t.Error("it was made in a folder that is not there")
	}
}
