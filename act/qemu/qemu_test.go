package qemu_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"pagurus/act/qemu"
	"pagurus/serve/agent"
	"pagurus/serve/agent/drivertest"
)

// The only place besides cmd where the driver meets what it satisfies.
var (
	_ agent.Driver = (*qemu.Driver)(nil)
	_ agent.Linker = (*qemu.Driver)(nil)
)

func TestContract(t *testing.T) {
	drivertest.Run(t, newWorld(t).contract())
}

// TestGuest: the guest finds its devices, and QEMU may do nothing it need not.
func TestGuest(t *testing.T) {
	w := newWorld(t)
	d := w.open(t, 0)
	defer d.Close()
	tk := task("j1g0")
	if err := d.Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	defer d.Stop(t.Context(), "j1g0")
	for question, want := range map[string]string{
		"net":  tk.Job.Subnet.GuestMAC(0),
		"disk": fmt.Sprintf("%x <nil>", diskHead),
	} {
		if got, err := drivertest.Ask(t.Context(), d, "j1g0", question); err != nil || got != want {
			t.Errorf("%s is %q, want %q: %v", question, got, want, err)
		}
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.process(t, 0, "j1g0")))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\nSeccomp:\t2\n", "\nCapEff:\t0000000000000000\n", "\nNoNewPrivs:\t1\n"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("QEMU's status lacks %q", want)
		}
	}
	if strings.Contains(string(status), "\nUid:\t0") {
		t.Error("QEMU runs as root")
	}
}
