package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"pagurus/bench/drive"
	"pagurus/fleet"
)

// injection is a fault of the plan that was injected.
type injection struct {
	fault
	At        time.Time         `json:"at"`
	Move      fleet.MoveID      `json:"move"`
	Migration fleet.MigrationID `json:"migration"`
	Host      fleet.HostID      `json:"host,omitempty"` // the host whose link, agent or QEMU was hit
	Hit       fleet.Phase       `json:"hit"`            // the migration's phase right after, as far as the controller knew
	Became    fleet.Phase       `json:"became,omitempty"`
	Cause     string            `json:"cause,omitempty"`
	Said      string            `json:"said,omitempty"` // the answer to a request
}

// noteEnd notes the migration's end.
func (k *injection) noteEnd(s fleet.Snapshot) {
	if m, ok := s.Migrations[k.Migration]; ok && k.Became == "" && m.Phase.Ended() {
		k.Became, k.Cause = m.Phase, m.Cause
	}
}

const (
	// window is how many faults of the plan wait for their phase at once.
	window = 24
	// injectEvery is between two faults, so that not all hit the first phase seen.
	injectEvery = 150 * time.Millisecond
	// atOnce bounds the faults under way, including lasting ones.
	atOnce = 5
)

// injectAll injects the faults of the plan.
func (c *chaos) injectAll(ctx context.Context) error {
	next, done := 1, 0
	var waiting []fault
	used := map[string]bool{} // one fault for each phase of each migration
	over := make(chan error, atOnce)
	var under sync.WaitGroup
	defer under.Wait()
	busy := 0
	end := time.Now().Add(c.limit)
	for done < c.faults && time.Now().Before(end) {
		for len(waiting) < window && next <= c.faults {
			waiting = append(waiting, planned(c.seed, next, c.kind, c.only))
			next++
		}
		s, news := c.snapshot()
		if busy < atOnce {
			if at, m, ok := match(waiting, s, used, postCopies(s, c.kind)); ok {
				f := waiting[at]
				waiting = slices.Delete(waiting, at, at+1)
				used[string(m.ID)+string(m.Phase)] = true
				busy++
				under.Go(func() {
					err := c.inject(ctx, f, m)
					if errors.Is(err, errMissed) {
						c.forget(f)
						err = missed{f}
					}
					over <- err
				})
				_ = drive.Pause(ctx, injectEvery)
				continue
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-news:
		case <-time.After(time.Second):
		case err := <-over:
			busy--
			var again missed
			switch {
			case errors.As(err, &again):
				waiting = append(waiting, again.fault.later())
			case err != nil:
				return err
			default:
				done++
			}
		}
	}
	return nil
}

// strain impairs a host's link as the fault says, unless the link is already impaired so:
// the end of one would end both.
func (c *chaos) strain(ctx context.Context, f fault, host fleet.HostID) (err error) {
	link := string(f.Kind) + " " + string(host)
	if _, strained := c.links.LoadOrStore(link, true); strained {
		return errMissed
	}
	defer c.links.Delete(link)
	heal, err := impair(f.Kind, host)
	if err == nil {
		_ = drive.Pause(ctx, f.Lasts) // healed even if the run is over
		err = heal()
	}
	if err != nil {
		return fmt.Errorf("%s of %s: %w", f.Kind, host, err)
	}
	return nil
}

// forget removes a fault that found nothing to inject into: it comes again and is counted
// then.
func (c *chaos) forget(f fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.injections = slices.DeleteFunc(c.injections, func(k *injection) bool { return k.Number == f.Number })
}

// missed: a fault came too late for its phase.
type missed struct{ fault }

// Error names the fault.
func (m missed) Error() string { return fmt.Sprintf("fault %d hit nothing", m.Number) }

// match finds the first waiting fault whose phase some migration is in.
func match(waiting []fault, s fleet.Snapshot, used map[string]bool, late bool) (int, fleet.Migration, bool) {
	live := slices.DeleteFunc(slices.Collect(maps.Values(s.Migrations)), func(m fleet.Migration) bool {
		return m.Phase.Ended() || used[string(m.ID)+string(m.Phase)]
	})
	slices.SortFunc(live, func(a, b fleet.Migration) int { return b.Since.Compare(a.Since) }) // the latest entered first
	for i, f := range waiting {
		for _, m := range live {
			if m.Phase == f.when(late) {
				return i, m, true
			}
		}
	}
	return 0, fleet.Migration{}, false
}

// postCopies reports whether guests of a kind can move by post-copy here; otherwise that
// phase never occurs.
func postCopies(s fleet.Snapshot, of fleet.Kind) bool {
	for _, h := range s.Hosts {
		if !h.Facts.Abilities[of].PostCopy {
			return false
		}
	}
	return len(s.Hosts) > 0
}

// inject injects one fault into one migration, and returns when it is repaired, too.
func (c *chaos) inject(ctx context.Context, f fault, m fleet.Migration) error {
	if err := drive.Pause(ctx, f.After); err != nil {
		return err
	}
	k := &injection{fault: f, At: time.Now(), Move: m.Move, Migration: m.ID, Host: m.To}
	switch f.Kind {
	case sourceAgent, sourceQEMU, sourceGuest, sourceCRIU:
		k.Host = m.From
	case linkCut, linkSlow, linkLossy, hostFull:
		if f.Pick%2 == 0 {
			k.Host = m.From
		}
	}
	if f.Kind == controller {
		k.Host = ""
	}
	noted := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		k.Hit = c.last.Migrations[m.ID].Phase
		c.injections = append(c.injections, k)
	}
	switch f.Kind {
	case sourceAgent, targetAgent:
		noted()
		return c.services[string(k.Host)].kill(f.restart(), c.naps(f.Number))
	case controller:
		noted()
		return c.services[head].kill(f.restart(), "")
	case targetQEMU, sourceQEMU, targetMemory, targetGuest, sourceGuest:
		return c.killGuest(ctx, k, m, noted)
	case targetCRIU, sourceCRIU:
		return c.killRuntime(ctx, k, m, noted)
	case hostFull:
		noted()
		return c.fillPlaces(ctx, f, k.Host)
	case noRuntime:
		noted()
		return c.withoutRuntime(ctx, f, k.Host)
	case linkCut, linkSlow, linkLossy:
		noted()
		return c.strain(ctx, f, k.Host)
	case diskFull:
		noted()
		return c.fillDisk(ctx, f)
	case cancelMove:
		noted()
		_, err := c.ask(ctx, fleet.Request{Verb: fleet.CancelMove, Move: m.Move})
		k.Said = errorText(err)
		return nil
	case double:
		noted()
		return c.askTwice(ctx, k, m)
	}
	return fmt.Errorf("unknown fault %q", f.Kind)
}

// restart is how long a daemon is down: mostly as short as possible.
func (f fault) restart() time.Duration {
	if f.Pick%4 != 0 {
		return 0
	}
	return f.Lasts
}

// errorText returns the text of an error; empty: none.
func errorText(err error) string {
	if err != nil {
		return err.Error()
	}
	return "done"
}

// sure are phases in which the guest is at the source and the target's copy does not matter:
// the migration has not begun to switch, or has come back.
var sure = phasesWith(func(t fleet.PhaseTraits) bool { return !t.Committed })

// left reports whether in a phase the target has all of the guest, so that the source's copy
// no longer matters. In post-copy it has not until the fetch is done.
func left(m fleet.Migration, p fleet.Phase) bool {
	return p.Traits().Arrived || p == fleet.Activating && m.Mode != fleet.PostCopy
}

// killGuest kills a QEMU or a whole container, or exhausts its memory, and finds out whether
// the guest was there.
func (c *chaos) killGuest(ctx context.Context, k *injection, m fleet.Migration, noted func()) error {
	c.mark(m.Guest, 1)
	defer c.mark(m.Guest, -1)
	before, err := c.phase(ctx, m.ID)
	if err != nil {
		return err
	}
	if before.Ended() {
		return errMissed
	}
	switch k.Kind {
	case targetGuest, sourceGuest:
		err = meet(ctx, func() []int { return members(m.Guest, k.Host) })
	case targetMemory:
		var ease func() error
		if ease, err = squeeze(m.Guest, m.To, k.Number); err == nil {
			_ = drive.Pause(ctx, k.Lasts)
			err = ease()
		}
	default:
		err = killCopy(m.Guest, k.Host)
	}
	if err != nil {
		return err
	}
	// Whether the guest was there follows for a target from the phase after, and for a
	// source from the phase before.
	after, err := c.phase(ctx, m.ID)
	if err != nil {
		return err
	}
	spared := slices.Contains(sure, after)
	source := k.Kind == sourceQEMU || k.Kind == sourceGuest
	if source {
		spared = left(m, before)
	}
	noted()
	if !spared {
		c.mu.Lock()
		c.checker.expected[m.Guest] = expectedLoss{k.Number, m.ID, source}
		c.mu.Unlock()
	}
	return nil
}

// killRuntime kills a CRIU. During a dump the guest's programs then run on at once, and one
// may find its connection unusable: the guest stays, but its job may end.
func (c *chaos) killRuntime(ctx context.Context, k *injection, m fleet.Migration, noted func()) error {
	if err := meet(ctx, func() []int { return runtimes(k.Host, m.Guest) }); err != nil {
		return err
	}
	noted()
	if k.Kind == sourceCRIU {
		c.mu.Lock()
		c.checker.expected[m.Guest] = expectedLoss{k.Number, m.ID, true}
		c.mu.Unlock()
	}
	return nil
}

// mark notes a fault under way that may end a guest.
func (c *chaos) mark(g fleet.GuestID, by int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.checker.open[g] += by
}

// phaseLimit is how long a killed controller may be away.
const phaseLimit = time.Minute

// phase asks for a migration's phase, now.
func (c *chaos) phase(ctx context.Context, id fleet.MigrationID) (fleet.Phase, error) {
	ctx, cancel := context.WithTimeout(ctx, phaseLimit)
	defer cancel()
	for {
		s, err := c.client.Snapshot(ctx)
		if err == nil {
			return s.Migrations[id].Phase, nil
		}
		if drive.Pause(ctx, scanEvery/4) != nil {
			return "", fmt.Errorf("asking for the phase of %s: %w", id, err)
		}
	}
}

// diskGrace is the time for a controller to notice that its disk was full.
const diskGrace = 10 * time.Second

// fillDisk fills the disk of the controller's store for a while, in one of two cases
// completely.
func (c *chaos) fillDisk(ctx context.Context, f fault) error {
	c.mu.Lock()
	c.disk, c.full = time.Now().Add(f.Lasts+diskGrace), head
	c.mu.Unlock()
	rest := int64(nearlyFull)
	if f.Pick%2 == 0 {
		rest = 0
	}
	empty, err := store.fill(rest)
	if err != nil {
		return err
	}
	_ = drive.Pause(ctx, f.Lasts)
	return empty()
}

// askTwice repeats the request that began a move, whose answer must be the same move, and
// requests another move of its guest.
func (c *chaos) askTwice(ctx context.Context, k *injection, m fleet.Migration) error {
	s, _ := c.snapshot()
	v := s.Moves[m.Move]
	if v.Request != "" {
		a, err := c.ask(ctx, fleet.Request{ID: v.Request, Verb: fleet.Migrate, Guest: m.Guest})
		if err == nil && !slices.Equal(a.Moves, []fleet.MoveID{m.Move}) {
			c.wrong(fmt.Sprintf("the request that began %s was made once more and led to %v", m.Move, a.Moves))
		}
	}
	_, err := c.ask(ctx, fleet.Request{Verb: fleet.Migrate, Guest: m.Guest})
	k.Said = errorText(err)
	return nil
}
