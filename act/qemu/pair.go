// This file has guests whose card has two halves: virtio, which always works, and a virtual function of the host's card, which takes the
// traffic while it is plugged in. QEMU unplugs the function when a copy begins, and plugs it in again when the copy fails.

package qemu

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pagurus/act/qemu/qmp"
	"pagurus/fleet"
)

// pairing is what is known of such a guest's card.
type pairing struct {
	MAC     string `json:"mac"` // of both halves
	VLAN    uint16 `json:"vlan"`
	Due     bool   `json:"due,omitempty"`     // the function is to be plugged in, and was not yet
	Trouble string `json:"trouble,omitempty"` // why the guest has virtio alone, for people
}

// QEMU's names of the halves.
const (
	standbyID = "standby"
	primaryID = "primary"
)

// cardOf says to QEMU what it plugs in. Tests have an emulated card instead, which needs nothing of the host.
var cardOf = func(d fleet.Device) map[string]any { return map[string]any{"driver": "vfio-pci", "host": d.Address} }

// on is the pair with what its host could give; nil: nothing.
func (p *pairing) on(function *fleet.Device) *pairing {
	if p == nil {
		return nil
	}
	with := *p
	if with.Due = function != nil; !with.Due {
		with.Trouble = fleet.ErrNoFunction.Error()
	}
	return &with
}

// unplugLimit is how long a guest may take to let go of its function. Linux needs some ten milliseconds, and an emulated
// guest on a busy host some seconds.
const unplugLimit = 30 * time.Second

// letsGo returns an error if the guest has been asked for too long; asked is when it was first.
func letsGo(asked *time.Time, now time.Time) error {
	if asked.IsZero() {
		*asked = now
	}
	if now.Sub(*asked) > unplugLimit {
		return fmt.Errorf("the guest has not let go of its virtual function for %s: its kernel hangs, or does not answer when a PCI device is to be unplugged", unplugLimit)
	}
	return nil
}

// unplugged has a guest's frames go by the bridge, once the guest has let go of its function for a copy.
func (d *Driver) unplugged(g *guest, info migration) {
	if info.Status != stateSetup {
		d.lead(g, false)
	}
}

// lead has a guest's frames go by its function, or by the bridge. A repeated call does nothing.
func (d *Driver) lead(g *guest, byFunction bool) {
	r := g.Remembered()
	from := d.devices.Load()
	if r.Pair == nil || r.Device == "" || r.Pair.Due || r.Pair.Trouble != "" || from == nil {
		return
	}
	g.Mu.Lock()
	known := g.led != nil && *g.led == byFunction
	g.led = &byFunction
	g.Mu.Unlock()
	if known {
		return
	}
	if err := (*from).Lead(g.ID, r.Pair.MAC, r.Pair.VLAN, byFunction); err != nil {
		d.config.Log.Warn("a guest's frames take the wrong way", "guest", g.ID, "by_function", byFunction, "cause", err)
	}
}

// pairOn plugs the function in, if the guest runs here and has none yet. It does not wait, since all of the guest's memory gets pinned
// first. Until then, and after an error, the guest uses virtio.
func (d *Driver) pairOn(g *guest) {
	if r := g.Remembered(); r.Pair == nil || !r.Pair.Due || r.Target {
		return
	}
	_ = d.guests.Go(func() {}, func() { // an error means that the driver is closed: the next one does it
		err := d.plug(d.life, g)
		if d.life.Err() != nil || g.Dead() {
			return
		}
		trouble := ""
		if err != nil {
			trouble = "its virtual function could not be plugged in: " + err.Error()
			d.config.Log.Warn("a guest has virtio alone", "guest", g.ID, "cause", err)
		}
		if err := g.Remember(func(r *record) { r.Pair.Due, r.Pair.Trouble = false, trouble }); err != nil {
			d.config.Log.Warn("a guest's function could not be recorded", "guest", g.ID, "cause", err)
		}
	})
}

// plugLimit is how long the kernel may take to pin a guest's memory.
const plugLimit = 5 * time.Minute

func (d *Driver) plug(ctx context.Context, g *guest) error {
	ctx, cancel := context.WithTimeout(ctx, plugLimit)
	defer cancel()
	from, err := d.awaitDevices(ctx)
	if err != nil {
		return err
	}
	r := g.Remembered()
	dev, err := from.TakeDevice(g.ID, fleet.NetFunction) // the same as before
	if err != nil {
		return err
	}
	q, err := g.monitor(ctx)
	if err != nil {
		return err
	}
	if err := arrivedWhole(ctx, q); err != nil {
		return err
	}
	// Its driver asks for its address as it begins.
	if err := from.Lead(g.ID, r.Pair.MAC, r.Pair.VLAN, true); err != nil {
		return err
	}
	if err = plugInto(ctx, q, cardOf(dev)); err == nil {
		err = g.drives(ctx, from)
	}
	if err != nil && d.life.Err() == nil { // else the next driver goes on
		err = errors.Join(err, from.Lead(g.ID, r.Pair.MAC, r.Pair.VLAN, false))
	}
	return err
}

// driveLimit is how long a guest may take until its driver uses a function that was plugged in: it may have to boot first.
const driveLimit = time.Minute

// drives waits until the guest uses its function. Until then its frames are lost where they come in, since the driver must find its address there
// as it begins.
func (g *guest) drives(ctx context.Context, from Devices) error {
	for begun := time.Now(); ; {
		does, err := from.Drives(g.ID)
		switch {
		case err != nil || does:
			return err
		case time.Since(begun) > driveLimit:
			return fmt.Errorf("nothing in the guest has begun to use it for %s: the kernel of its image has no driver for it, or QEMU could not open it", driveLimit)
		}
		if err := g.wait(ctx, nil, copyPollEvery); err != nil {
			return err
		}
	}
}

// awaitDevices waits until guests get devices of this host: the driver has guests before that.
func (d *Driver) awaitDevices(ctx context.Context) (Devices, error) {
	for {
		if from := d.devices.Load(); from != nil {
			return *from, nil
		}
		select {
		case <-ctx.Done():
			return nil, errors.New("guests have no devices of this host")
		case <-time.After(brief):
		}
	}
}

// arrivedWhole waits until all of a guest's memory is here: what is pinned cannot come later.
func arrivedWhole(ctx context.Context, q *qmp.Client) error {
	for {
		info, err := queryMigrate(ctx, q)
		if err != nil || !info.parted() {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(copyPollEvery):
		}
	}
}

// plugInto plugs a card in, unless it is there already.
func plugInto(ctx context.Context, q *qmp.Client, card map[string]any) error {
	var there []struct {
		Name string `json:"name"`
	}
	if err := q.Do(ctx, "qom-list", map[string]any{"path": "/machine/peripheral"}, &there); err != nil {
		return err
	}
	for _, o := range there {
		if o.Name == primaryID {
			return nil
		}
	}
	card["id"], card["bus"], card["failover_pair_id"] = primaryID, passedPort, standbyID
	return q.Do(ctx, "device_add", card, nil)
}
