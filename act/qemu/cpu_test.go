package qemu_test

import (
	"context"
	"strings"
	"testing"

	"pagurus/act/qemu"
	"pagurus/serve/agent/drivertest"
)

// TestNoSuchCPU: a host that is told a CPU that guests cannot have there keeps the guests that run, and starts none, saying why. Without
// guests its driver does not open.
func TestNoSuchCPU(t *testing.T) {
	w := newWorld(t)
	d, tk := w.open(t, 0), task("j1g0")
	defer func() {
		d.Stop(context.Background(), tk.Guest.ID)
		d.Close()
	}()
	if err := d.Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	d.Close()
	c := w.config(t.Output(), 0)
	c.CPU = "nosuch"
	told, err := qemu.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	d = told
	drivertest.Healthy(t, d, tk.Guest.ID)
	const why = "guests cannot have the CPU nosuch here; choose another with --cpu"
	if err := d.Start(t.Context(), tk); err != nil {
		t.Errorf("the guest that runs is not here: %v", err)
	}
	if err := d.Start(t.Context(), task("j2g0")); err == nil || !strings.Contains(err.Error(), why) {
		t.Errorf("another starts: %v", err)
	}
	if err := d.Stop(t.Context(), tk.Guest.ID); err != nil {
		t.Fatal(err)
	}
	d.Close()
	if again, err := qemu.Open(t.Context(), c); err == nil || !strings.Contains(err.Error(), why) {
		t.Errorf("without guests it opens: %v", err)
		if err == nil {
			again.Close()
		}
	}
}
