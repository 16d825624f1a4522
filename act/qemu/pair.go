// This file has guests whose card has two halves: virtio, which always works, and a virtual function of the host's card, which takes the
// traffic while it is plugged in. The function is unplugged before a copy begins, and plugged in again when the copy fails.

package qemu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"pagurus/act/qemu/qmp"
	"pagurus/fleet"
)

// pairing is what is known of such a guest's card.
type pairing struct {
	MAC     string `json:"mac"` // of both halves
	VLAN    uint16 `json:"vlan"`
	Due     bool   `json:"due,omitempty"`     // the function is to be plugged in, and was not yet, or was not seen to be used
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
var unplugLimit = 30 * time.Second

// askEvery is the time after which a guest is asked again: one that boots hears nothing.
const askEvery = 5 * time.Second

// pairOff has a guest let go of its function, and its frames go by the bridge, before it is copied. QEMU would do it as the copy begins, and
// would plug the function in again at once when the copy fails: then the guest's driver could look for its address before the card has
// it. After an error call pairOn. g.streaming is held, so a function that is just being plugged in is there before.
func (d *Driver) pairOff(ctx context.Context, g *guest, q *qmp.Client) error {
	r := g.Remembered()
	if r.Pair == nil || r.Device == "" {
		return nil
	}
	g.copies.Add(1)
	from, err := d.awaitDevices(ctx)
	if err != nil {
		return err
	}
	if r.Pair.Trouble == "" && !r.Pair.Due {
		if err := g.Remember(func(r *record) { r.Pair.Due = true }); err != nil {
			return err
		}
	}
	if err := g.unplug(ctx, q); err != nil {
		return err
	}
	return from.Lead(g.ID, r.Pair.MAC, r.Pair.VLAN, false)
}

// unplug has a guest let go of its function. After an error it may still have it.
func (g *guest) unplug(ctx context.Context, q *qmp.Client) error {
	begun, asked := time.Now(), time.Time{}
	for {
		there, err := pluggedIn(ctx, q)
		switch {
		case err != nil || !there:
			return err
		case !asked.IsZero() && time.Since(begun) > unplugLimit:
			g.asked.Store(true)
			return fmt.Errorf("the guest has not let go of its virtual function for %s: its kernel hangs, or does not answer when a PCI device is to be unplugged", unplugLimit)
		case time.Since(asked) > askEvery:
			asked = time.Now()
			err := q.Do(ctx, "device_del", map[string]any{"id": primaryID}, nil)
			if refused := (*qmp.Error)(nil); err != nil && !errors.As(err, &refused) {
				return err
			} // refused: it goes just now
		}
		if err := g.wait(ctx, nil, copyPollEvery); err != nil {
			return err
		}
	}
}

// errLeaves: a guest gets no function now, since it is copied to another host, or has left for it. The end of the copy calls pairOn.
var errLeaves = errors.New("the guest is being copied")

// pairOn plugs the function in, if the guest runs here and has none yet. It does not wait, since all of the guest's memory gets pinned
// first. Until then, and after an error, the guest uses virtio. A copy that begins meanwhile waits until the function is in, and no longer.
func (d *Driver) pairOn(g *guest) {
	if !g.Remembered().toPair() {
		return
	}
	_ = d.guests.Go(func() {}, func() { // an error means that the driver is closed: the next one does it
		g.plugging.Lock()
		defer g.plugging.Unlock()
		if !g.Remembered().toPair() {
			return
		}
		err := d.plug(d.life, g)
		if errors.Is(err, errLeaves) || d.life.Err() != nil || g.Dead() {
			return
		}
		trouble := ""
		if err != nil {
			trouble = err.Error()
		}
		d.settlePair(g, trouble)
	})
}

// toPair reports whether the guest is to get its function.
func (r record) toPair() bool { return r.Pair != nil && r.Pair.Due && !r.Target }

// settlePair records that a guest has its function, or why it has none.
func (d *Driver) settlePair(g *guest, trouble string) {
	if trouble != "" {
		d.config.Log.Warn("a guest has virtio alone", "guest", g.ID, "cause", trouble)
	}
	d.tellPair(g, false, trouble)
}

// tellPair records whether a guest is to get its function, and why it has none.
func (d *Driver) tellPair(g *guest, due bool, trouble string) {
	if err := g.Remember(func(r *record) { r.Pair.Due, r.Pair.Trouble = due, trouble }); err != nil {
		d.config.Log.Warn("a guest's function could not be recorded", "guest", g.ID, "cause", err)
	}
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
	copies, err := g.insert(ctx, from)
	for g.unheard(ctx, err) {
		copies, err = g.insert(ctx, from)
	}
	if err == nil {
		err = g.drives(ctx, from, copies)
	}
	if err == nil || errors.Is(err, errLeaves) || d.life.Err() != nil || g.Dead() { // the next driver goes on
		return err
	}
	return d.giveBack(g, from, copies, err)
}

// unheard reports whether an error is that QEMU, which goes on, does not answer in time.
func (g *guest) unheard(ctx context.Context, err error) bool {
	late := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
	return late && ctx.Err() == nil && !g.Dead()
}

// insert plugs the function in, unless it is there or a copy is under way, and says how many copies there were.
func (g *guest) insert(ctx context.Context, from Devices) (copies int64, err error) {
	q, err := g.monitor(ctx)
	if err == nil {
		err = arrivedWhole(ctx, q)
	}
	if err == nil {
		err = g.streaming.Await(ctx, g.Died)
	}
	if err != nil {
		return g.copies.Load(), err
	}
	defer g.streaming.Unlock()
	copies = g.copies.Load()
	if info, err := queryMigrate(ctx, q); err != nil || info.underWay() || g.hasLeft(info) {
		return copies, cmp.Or(err, errLeaves)
	}
	r := g.Remembered()
	dev, err := g.takeFunction(from)
	if err == nil {
		err = from.Lead(g.ID, r.Pair.MAC, r.Pair.VLAN, true) // its driver asks for its address as it begins
	}
	if err == nil {
		err = g.plugInto(ctx, q, cardOf(dev))
	}
	if err != nil {
		err = fmt.Errorf("its virtual function could not be plugged in: %w", err)
	}
	return copies, err
}

// takeFunction has the host give the guest a function, the same as before. Once the guest has ended nobody would give it back.
func (g *guest) takeFunction(from Devices) (fleet.Device, error) {
	g.taking.Lock()
	defer g.taking.Unlock()
	if g.Dead() {
		return fleet.Device{}, errors.New("qemu ended")
	}
	return from.TakeDevice(g.ID, fleet.NetFunction)
}

// driveLimit is how long a guest may take until its driver uses a function that was plugged in: it may have to boot first.
var driveLimit = time.Minute

// errUnused: nothing in the guest uses its function.
var errUnused = errors.New("the kernel of its image has no driver for it, or QEMU could not open it")

// drives waits until the guest uses its function. Until then its frames are lost where they come in, since the driver must find its address there
// as it begins.
func (g *guest) drives(ctx context.Context, from Devices, copies int64) error {
	for begun := time.Now(); ; {
		if g.copies.Load() != copies {
			return errLeaves
		}
		does, err := from.Drives(g.ID)
		switch {
		case err != nil || does:
			return err
		case time.Since(begun) > driveLimit:
			return fmt.Errorf("nothing in the guest has begun to use its virtual function for %s: %w", driveLimit, errUnused)
		}
		if err := g.wait(ctx, nil, copyPollEvery); err != nil {
			return err
		}
	}
}

// giveAgain is the time after which it is tried again to take a function from a guest.
const giveAgain = 10 * time.Second

// errKept: a function could not be given back.
var errKept = errors.New("it was not given back")

// giveBack takes a function from a guest that does not use it, because of an error, so that the guest's memory is not pinned for nothing, and gives it back
// to the host. It goes on until it could, or the guest is copied. It returns the error, with what became of the function, or errLeaves.
func (d *Driver) giveBack(g *guest, from Devices, copies int64, because error) error {
	for had := false; ; {
		err := g.tryGiveBack(d.life, from, copies, because, &had)
		if !errors.Is(err, errKept) || d.life.Err() != nil || g.Dead() {
			return err
		}
		d.tellPair(g, true, err.Error()) // the next driver goes on
		if err := g.wait(d.life, nil, giveAgain); err != nil {
			return err
		}
	}
}

// tryGiveBack is giveBack, once. The guest had the function, as was seen now or before.
func (g *guest) tryGiveBack(ctx context.Context, from Devices, copies int64, because error, had *bool) error {
	g.streaming.Lock()
	defer g.streaming.Unlock()
	if g.copies.Load() != copies {
		return errLeaves
	}
	ctx, cancel := context.WithTimeout(ctx, plugLimit)
	defer cancel()
	r := g.Remembered()
	because = errors.Join(because, from.Lead(g.ID, r.Pair.MAC, r.Pair.VLAN, false))
	q, err := g.monitor(ctx)
	there := false
	if err == nil {
		there, err = pluggedIn(ctx, q)
	}
	*had = *had || there
	if err == nil && !*had && errors.Is(because, errUnused) { // QEMU plugs it in when the guest says that it knows of pairs
		return fmt.Errorf("%w; it is kept for the guest, whose driver of virtio has not asked for it", because)
	}
	if err == nil {
		err = g.unplug(ctx, q)
	}
	if err == nil {
		err = from.ReturnDevice(g.ID)
	}
	if err == nil {
		err = g.Remember(func(r *record) { r.Device = "" })
	}
	if err != nil {
		return fmt.Errorf("%w; %w: %w", because, errKept, err)
	}
	return fmt.Errorf("%w; it was given back to the host", because)
}

// pairGone looks whether the guest has let go of its function. If it did so by itself, the function is given back, and the guest's frames go by the
// bridge. If it was asked to, for a copy that did not wait for so long, it gets the function again.
func (d *Driver) pairGone(g *guest) {
	_ = d.guests.Go(func() {}, func() {
		g.plugging.Lock()
		defer g.plugging.Unlock()
		copies := g.copies.Load()
		r := g.Remembered()
		if r.Pair == nil || r.Pair.Due || r.Pair.Trouble != "" || r.Device == "" {
			return // it was to go
		}
		from, err := d.awaitDevices(d.life)
		if err != nil {
			return
		}
		there, err := g.has(d.life)
		for g.unheard(d.life, err) {
			there, err = g.has(d.life)
		}
		switch {
		case err != nil || there:
			return
		case g.asked.Load():
			d.tellPair(g, true, "")
			d.pairOn(g)
			return
		}
		err = d.giveBack(g, from, copies, errors.New("the guest has let go of its virtual function by itself"))
		if !errors.Is(err, errLeaves) && d.life.Err() == nil && !g.Dead() {
			d.settlePair(g, err.Error())
		}
	})
}

// has reports whether QEMU has the guest's function now.
func (g *guest) has(ctx context.Context) (bool, error) {
	q, err := g.monitor(ctx)
	if err != nil {
		return false, err
	}
	return pluggedIn(ctx, q)
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

// pluggedIn reports whether QEMU has the function.
func pluggedIn(ctx context.Context, q *qmp.Client) (bool, error) {
	var there []struct {
		Name string `json:"name"`
	}
	err := q.Do(ctx, "qom-list", map[string]any{"path": "/machine/peripheral"}, &there)
	for _, o := range there {
		if o.Name == primaryID {
			return true, err
		}
	}
	return false, err
}

// plugInto plugs a card in, unless it is there already. QEMU answers nothing while the kernel pins the guest's memory.
func (g *guest) plugInto(ctx context.Context, q *qmp.Client, card map[string]any) error {
	card["id"], card["bus"], card["failover_pair_id"] = primaryID, passedPort, standbyID
	there, err := pluggedIn(ctx, q)
	if err == nil && !there {
		g.asked.Store(false)
		err = q.Do(ctx, "device_add", card, nil)
	}
	unheard := g.unheard(ctx, err)
	for g.unheard(ctx, err) {
		there, err = pluggedIn(ctx, q)
	}
	if err == nil && unheard && !there {
		err = errors.New("QEMU refused it after all of the guest's memory was to be pinned")
	}
	return err
}
