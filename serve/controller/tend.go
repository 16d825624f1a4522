package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"pagurus/fleet"
	"pagurus/internal/pause"
	"pagurus/serve/wire"
)

// This file tends the copies at other controllers: of those that were away, and of those whose disks are full.

// tend brings up controllers that were away, until ctx ends.
func (c *Controller) tend(ctx context.Context) {
	for turn := 0; ; turn++ {
		for _, st := range c.spool.all() {
			st.mu.Lock()
			err := st.findStored()
			there := st.size > 0 || st.ended
			st.mu.Unlock()
			if err == nil && there {
				c.spool.copies.bringUp(st)
			}
		}
		if turn%tidyEvery == 0 {
			jobs := slices.Collect(maps.Keys(c.current.Load().Jobs))
			for _, o := range c.Others() {
				asking, stop := context.WithTimeout(ctx, copyLimit)
				_, _ = o.Client.Held(asking, c.Term(), jobs) // asked again
				stop()
			}
		}
		if pause.For(ctx, tendEvery) != nil {
			return
		}
	}
}

// all are the streams of all jobs that have any file.
func (s *spool) all() (out []*stream) {
	s.mu.Lock()
	jobs := slices.Collect(maps.Keys(s.jobs))
	s.mu.Unlock()
	for _, job := range jobs {
		for _, name := range append(outputs(), fleet.Stdin) {
			if _, err := os.Stat(filepath.Join(s.dir, string(job), name)); err != nil {
				continue
			}
			if st, err := s.stream(job, name); err == nil {
				out = append(out, st)
			}
		}
	}
	return out
}

// noteRoom notes whether a controller keeps copies, or has no room for them.
func (c *copies) noteRoom(name string, err error) {
	refusal, full := (*wire.Error)(nil), ""
	if errors.As(err, &refusal) && refusal.Status == http.StatusInsufficientStorage {
		full = refusal.Reason
	} else if err != nil {
		return // nothing is known
	}
	c.mu.Lock()
	had := c.full[name]
	c.full[name] = full
	c.mu.Unlock()
	switch {
	case full != "" && had == "":
		c.log.Warn("a controller keeps no more copies of output", "controller", name, "cause", full)
	case full == "" && had != "":
		c.log.Info("a controller keeps copies of output again", "controller", name)
	}
}

// crowded says which controllers have no room, for people; empty: all have.
func (c *copies) crowded() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for name, why := range c.full {
		if why != "" {
			out = append(out, fmt.Sprintf("controller %s: %s", name, why))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}

// Crowded says which of the other controllers keep no more copies of output, and why.
func (c *Controller) Crowded() map[string]string {
	if c.spool.copies == nil {
		return nil
	}
	c.spool.copies.mu.Lock()
	defer c.spool.copies.mu.Unlock()
	return maps.Clone(c.spool.copies.full)
}
