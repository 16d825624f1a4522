package xen

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"pagurus/act/xen/bus"
	"pagurus/fleet"
)

// reserve is the share of its memory that a guest keeps free when it gives memory back: an eighth. If its programs need more, the guest
// takes all of it back itself (cmd/pagurus-guest).
const reserve = 8

// ReclaimMemory has a guest's kernel give free memory to Xen, with its balloon; free is how much is free, in bytes. It returns how many
// bytes of the guest's memory Xen then has for other domains; the guest follows gradually. They are Xen's until ReturnMemory, or until the guest
// moves or needs them: what Xen allows the guest stays as it is. After an error nothing has changed.
func (d *Driver) ReclaimMemory(ctx context.Context, id fleet.GuestID, free int64) (reclaimed int64, err error) {
	all, err := d.list(ctx)
	if err == nil {
		is, there := find(all, d.domain(id))
		if !there {
			return 0, fleet.ErrAbsent
		}
		reclaimed, err = d.aim(id, func(most int64) int64 { return kept(most, is.MiB*mebi, free) })
	}
	if err != nil {
		return 0, fmt.Errorf("reclaim memory of guest %s: %w", id, err)
	}
	return reclaimed, nil
}

// kept is how much a guest keeps that may have most bytes, has some, and needs free of these for nothing.
func kept(most, has, free int64) int64 { return min(most, max(has-free, 0)+most/reserve) }

// ReturnMemory returns all memory to a guest.
func (d *Driver) ReturnMemory(_ context.Context, id fleet.GuestID) error {
	if _, err := d.aim(id, func(most int64) int64 { return most }); err != nil {
		return fmt.Errorf("return memory to guest %s: %w", id, err)
	}
	return nil
}

// aim tells a guest how much memory to have, given the most that it may have, both in bytes. It returns how much less than that it is.
func (d *Driver) aim(id fleet.GuestID, want func(most int64) int64) (less int64, err error) {
	if _, err := d.here(id); err != nil {
		return 0, err
	}
	s, err := bus.OpenStore()
	if err != nil {
		return 0, err
	}
	defer s.Close()
	number, err := s.Named(d.domain(id))
	if err == nil && number == 0 {
		err = errors.New("xenstored has forgotten it")
	}
	if err != nil {
		return 0, err
	}
	memory := fmt.Sprintf("/local/domain/%d/memory/", number)
	text, err := s.Read(memory + "static-max")
	if err != nil {
		return 0, err
	}
	most, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || most <= 0 || most > 1<<40 {
		return 0, fmt.Errorf("xenstored says %q of the most memory that it may have", text)
	}
	aim := want(most<<10) >> 10
	// Not by xl, which would also take from the guest the right to have more.
	return (most - aim) << 10, s.Write(memory+"target", strconv.FormatInt(aim, 10))
}

// Suspend suspends a guest until Resume. Its memory stays where it is, and its clock goes on. It is not an error if the guest is suspended
// already. A guest that is being moved is refused. After an error call Suspend again, or Resume.
func (d *Driver) Suspend(ctx context.Context, id fleet.GuestID) error {
	g, err := d.here(id)
	if err == nil {
		_, err = g.ask(ctx, question{Ask: askSuspend})
	}
	if err != nil {
		return fmt.Errorf("suspend guest %s: %w", id, err)
	}
	return nil
}

// suspends suspends the guest for the host's owner.
func (k *warden) suspends() error {
	k.mu.Lock()
	at, copied := k.status.Stage, k.out != nil && k.out.progress.Failure == ""
	k.mu.Unlock()
	switch {
	case at == yielding:
		return nil
	case copied || at == waiting || at == arriving || at == whole || at == suspended || at == left:
		return errors.New("it is being moved")
	case at != running:
		return fmt.Errorf("it does not run here: it is %s", at)
	}
	if err := k.spec.Tools.run(k.life, "pause", k.spec.Domain); err != nil {
		return err
	}
	k.enters(yielding)
	return nil
}
