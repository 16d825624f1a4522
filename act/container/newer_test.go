package container_test

import (
	"errors"
	"path/filepath"
	"testing"

	"pagurus/serve/agent/drivertest"
)

// TestGuestOfANewerAgent: an agent that was put back does not touch the guests of one that is
// two versions newer. The newer one finds them as they were.
func TestGuestOfANewerAgent(t *testing.T) {
	w := newWorld(t)
	d, tk := w.open(t, 0), task("j1g0")
	if err := d.Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	drivertest.Healthy(t, d, tk.Guest.ID)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	record := filepath.Join(w.hosts[0].Run, "containers", string(tk.Guest.ID), "guest.json")
	drivertest.NewerRecord(t, record, w.process(t, 0, tk.Guest.ID), func() error {
		d, err := w.tryOpen(t, 0)
		if err == nil {
			err = d.Close()
		}
		return err
	})
	again := w.reopen(t, 0)
	drivertest.Healthy(t, again, tk.Guest.ID)
	if err := errors.Join(again.Stop(t.Context(), tk.Guest.ID), again.Close()); err != nil {
		t.Error(err)
	}
}
