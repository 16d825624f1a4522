package xen_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"pagurus/internal/testkit"
)

// TestLongEmulatedHost: on an emulated Xen host a guest begins and moves. scripts/test-xen without a pattern tries the rest of it there.
func TestLongEmulatedHost(t *testing.T) {
	if os.Getenv(onXen) != "" {
		return // this is such a host
	}
	testkit.Root(t, "qemu-system-x86_64", "mksquashfs", "go")
	if v := version(t); v < 10 {
		t.Logf("not tried: QEMU %d emulates no processor on which Xen's guests live", v)
		return
	}
	c := exec.CommandContext(t.Context(), "../../scripts/test-xen", "^TestContract$/^move$")
	c.Env = append(os.Environ(), "PAGURUS_TEST_XEN_IMAGE="+testkit.Image(t, "openmpi"))
	c.Cancel, c.WaitDelay = func() error { return c.Process.Signal(syscall.SIGTERM) }, 10*time.Second // it ends its host
	out, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestContract/move ") {
		t.Errorf("%v: %s", err, out)
	}
}

// version is the first number of QEMU's.
func version(t *testing.T) (v int) {
	t.Helper()
	text, err := exec.Command("qemu-system-x86_64", "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(string(text), "QEMU emulator version %d", &v); err != nil {
		t.Fatalf("QEMU says %q: %v", text, err)
	}
	return v
}
