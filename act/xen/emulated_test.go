package xen_test

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"pagurus/internal/testkit"
)

// TestEmulatedHost: on an emulated Xen host a guest begins and moves. scripts/test-xen without a pattern tries the rest of it there.
func TestEmulatedHost(t *testing.T) {
	if os.Getenv(onXen) != "" {
		return // this is such a host
	}
	testkit.Root(t, "qemu-system-x86_64", "mksquashfs", "go")
	c := exec.CommandContext(t.Context(), "../../scripts/test-xen", "TestContract/move$")
	c.Env = append(os.Environ(), "PAGURUS_TEST_XEN_IMAGE="+testkit.Image(t, "openmpi"))
	c.Cancel, c.WaitDelay = func() error { return c.Process.Signal(syscall.SIGTERM) }, 10*time.Second // it ends its host
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
