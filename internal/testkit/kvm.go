package testkit

import (
	"os"
	"testing"
)

// Virtual says what tests' virtual machines run with: an accelerator and a CPU as agents are told them, by scripts/test-kvm. Empty: what a
// trial finds, and the host's.
func Virtual() (accelerator, cpu string) {
	return os.Getenv("PAGURUS_TEST_ACCELERATOR"), os.Getenv("PAGURUS_TEST_CPU")
}

// VirtualCPU is the CPU of tests' virtual machines, as fleet.Guest has it: empty is the host's.
func VirtualCPU() string {
	if _, cpu := Virtual(); cpu != "host" {
		return cpu
	}
	return ""
}

// Emulated skips a test that scripts/test-kvm cannot run, saying why.
func Emulated(t testing.TB, why string) {
	t.Helper()
	if accelerator, _ := Virtual(); accelerator != "" {
		t.Skip("not with the given kernel: " + why)
	}
}
