package image

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"pagurus/internal/testkit"
)

// An image's absolute links lead out of its root while this machine writes there.
func linked(t *testing.T, names ...string) (root string, whole func()) {
	root = t.TempDir()
	outside := t.TempDir()
	for _, dir := range []string{"etc/apt", "proc", "sys", "dev"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range names {
		own := filepath.Join(outside, filepath.Base(name))
		if err := os.WriteFile(own, []byte("the machine's\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(own, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	return root, func() {
		for _, name := range names {
			if got, err := os.ReadFile(filepath.Join(outside, filepath.Base(name))); string(got) != "the machine's\n" {
				t.Errorf("%s: the machine's file is %q, %v", name, got, err)
			}
		}
	}
}

func TestABuildWritesNothingThroughLinks(t *testing.T) {
	root, whole := linked(t, "etc/machine-id", "etc/hostname", "etc/resolv.conf", "etc/apt/sources.list", "etc/hosts")
	if err := tidy(root); err != nil {
		t.Fatal(err)
	}
	whole()
	if got, err := os.ReadFile(filepath.Join(root, "etc/hosts")); err != nil || string(got) != "127.0.0.1 localhost\n::1 localhost\n" {
		t.Errorf("hosts: %q, %v", got, err)
	}
}

func TestAShellWritesNothingThroughLinks(t *testing.T) {
	testkit.Root(t, "mksquashfs", "unshare")
	root, whole := linked(t, "etc/passwd", "etc/group", "etc/resolv.conf", "etc/hosts")
	img := filepath.Join(t.TempDir(), RootFile)
	if out, err := exec.CommandContext(t.Context(), "mksquashfs", root, img, "-quiet", "-no-progress").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	out, err := exec.CommandContext(t.Context(), "unshare", "--mount", "--", "/bin/sh", "-c", enter, "pagurus-shell",
		img, t.TempDir(), t.TempDir(), "+12345:+12345", "+12345", "me:x:12345:12345::/:/bin/sh", "me:x:12345:", "", "true").CombinedOutput()
	if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 127 { // chroot: there is no shell
		t.Errorf("%v: %s", err, out)
	}
	whole()
}
