package qemu_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pagurus/act/qemu"
	"pagurus/fleet"
	"pagurus/internal/testkit"
	"pagurus/serve/agent/drivertest"
)

// slots is what a test's host has to give: emulated cards, which QEMU unplugs and plugs as it does virtual functions.
type slots struct {
	mu   sync.Mutex
	free int
	has  []fleet.GuestID
	led  []bool // by the function, in the order in which it was asked for

	idle   bool                        // guests do not use what they have
	looks  chan struct{}               // whether they do is known when it is closed; nil: at once
	passes chan struct{}               // a function is led to when it is closed; nil: at once
	takes  func()                      // called when a guest is to have a function; nil: nothing
	leads  func(byFunction bool) error // called when frames were led; nil: nothing
}

func (s *slots) TakeDevice(id fleet.GuestID, want fleet.Passthrough) (fleet.Device, error) {
	s.mu.Lock()
	takes := s.takes
	s.mu.Unlock()
	if takes != nil {
		takes()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case slices.Contains(s.has, id):
	case s.free == 0:
		return fleet.Device{}, fleet.ErrNoFunction
	default:
		s.free--
		s.has = append(s.has, id)
	}
	return fleet.Device{Address: fleet.Subnet(1).GuestMAC(0)}, nil // an emulated card has no address on the host's bus
}

func (s *slots) ReturnDevice(id fleet.GuestID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.has, id); i >= 0 {
		s.free, s.has = s.free+1, slices.Delete(s.has, i, i+1)
	}
	return nil
}

func (s *slots) Borrowers() ([]fleet.GuestID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.has), nil
}

func (s *slots) Lead(_ fleet.GuestID, mac string, vlan uint16, byFunction bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if mac != fleet.Subnet(1).GuestMAC(0) || vlan != 101 {
		return fmt.Errorf("asked for %s of VLAN %d", mac, vlan)
	}
	s.led = append(s.led, byFunction)
	passes, leads := s.passes, s.leads
	s.mu.Unlock()
	defer s.mu.Lock()
	if byFunction && passes != nil {
		<-passes
	}
	if leads != nil {
		return leads(byFunction)
	}
	return nil
}

// set changes what the host does from now on.
func (s *slots) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// left is how many cards are free.
func (s *slots) left() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.free
}

// Drives: there is nothing to see of an emulated card's driver on the host.
func (s *slots) Drives(fleet.GuestID) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if looks := s.looks; looks != nil {
		s.mu.Unlock()
		<-looks
		s.mu.Lock()
	}
	return !s.idle, nil
}

// times is how often frames were led elsewhere since mustHaveLed was called.
func (s *slots) times() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.led)
}

// mustHaveLed compares what was asked for since the last call.
func (s *slots) mustHaveLed(t *testing.T, stage string, want ...bool) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.led, want) {
		t.Errorf("%s: frames were led to the function %v, want %v", stage, s.led, want)
	}
	s.led = nil
}

// mustFind waits until the guest finds so many cards on its bus.
func mustFind(t *testing.T, d *qemu.Driver, stage, want string) {
	t.Helper()
	found := ""
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		got, err := drivertest.Ask(t.Context(), d, "j1g0", "cards")
		if err != nil {
			t.Fatalf("%s: %v", stage, err)
		}
		if found = got; got == want {
			return
		}
	}
	t.Fatalf("%s: the guest finds %s cards, not %s", stage, found, want)
}

// paired are two hosts with a card each, and a guest on the first that is to have one of two halves.
func paired(t *testing.T) (*world, *[2]*qemu.Driver, [2]*slots, fleet.Task) {
	testkit.Emulated(t, "an emulated card needs a driver, which is a module")
	w := newWorld(t)
	qemu.EmulateFunctions()
	var hosts [2]*qemu.Driver
	cards := [2]*slots{{free: 1}, {free: 1}}
	for i := range hosts {
		hosts[i] = w.open(t, i)
		t.Cleanup(func() {
			if err := hosts[i].Stop(context.Background(), "j1g0"); err != nil {
				t.Error(err)
			}
			hosts[i].Close()
		})
		if err := hosts[i].LendDevices(cards[i]); err != nil {
			t.Fatal(err)
		}
	}
	tk := task("j1g0")
	tk.Guest.Need.Device, tk.Job.VLAN = fleet.NetFunction, 101
	return w, &hosts, cards, tk
}

// copyHeld copies a guest, which runs on once all is copied.
func copyHeld(t *testing.T, tk fleet.Task, move fleet.MigrationID, from, to *qemu.Driver) (fleet.Task, error) {
	t.Helper()
	tk = receiveHeld(t, tk, move, to)
	return tk, from.Copy(t.Context(), tk, func(fleet.Progress) {})
}

// receiveHeld prepares such a copy.
func receiveHeld(t *testing.T, tk fleet.Task, move fleet.MigrationID, to *qemu.Driver) fleet.Task {
	t.Helper()
	tk.Order.Migration, tk.Limits.AwaitGang = move, true
	listen, err := to.Receive(t.Context(), tk)
	if err != nil {
		t.Fatal(err)
	}
	tk.Listen = listen
	return tk
}

// mustStandBy waits until a host says why its guest has virtio alone.
func mustStandBy(t *testing.T, d *qemu.Driver, want string) {
	t.Helper()
	said := ""
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		facts, err := d.Inspect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if said = facts["j1g0"].Standby; strings.Contains(said, want) && (want == "") == (said == "") {
			return
		}
	}
	t.Fatalf("it says %q, not %q", said, want)
}

// TestPairMoves: a guest whose card is one of two lets go of it as a copy begins, has it again when the copy fails, and has another
// where it arrives, or virtio alone where there is none, of which its host tells.
func TestPairMoves(t *testing.T) {
	w, hosts, cards, tk := paired(t)
	if err := hosts[0].Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	mustFind(t, hosts[0], "at first", "2")
	cards[0].mustHaveLed(t, "at first", true)

	begun := time.Now()
	if _, err := copyHeld(t, tk, "m0", hosts[0], hosts[1]); err != nil {
		t.Fatal(err)
	}
	t.Logf("copied in %s", time.Since(begun))
	mustFind(t, hosts[0], "copied", "1")
	cards[0].mustHaveLed(t, "copied", false)
	if err := hosts[0].Resume(t.Context(), "j1g0"); err != nil {
		t.Fatal(err)
	}
	mustFind(t, hosts[0], "given up", "2")
	cards[0].mustHaveLed(t, "given up", true)
	if err := hosts[1].Stop(t.Context(), "j1g0"); err != nil {
		t.Fatal(err)
	}

	tk.Order.Migration, tk.Limits.AwaitGang = "m1", false
	p := w.move(t, tk, hosts[0], hosts[1])
	mustFind(t, hosts[1], "moved", "2")
	t.Logf("down for %s", p.Downtime)
	cards[0].mustHaveLed(t, "left", false)
	cards[1].mustHaveLed(t, "arrived", true)
	drivertest.Healthy(t, hosts[1], "j1g0")

	cards[0].free = 0
	tk.Order.Migration, tk.Limits.Mode = "m2", fleet.PostCopy
	w.move(t, tk, hosts[1], hosts[0])
	mustFind(t, hosts[0], "moved to a host without", "1")
	facts, err := hosts[0].Inspect(t.Context())
	if got := facts["j1g0"].Standby; err != nil || got != fleet.ErrNoFunction.Error() {
		t.Errorf("it says %q, %v", got, err)
	}
	drivertest.Healthy(t, hosts[0], "j1g0")
}

// TestPairWhenCopiesFail: a copy that fails by itself leaves a guest on virtio until its host gives it the function again, with its address
// first; so does one whose target cannot be reached.
func TestPairWhenCopiesFail(t *testing.T) {
	_, hosts, cards, tk := paired(t)
	if err := hosts[0].Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	mustFind(t, hosts[0], "at first", "2")
	cards[0].mustHaveLed(t, "at first", true)
	lost, err := copyHeld(t, tk, "m0", hosts[0], hosts[1])
	if err != nil {
		t.Fatal(err)
	}
	mustFind(t, hosts[0], "copied", "1")
	if err := hosts[1].Stop(t.Context(), "j1g0"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * time.Second) // QEMU notices that its target is gone
	mustFind(t, hosts[0], "after its target has gone", "1")
	cards[0].mustHaveLed(t, "after its target has gone", false)
	if err := hosts[0].Resume(t.Context(), "j1g0"); err != nil {
		t.Fatal(err)
	}
	mustFind(t, hosts[0], "resumed", "2")
	cards[0].mustHaveLed(t, "resumed", true)

	lost.Order.Migration = "m1" // to where nobody listens any more
	if err := hosts[0].Copy(t.Context(), lost, func(fleet.Progress) {}); err == nil {
		t.Fatal("it was copied to nobody")
	} else {
		t.Log(err)
	}
	mustFind(t, hosts[0], "not copied", "2")
	cards[0].mustHaveLed(t, "not copied", false, true)
	mustStandBy(t, hosts[0], "")
}

// TestPairPluggedWhileCopied: a copy waits for a function that is just being plugged in, and not until its guest uses it. If the copy is given
// up, the function is plugged in again.
func TestPairPluggedWhileCopied(t *testing.T) {
	w, hosts, cards, tk := paired(t)
	passes := make(chan struct{})
	cards[0].passes, cards[0].idle = passes, true
	if err := hosts[0].Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	mustFind(t, hosts[0], "before it is plugged in", "1")
	held, copied := receiveHeld(t, tk, "m0", hosts[1]), make(chan error, 1)
	go func() { copied <- hosts[0].Copy(t.Context(), held, func(fleet.Progress) {}) }()
	select {
	case err := <-copied:
		t.Fatalf("it was copied while its function was being plugged in: %v", err)
	case <-time.After(5 * time.Second): // without waiting it takes less than one
	}
	cards[0].set(func() { cards[0].passes = nil })
	close(passes)
	if err := <-copied; err != nil {
		t.Fatal(err)
	}
	mustFind(t, hosts[0], "copied", "1")
	cards[0].mustHaveLed(t, "copied", true, false)
	if err := hosts[0].Resume(t.Context(), "j1g0"); err != nil {
		t.Fatal(err)
	}
	mustFind(t, hosts[0], "given up", "2")
	cards[0].mustHaveLed(t, "given up", true)
	if err := hosts[1].Stop(t.Context(), "j1g0"); err != nil {
		t.Fatal(err)
	}

	tk.Order.Migration = "m1"
	w.move(t, tk, hosts[0], hosts[1]) // while it is awaited that the guest uses its function
	mustFind(t, hosts[1], "moved", "2")
	cards[0].mustHaveLed(t, "left", false)
	cards[1].mustHaveLed(t, "arrived", true)
	mustStandBy(t, hosts[1], "")
	drivertest.Healthy(t, hosts[1], "j1g0")
}

// TestPairUnused: a function that nothing in the guest uses is taken from it and given back to the host, which says so; the guest goes on
// by virtio, and moves.
func TestPairUnused(t *testing.T) {
	w, hosts, cards, tk := paired(t)
	cards[0].idle, cards[0].looks = true, make(chan struct{})
	qemu.HurryDrivers(t, time.Millisecond) // once it is found
	if err := hosts[0].Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	mustFind(t, hosts[0], "at first", "2")
	close(cards[0].looks)
	mustStandBy(t, hosts[0], "it was given back to the host")
	mustFind(t, hosts[0], "given back", "1")
	cards[0].mustHaveLed(t, "given back", true, false)
	if cards[0].left() != 1 {
		t.Error("no other guest can have its function")
	}
	tk.Order.Migration = "m0"
	w.move(t, tk, hosts[0], hosts[1])
	mustFind(t, hosts[1], "moved", "2")
	cards[0].mustHaveLed(t, "left")
	mustStandBy(t, hosts[1], "")
	drivertest.Healthy(t, hosts[1], "j1g0")
}

// TestPairCopyGivenUpAtOnce: a copy that waits for a function that is being plugged in ends when its order does, and when its guest does.
func TestPairCopyGivenUpAtOnce(t *testing.T) {
	_, hosts, cards, tk := paired(t)
	passes := make(chan struct{})
	cards[0].passes = passes
	defer close(passes)
	if err := hosts[0].Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	mustFind(t, hosts[0], "before it is plugged in", "1")
	held, copied := receiveHeld(t, tk, "m0", hosts[1]), make(chan error, 1)
	for _, end := range []func(cancel func()) error{
		func(cancel func()) error { cancel(); return nil },
		func(func()) error { return hosts[0].Stop(t.Context(), "j1g0") },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { copied <- hosts[0].Copy(ctx, held, func(fleet.Progress) {}) }()
		select {
		case err := <-copied:
			t.Fatalf("it does not wait for the function: %v", err)
		case <-time.After(2 * time.Second):
		}
		if err := end(cancel); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-copied:
			if err == nil {
				t.Fatal("it was copied")
			}
			t.Log(err)
		case <-time.After(30 * time.Second):
			t.Fatal("it waits on")
		}
	}
}
