package testkit

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Reflinks returns the folder of a small file system of its own that can copy files without their blocks: kind is "btrfs" or
// "xfs".
func Reflinks(t testing.TB, kind string) string {
	t.Helper()
	Root(t, "mkfs."+kind, "mount", "umount")
	dir := t.TempDir()
	image, at := filepath.Join(dir, "disk"), filepath.Join(dir, kind)
	file, err := os.Create(image)
	if err == nil {
		err = file.Truncate(320 << 20) // XFS takes no less than 300
	}
	if err == nil {
		err = file.Close()
	}
	if err == nil {
		err = os.Mkdir(at, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	run(t, "mkfs."+kind, "-q", image)
	run(t, "mount", "-o", "loop", "-t", kind, image, at) // the loop device ends with it
	t.Cleanup(func() {
		if out, err := exec.Command("umount", at).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	if err := os.Chmod(at, 0o755); err != nil {
		t.Fatal(err)
	}
	return at
}
