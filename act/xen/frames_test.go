package xen_test

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"pagurus/act/xen"
	"pagurus/serve/agent/drivertest"
	"pagurus/serve/agent/drivertest/frames"
)

// TestFramesWaitForAnArrivingGuest: whatever is sent to a guest's port at the target reaches the guest, in its order: while it is
// suspended, and until its kernel has met its link's new other end.
func TestFramesWaitForAnArrivingGuest(t *testing.T) {
	if os.Getenv(onXen) == "" {
		return
	}
	w := newWorld(t)
	source, target, k := w.copied(t, "f1g0", memory, func(source *xen.Driver) {
		if said, err := drivertest.Ask(t.Context(), source, "f1g0", "listen"); err != nil || said != "<nil>" {
			t.Fatal(said, err)
		}
	})
	const every = 50 * time.Millisecond // fewer than a link keeps
	over, sent := make(chan struct{}), make(chan uint64, 1)
	go func() {
		mac, err := net.ParseMAC(k.Job.Subnet.GuestMAC(0))
		var last uint64
		if err == nil {
			last, err = frames.Send((k.Job.Subnet + 100).TapName(0), mac, every, over)
		}
		if err != nil {
			t.Error(err)
		}
		sent <- last
	}()
	_, err := source.Switch(t.Context(), k, func(bool) {})
	if err == nil {
		err = target.Resume(t.Context(), k.Guest.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	drivertest.Healthy(t, target, k.Guest.ID)
	heard := func() frames.Count {
		said, err := drivertest.Ask(t.Context(), target, k.Guest.ID, "heard")
		if err != nil {
			t.Fatal(err)
		}
		c, err := frames.Parse(said)
		if err != nil {
			t.Fatalf("%s: %v", said, err)
		}
		return c
	}
	for end := time.Now().Add(5 * time.Minute); heard().Came == 0 && time.Now().Before(end); {
		time.Sleep(time.Second)
	}
	time.Sleep(2 * time.Second) // others come, which nothing holds any more
	close(over)
	last := <-sent
	for end := time.Now().Add(time.Minute); heard().Last < last && time.Now().Before(end); {
		time.Sleep(time.Second)
	}
	if c := heard(); c != (frames.Count{Came: int(last), Last: last}) || last < 20 {
		t.Errorf("of %d frames %+v came", last, c)
	}
	if err := errors.Join(source.Stop(t.Context(), k.Guest.ID), target.Stop(t.Context(), k.Guest.ID)); err != nil {
		t.Error(err)
	}
}
