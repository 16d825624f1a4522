package qemu

import (
	"context"
	"errors"
	"time"

	"pagurus/internal/pause"
)

// retryPauses are before further trials of hardware virtualization that has not answered in
// time. A busy machine may answer later; one that never answers is not tried for ever,
// since a trial takes a CPU.
var retryPauses = []time.Duration{2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 16 * time.Minute, 32 * time.Minute, time.Hour}

// deviceEvery is how often a driver that emulates looks whether the device of hardware virtualization is another one.
const deviceEvery = 10 * time.Second

// emptyEvery is how often a driver that may change its accelerator looks whether guests
// are here.
const emptyEvery = 10 * time.Second

// able is what the driver can do now.
func (d *Driver) able() Ability {
	d.knowing.Lock()
	defer d.knowing.Unlock()
	return d.ability
}

func (d *Driver) setAbility(a Ability) {
	d.knowing.Lock()
	defer d.knowing.Unlock()
	d.ability = a
}

// agree makes the accelerator that of the guests that an earlier agent left, since a guest
// does not move between accelerators. It begins what changes it later.
func (d *Driver) agree() error {
	found := d.able()
	all, err := d.guests.All()
	if err != nil || d.config.Accelerator == Emulation {
		return err
	}
	var better *Ability
	for _, g := range all {
		switch was := g.Remembered().Accelerator; {
		case was == Hardware && found.unsure: // it works, or the guest would not run
			now := found
			now.Accelerator, now.Trouble, now.unsure = Hardware, "", false
			if now, err = d.withCPU(d.life, d.trial(nil), now); err != nil {
				d.config.Log.Warn("virtual machines do not start here until this is mended", "cause", err)
			}
			d.setAbility(now)
			return nil
		case was == Emulation && found.Accelerator == Hardware:
			now := found
			now.Accelerator, now.Trouble = Emulation, found.noCPU
			if found.noCPU == "" {
				now.Trouble = "guests from before hardware virtualization answered are here, which only move between emulating hosts; once they have gone, it is used"
				better = &found
			}
			if now, err = d.withCPU(d.life, d.trial(nil), now); err != nil {
				d.config.Log.Warn("virtual machines do not start here until this is mended", "cause", err)
			}
			d.setAbility(now)
		}
	}
	if better == nil && !found.unsure && found.Accelerator != Emulation {
		return nil
	}
	return d.guests.Go(func() {}, func() {
		switch {
		case better != nil:
			d.change(d.life, *better, emptyEvery)
		case found.unsure:
			d.tryWith(d.life, retryPauses, emptyEvery, d.longTrial)
		default:
			d.whenever(d.life, kvmDevice, deviceEvery, func() bool {
				d.tryWith(d.life, append([]time.Duration{0}, retryPauses...), emptyEvery, d.longTrial)
				return d.able().Accelerator == Hardware
			})
		}
	})
}

// whenever does something each time a device has become another one than it was when hardware virtualization was tried, until that
// says true. While a machine boots its modules are loaded, and their devices get their owners, beside the agent's start and its
// trial; an administrator may load one at any time.
func (d *Driver) whenever(ctx context.Context, device string, every time.Duration, do func() bool) {
	for was := d.able().device; ; {
		now := deviceAccess(device)
		if now != was && do() {
			return
		}
		if was = now; pause.For(ctx, every) != nil {
			return
		}
	}
}

func (d *Driver) longTrial() acceleratorTrial { return d.trial([]time.Duration{coldLimit}) }

// tryWith tries hardware virtualization after each pause until it answers.
func (d *Driver) tryWith(ctx context.Context, pauses []time.Duration, every time.Duration, trial func() acceleratorTrial) {
	for _, wait := range pauses {
		if pause.For(ctx, wait) != nil {
			return
		}
		now, err := d.conditions()
		t, found := trial(), acceleration{}
		t.Sure = true
		if err == nil {
			found, err = findAccelerator(ctx, t)
		}
		if err == nil && ctx.Err() == nil {
			now.Ability = d.able()
			now.Ability, err = d.keepAbility(now, found)
		}
		if err == nil {
			now.Ability = d.usable(ctx, t, now.Ability)
		}
		if ctx.Err() != nil {
			return
		}
		switch {
		case err != nil:
			d.config.Log.Warn("hardware virtualization could not be tried again", "cause", err)
		case now.Ability.Accelerator == Hardware:
			d.change(ctx, now.Ability, every)
			return
		default:
			d.setAbility(now.Ability)
			d.config.Log.Info("hardware virtualization was tried again", "cause", now.Ability.Trouble)
			if !now.Ability.unsure {
				return // that is an answer
			}
		}
	}
}

// withCPU is an ability with what a trial says of the CPU that guests get by its accelerator. An error says that they cannot have it.
func (d *Driver) withCPU(ctx context.Context, t acceleratorTrial, a Ability) (Ability, error) {
	lacks, err := t.gives(ctx, a.Accelerator, d.config.CPU)
	a.lacks, a.noCPU = lacks, ""
	if err != nil {
		a.noCPU = err.Error()
	}
	return a, err
}

// usable is an ability that was found later. Hardware virtualization is not used where guests could not have their CPU by it: those
// that are emulated start and run.
func (d *Driver) usable(ctx context.Context, t acceleratorTrial, found Ability) Ability {
	if found.Accelerator != Hardware {
		return found
	}
	now, err := d.withCPU(ctx, t, found)
	if err != nil {
		found.Accelerator, found.Trouble, found.unsure = Emulation, err.Error(), errors.Is(err, errNoAnswer)
		return found
	}
	return now
}

// change changes the accelerator when no guest is here and none is being made.
func (d *Driver) change(ctx context.Context, to Ability, every time.Duration) {
	for !d.changed(to) {
		if pause.For(ctx, every) != nil {
			return
		}
	}
	d.config.Log.Info("guests run with hardware virtualization from now on")
}

func (d *Driver) changed(to Ability) bool {
	if !d.making.TryLock() {
		return false
	}
	defer d.making.Unlock()
	if all, err := d.guests.All(); err != nil || len(all) > 0 {
		return false
	}
	d.setAbility(to)
	return true
}
