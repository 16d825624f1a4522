package qemu_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"pagurus/act/qemu"
	"pagurus/fleet"
	"pagurus/serve/agent/drivertest"
)

// slots is what a test's host has to give: emulated cards, which QEMU unplugs and plugs as it does virtual functions.
type slots struct {
	mu   sync.Mutex
	free int
	has  []fleet.GuestID
	led  []bool // by the function, in the order in which it was asked for
}

func (s *slots) TakeDevice(id fleet.GuestID, want fleet.Passthrough) (fleet.Device, error) {
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
	return nil
}

// Drives: there is nothing to see of an emulated card's driver on the host.
func (s *slots) Drives(fleet.GuestID) (bool, error) { return true, nil }

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

// TestPairMoves: a guest whose card is one of two lets go of it as a copy begins, has it again when the copy fails, and has another
// where it arrives, or virtio alone where there is none, of which its host tells.
func TestPairMoves(t *testing.T) {
	w := newWorld(t)
	qemu.EmulateFunctions()
	var hosts [2]*qemu.Driver
	cards := [2]*slots{{free: 1}, {free: 1}}
	for i := range hosts {
		hosts[i] = w.open(t, i)
		defer hosts[i].Close()
		defer hosts[i].Stop(context.Background(), "j1g0")
		if err := hosts[i].LendDevices(cards[i]); err != nil {
			t.Fatal(err)
		}
	}
	tk := task("j1g0")
	tk.Guest.Need.Device, tk.Job.VLAN = fleet.NetFunction, 101
	if err := hosts[0].Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	mustFind(t, hosts[0], "at first", "2")
	cards[0].mustHaveLed(t, "at first", true)

	tk.Order.Migration, tk.Limits.AwaitGang = "m0", true // so the guest runs on once all is copied
	listen, err := hosts[1].Receive(t.Context(), tk)
	if err != nil {
		t.Fatal(err)
	}
	tk.Listen = listen
	begun := time.Now()
	if err := hosts[0].Copy(t.Context(), tk, func(fleet.Progress) {}); err != nil {
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
