package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"pagurus/bench/drive"
	"pagurus/fleet"
)

// This file has the faults of what one process has for itself: its clock, and its version.

// clocks has controllers' own clocks be set by files, one for each process; empty: nobody sets them.
func (c *chaos) clocks() string {
	if c.whole == nil {
		return ""
	}
	return "controller.clock=ahead:" + c.Dir
}

// mostAhead is by how much a clock is set at most.
const mostAhead = 10 * time.Hour

// setClock sets the clock of a controller by hours, mostly of the one that leads, and back. It may cost no guest.
func (c *chaos) setClock(ctx context.Context, f fault, noted func()) error {
	name := controllerOf(1 + int(f.Pick%wholeControllers))
	if f.Pick%4 > 0 {
		name = c.leader(ctx)
	}
	if name == "" {
		return errMissed
	}
	p, ok := c.services[name].d.Running()
	if !ok {
		return errMissed
	}
	noted()
	by := time.Duration(f.Pick%uint64(2*mostAhead)) - mostAhead
	file := filepath.Join(c.Dir, strconv.Itoa(p.PID))
	if err := os.WriteFile(file, fmt.Append(nil, by.Round(time.Second)), 0o600); err != nil {
		return err
	}
	c.later()
	_ = drive.Pause(ctx, f.Lasts)
	defer c.later()
	return os.Remove(file)
}

// later notes that hosts have time to be heard again, so that what faults cost may be known later.
func (c *chaos) later() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.whole.prolong(time.Now(), 2*wholeLease)
}

// prolong has the faults that may explain a loss do so for longer.
func (w *whole) prolong(at time.Time, by time.Duration) {
	if at.Before(w.all) {
		w.all = w.all.Add(by)
	}
	for host, until := range w.hit {
		if at.Before(until) {
			w.hit[host] = until.Add(by)
		}
	}
}

// otherVersion restarts a daemon as one of another version of the protocol, and back.
func (c *chaos) otherVersion(ctx context.Context, f fault, host fleet.HostID) error {
	s := c.services[string(host)]
	if f.Kind == controllerVersion {
		s = c.services[controllerOf(1+int(f.Pick%wholeControllers))]
	}
	own := filepath.Dir(s.d.Command[0])
	if err := s.replace(c.other, c.naps(f.Number)); err != nil {
		return err
	}
	_ = drive.Pause(ctx, f.Lasts)
	if err := s.replace(own, c.naps(f.Number)); err != nil {
		return errors.Join(fmt.Errorf("going back to %s", own), err)
	}
	return nil
}
