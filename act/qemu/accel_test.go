package qemu

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pagurus/internal/testkit"
)

func TestProbeIsBuiltFromItsSource(t *testing.T) {
	testkit.Built(t, "probe.bin", "probe.asm", "22f2720215ac4f830b48f61ad272f40b32b3427d505b25fcc6555769ec18c380")
}

// Hardware virtualization that does not answer is tried again with more time. If it never
// answers, emulation is used and the result counts as unsure. Its refusal is an answer.
func TestSlowHardwareIsTriedAgain(t *testing.T) {
	testkit.Root(t, "qemu-system-x86_64")
	real, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Fatal(err)
	}
	slow := "exec sleep 60"
	late := `[ $(wc -l <tries) -gt 1 ] || exec sleep 60; set -- $(echo "$*" | sed 's/-accel kvm[^ ]*/-accel tcg/; s/-cpu host[^ ]*/-cpu max/')`
	for _, c := range []struct {
		hardware string // what stands in QEMU's place does when it is told to use KVM
		want     acceleration
		tries    int
	}{
		{slow, acceleration{Accelerator: Emulation, Unsure: true}, 2},
		{late, acceleration{Accelerator: Hardware}, 2},
		{"echo refused >&2; exit 1", acceleration{Accelerator: Emulation}, 1},
	} {
		dir := t.TempDir()
		binary := filepath.Join(dir, "qemu")
		script := fmt.Sprintf("#!/bin/sh\ncd %s\ncase \"$*\" in *kvm*) echo >>tries; %s ;; esac\nexec %s \"$@\"\n", dir, c.hardware, real)
		if err := os.WriteFile(binary, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		got, err := findAccelerator(context.Background(), acceleratorTrial{
			Binary: binary, Folder: dir, Machine: machineType, Device: dir, Limits: []time.Duration{time.Second, 5 * time.Second},
			CPU:        func(name string) (string, string) { return acceleratorArgument(name), acceleratorCPU(name) },
			Attributes: func() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} },
		})
		if err != nil || got.Accelerator != c.want.Accelerator || got.Unsure != c.want.Unsure {
			t.Errorf("%q: %+v, %v", c.hardware, got, err)
		}
		tries, _ := os.ReadFile(filepath.Join(dir, "tries"))
		if n := strings.Count(string(tries), "\n"); n != c.tries {
			t.Errorf("%q: KVM was tried %d times, want %d", c.hardware, n, c.tries)
		}
	}
}
