package qemu_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pagurus/act/qemu"
	"pagurus/fleet"
	"pagurus/serve/agent"
	"pagurus/serve/agent/drivertest"
)

// Apart from cmd, only this place ties the driver to the interfaces that it satisfies.
var (
	_ agent.Driver = (*qemu.Driver)(nil)
	_ agent.Linker = (*qemu.Driver)(nil)
	_ agent.Teller = (*qemu.Driver)(nil)

	_ agent.Checkpointer = (*qemu.Driver)(nil)
)

func TestContract(t *testing.T) {
	w := newWorld(t)
	d := w.open(t, 0)
	can := d.Abilities()
	d.Close()
	c := w.contract()
	if c.Checkpoints = can.Checkpoint; !can.Checkpoint {
		t.Log("without checkpoints:", can.NoCheckpoint)
	}
	drivertest.Run(t, c)
}

// TestGuest: the guest finds its devices, and QEMU has no unnecessary privileges.
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
	for range 100 { // each character of a console takes KVM without hardware virtualization long
		if _, err := drivertest.Ask(t.Context(), d, "j1g0", "shout 3"); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(filepath.Join(w.hosts[0].Run, "guests", "j1g0", "console.log"))
	if err != nil || info.Size() < 200<<10 || info.Size() > 256<<10 {
		t.Errorf("a guest that fills its console left %+v, %v", info, err)
	}
	drivertest.Healthy(t, d, "j1g0")
}

// TestManyRounds: every round of a copy could lose memory dirtied in the one before, as
// QEMU before 9.0 does with even memory sizes.
func TestManyRounds(t *testing.T) {
	const rounds, moves = 10, 3
	w := newWorld(t)
	tk := task("j1g0")
	var hosts [2]*qemu.Driver
	for i := range hosts {
		c := w.config(t.Output(), i)
		c.Converged = func(_ fleet.Limits, seen []fleet.Progress) (bool, error) {
			return seen[len(seen)-1].Rounds >= rounds, nil
		}
		d, err := qemu.Open(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		defer d.Stop(context.Background(), tk.Guest.ID)
		hosts[i] = d
	}
	if err := hosts[0].Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	drivertest.Healthy(t, hosts[0], tk.Guest.ID)
	// Fast enough that QEMU does not converge.
	if _, err := drivertest.Ask(t.Context(), hosts[0], tk.Guest.ID, "dirty 64"); err != nil {
		t.Fatal(err)
	}
	for i := range moves {
		from, to := hosts[i%2], hosts[(i+1)%2]
		tk.Order.Migration = fleet.MigrationID(fmt.Sprintf("m%d", i))
		p := w.move(t, tk, from, to)
		t.Logf("%d rounds, %d MiB sent, %s in all, %s down", p.Rounds, p.SentBytes>>20, p.Elapsed, p.Downtime)
		drivertest.Healthy(t, to, tk.Guest.ID)
	}
}

// TestProbe: the probe's result works, is kept, and is found again when the kept result
// is damaged.
func TestProbe(t *testing.T) {
	w := newWorld(t)
	kept := filepath.Join(w.hosts[0].Run, "accelerator.json")
	var first fleet.Abilities
	for i, spoil := range []func(){
		func() {},
		func() {},
		func() { write(t, kept, []byte("{half")) },
		func() { write(t, kept, []byte(`{"ability":{"accelerator":"none"}}`)) },
	} {
		spoil()
		d := w.open(t, 0)
		a := d.Abilities()
		d.Close()
		if i == 0 {
			first = a
		}
		if a != first || a.Version == "" || a.Accelerator != "kvm" && a.Accelerator != "tcg" {
			t.Errorf("probe %d found %+v, the first %+v", i, a, first)
		}
	}
	for name, change := range map[string]func(*qemu.Config){
		"binary": func(c *qemu.Config) { c.Binary = "no-such-qemu" },
		"user":   func(c *qemu.Config) { c.User = "no-such-user" },
		"root":   func(c *qemu.Config) { c.User = "root" },
		"run":    func(c *qemu.Config) { c.Run = "/proc/none" },
		"fake":   func(c *qemu.Config) { c.Binary = "true"; c.Run = w.hosts[1].Run },
	} {
		c := w.config(t.Output(), 0)
		change(&c)
		if d, err := qemu.Open(t.Context(), c); err == nil {
			d.Close()
			t.Errorf("it opened with a bad %s", name)
		} else {
			t.Log(err)
		}
	}
}

// TestHeldGuestRunsOn: a guest whose copy has converged and that waits for its gang runs
// on, whether it changes much or almost nothing, and then switches at once.
func TestHeldGuestRunsOn(t *testing.T) {
	const wait, looks = 2 * time.Second, 20
	w := newWorld(t)
	tk := task("j1g0")
	tk.Limits = fleet.Limits{AwaitGang: true}
	hosts := w.started(t, tk)
	drivertest.Healthy(t, hosts[0], tk.Guest.ID)
	// If the machine gives a guest no CPU time for a whole pass, nothing is left to send,
	// and QEMU before 8.1 suspends the guest. Once that is chance, and so is a slow switch.
	stopped, slow, chance := 0, 0, 0
	if v := hosts[0].Abilities().Version; strings.HasPrefix(v, "7.") || strings.HasPrefix(v, "8.0") {
		chance = 1
	}
	defer func() {
		if stopped > chance {
			t.Errorf("%d of 3 guests that were held stopped of their own accord", stopped)
		}
		if slow > 1 {
			t.Errorf("%d of 3 guests that were held did not switch at once", slow)
		}
	}()
	for i, dirty := range []string{"", "dirty 1", "dirty 64"} {
		from, to := hosts[i%2], hosts[(i+1)%2]
		tk.Order.Migration = fleet.MigrationID(fmt.Sprintf("m%d", i))
		if dirty != "" {
			if _, err := drivertest.Ask(t.Context(), from, tk.Guest.ID, dirty); err != nil {
				t.Fatal(err)
			}
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
			if err != nil {
				t.Fatalf("%q: %v", dirty, err)
			}
			if facts[tk.Guest.ID].Run != fleet.Running {
				stopped++
				break
			}
			time.Sleep(wait / looks)
		}
		begun := time.Now()
		p, err := from.Switch(t.Context(), tk, func(bool) {})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%q: %d rounds, %d MiB sent, %s down, switched within %s", dirty, p.Rounds, p.SentBytes>>20, p.Downtime, time.Since(begun))
		if time.Since(begun) > 2*time.Second {
			slow++
		}
		if err := to.Resume(t.Context(), tk.Guest.ID); err != nil {
			t.Fatal(err)
		}
		if err := from.Stop(t.Context(), tk.Guest.ID); err != nil {
			t.Fatal(err)
		}
		drivertest.Healthy(t, to, tk.Guest.ID)
	}
}
