package xen

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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
	reclaimed, err = d.aim(ctx, id, func(most, has int64) int64 { return kept(most, has, free) })
	if err != nil {
		return 0, fmt.Errorf("reclaim memory of guest %s: %w", id, err)
	}
	return reclaimed, nil
}

// kept is how much a guest keeps that may have most bytes, has some, and needs free of these for nothing.
func kept(most, has, free int64) int64 { return min(most, max(has-free, 0)+most/reserve) }

// ReturnMemory returns all memory to a guest, as far as Xen has it by then: what another domain has got the guest's kernel goes on asking for.
func (d *Driver) ReturnMemory(ctx context.Context, id fleet.GuestID) error {
	if _, err := d.aim(ctx, id, func(most, _ int64) int64 { return most }); err != nil {
		return fmt.Errorf("return memory to guest %s: %w", id, err)
	}
	return nil
}

// aim tells a guest how much memory to have, given the most that it may have, and what it has, all in bytes. It returns how much less than the most that is.
func (d *Driver) aim(ctx context.Context, id fleet.GuestID, want func(most, has int64) int64) (less int64, err error) {
	if _, err := d.here(id); err != nil {
		return 0, err
	}
	all, err := d.list(ctx)
	if err != nil {
		return 0, err
	}
	is, there := find(all, d.domain(id))
	if !there {
		return 0, fleet.ErrAbsent
	}
	s, err := bus.OpenStore()
	if err != nil {
		return 0, err
	}
	defer s.Close()
	memory := fmt.Sprintf("/local/domain/%d/memory/", is.Number)
	text, err := s.Read(memory + "static-max")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, errors.New("xenstored has forgotten it, as when it was started again: the guest keeps the memory that it has")
	}
	if err != nil {
		return 0, err
	}
	most, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || most <= 0 || most > 1<<40 {
		return 0, fmt.Errorf("xenstored says %q of the most memory that it may have", text)
	}
	aim := want(most<<10, is.MiB*mebi) >> 10
	// Not by xl, which would also take from the guest the right to have more.
	return (most - aim) << 10, s.Write(memory+"target", strconv.FormatInt(aim, 10))
}

// Suspend suspends a guest until Resume. Its memory stays where it is, and its clock goes on. It is not an error if the guest is suspended
// already. A guest that is being moved is refused. After an error call Suspend again, or Resume.
func (d *Driver) Suspend(ctx context.Context, id fleet.GuestID) error {
	g, err := d.here(id)
	if err == nil {
		_, err = g.ask(context.WithoutCancel(ctx), question{Ask: askSuspend}) // xl would go on behind the caller's back
	}
	if err != nil {
		return fmt.Errorf("suspend guest %s: %w", id, err)
	}
	return nil
}

// suspends suspends the guest for the host's owner.
func (k *warden) suspends() error {
	k.mu.Lock()
	at, copied := k.status.Stage, k.out != nil
	if copied {
		select {
		case <-k.out.over:
			copied = false
		default:
		}
	}
	k.mu.Unlock()
	switch {
	case at == yielding:
		return nil
	case copied || at == waiting || at == arriving || at == whole || at == suspended || at == left:
		return errors.New("it is being moved")
	case at != running:
		return fmt.Errorf("it does not run here: it is %s", at)
	}
	if err := k.spec.Tools.pause(k.life, k.spec.Domain, true); err != nil {
		return err
	}
	k.enters(yielding)
	return nil
}

// pause has Xen run a domain no more, or again. Xen counts how often it was told to, so what xl says of the domain decides, and not what was done before.
func (t tools) pause(ctx context.Context, name string, on bool) error {
	verb := map[bool]string{true: "pause", false: "unpause"}[on]
	for range mostPauses {
		all, err := t.list(ctx)
		if err != nil {
			return err
		}
		d, is := find(all, name)
		switch {
		case !is:
			return errors.New("its domain is gone")
		case strings.Contains(d.State, "p") == on:
			return nil
		}
		if err := t.run(ctx, verb, strconv.Itoa(d.Number)); err != nil { // by its number: xenstored may have forgotten its name
			return err
		}
	}
	return fmt.Errorf("xl cannot %s it", verb)
}

// mostPauses is more often than a domain is told to pause.
const mostPauses = 8
