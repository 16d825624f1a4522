package image

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pagurus/internal/testkit"
)

// A build's root is on a layer that keeps nothing waiting for the disk, and what is
// written there is in the folder afterwards, where no layer is left.
func TestBuildDoesNotWaitForTheDisk(t *testing.T) {
	testkit.Root(t, "unshare", "mount")
	testkit.Leftovers(t)
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := contained(t.Context(), "sh", "-c", unsynced, "sh", root, filepath.Join(dir, "empty"), filepath.Join(dir, "layer"),
		"sh", "-c", `mkdir "$1/etc" && echo here >"$1/etc/file" && ln "$1/etc/file" "$1/link" && mv "$1/etc" "$1/other" && grep " $1 " /proc/self/mounts`, "sh", root)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "volatile") {
		t.Errorf("%v: %s", err, out)
	}
	if text, err := os.ReadFile(filepath.Join(root, "other", "file")); err != nil || string(text) != "here\n" {
		t.Errorf("%q, %v", text, err)
	}
	if mounts, err := os.ReadFile("/proc/self/mounts"); err != nil || strings.Contains(string(mounts), root) {
		t.Errorf("a layer is left, or %v", err)
	}
}
