package testkit

import (
	"testing"

	"golang.org/x/sys/unix"
)

// NoExec makes a folder in memory in which nothing can be executed, as in Debian's /run.
func NoExec(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("pagurus", dir, "tmpfs", unix.MS_NOEXEC|unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}
