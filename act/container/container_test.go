package container_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"pagurus/act/container"
	"pagurus/fleet"
	"pagurus/serve/agent"
	"pagurus/serve/agent/drivertest"
)

// The only place besides cmd in which the driver's interfaces are asserted.
var (
	_ agent.Driver = (*container.Driver)(nil)
	_ agent.Linker = (*container.Driver)(nil)
	_ agent.Teller = (*container.Driver)(nil)

	_ agent.Checkpointer = (*container.Driver)(nil)
)

func mustAddr(s string) netip.Addr { return netip.MustParseAddr(s) }

func TestContract(t *testing.T) {
	drivertest.Run(t, newWorld(t).contract())
}

// TestHeldGuestRunsOn: a guest that waits with a complete copy for its gang keeps running, and
// the remaining data stays small however long that takes.
func TestHeldGuestRunsOn(t *testing.T) {
	const wait, looks = 2 * time.Second, 20
	w := newWorld(t)
	tk := task("j1g0")
	tk.Limits = fleet.Limits{AwaitGang: true}
	defer w.sweep(t, tk.Guest.ID)
	var hosts [2]*container.Driver
	for i := range hosts {
		hosts[i] = w.open(t, i)
		defer hosts[i].Close()
	}
	if err := hosts[0].Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	drivertest.Healthy(t, hosts[0], tk.Guest.ID)
	for i, dirty := range []string{"dirty 4", "dirty 64"} {
		from, to := hosts[i%2], hosts[(i+1)%2]
		tk.Order.Migration = fleet.MigrationID(fmt.Sprintf("m%d", i))
		if _, err := drivertest.Ask(t.Context(), from, tk.Guest.ID, dirty); err != nil {
			t.Fatal(err)
		}
		listen, err := to.Receive(t.Context(), tk)
		if err != nil {
			t.Fatal(err)
		}
		tk.Listen = listen
		if err := from.Copy(t.Context(), tk, func(fleet.Progress) {}); err != nil {
			t.Fatal(err)
		}
		for range looks {
			facts, err := from.Inspect(t.Context())
			if err != nil || facts[tk.Guest.ID].Run != fleet.Running {
				t.Fatalf("%q: %+v, %v", dirty, facts, err)
			}
			time.Sleep(wait / looks)
		}
		p, err := from.Switch(t.Context(), tk, func(bool) {})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%q: %d rounds, %d MiB sent, %s down", dirty, p.Rounds, p.SentBytes>>20, p.Downtime)
		if p.Rounds < 3 {
			t.Errorf("%q: nobody kept what is left small: %+v", dirty, p)
		}
		asked := time.Now()
		if err := to.Resume(t.Context(), tk.Guest.ID); err != nil {
			t.Fatal(err)
		}
		ran := to.RanAgain(tk.Guest.ID)
		if err := to.Resume(t.Context(), tk.Guest.ID); err != nil {
			t.Fatal(err)
		}
		if ran.Before(asked) || ran.After(time.Now()) || !to.RanAgain(tk.Guest.ID).Equal(ran) {
			t.Errorf("%q: it is said to have run from %s on, then from %s on", dirty, ran, to.RanAgain(tk.Guest.ID))
		}
		if err := from.Stop(t.Context(), tk.Guest.ID); err != nil {
			t.Fatal(err)
		}
		drivertest.Healthy(t, to, tk.Guest.ID)
	}
}
