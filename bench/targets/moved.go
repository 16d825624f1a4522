package targets

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"pagurus/bench"
	"pagurus/bench/drive"
	"pagurus/fleet"
)

// Moved is the suffix of targets with moves: one guest moves to another host and back as
// long as the program runs.
const Moved = "-moved"

// kind returns the flags of `pagurus run` for a target, beside those for all targets.
func (l *Lab) kind(target string) []string { return l.Kinds[strings.TrimSuffix(target, Moved)] }

// followJob follows the round's job from the start of its program until ctx ends: it moves
// its guest, or records its layout. An error says why the run does not count for the
// target.
func (r *round) followJob(ctx context.Context, target string) error {
	underway := bench.UnderwayOf(ctx)
	for out := filepath.Join(r.lab.Dir, outputOf(0)); ; {
		if _, err := os.Stat(out); err == nil {
			break
		}
		if drive.Pause(ctx, pollEvery) != nil {
			return nil // the job itself reports why it never began
		}
	}
	underway.Begins()
	tuned, moved := slices.Contains(r.lab.kind(target), "--tune"), strings.HasSuffix(target, Moved)
	if !tuned && !moved {
		return nil
	}
	job, err := r.findJob(ctx)
	if err != nil {
		return unlessEnded(ctx, err)
	}
	if tuned {
		underway.Got = r.lab.layouts(ctx, job)
	}
	if moved {
		underway.Moves, err = r.lab.moveToAndFro(ctx, job)
	}
	return err
}

// unlessEnded returns err, or nil if ctx has ended, which explains the failure.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// findJob finds the job that runs the program. `pagurus run` prints the ID for people only,
// but no other job has this folder.
func (r *round) findJob(ctx context.Context) (fleet.JobID, error) {
	s, err := r.lab.Snapshot(ctx)
	if err != nil {
		return "", err
	}
	for id, j := range s.Jobs {
		if j.Spec.Dir == r.lab.Dir && j.State != fleet.JobEnded && string(id) != r.job {
			return id, nil
		}
	}
	return "", fmt.Errorf("the controller knows of no job in %s", r.lab.Dir)
}

// Hosts report the layout of a guest with their facts, every few seconds. These are the
// interval and the limit of waiting for it. A program may end earlier.
const (
	layoutsEvery = 500 * time.Millisecond
	layoutsLimit = 10 * time.Second
)

// layouts returns the layouts of a job's guests, as far as hosts report them in time.
func (l *Lab) layouts(ctx context.Context, job fleet.JobID) (got []bench.Got) {
	for begun := time.Now(); time.Since(begun) < layoutsLimit; {
		if s, err := l.Snapshot(ctx); err == nil {
			all, whole := layoutsOf(s, job)
			if got = all; whole {
				break
			}
		}
		if drive.Pause(ctx, layoutsEvery) != nil {
			break
		}
	}
	return got
}

// layoutsOf returns the layouts of a job's guests, and whether all hosts have reported them.
func layoutsOf(s fleet.Snapshot, job fleet.JobID) (all []bench.Got, whole bool) {
	var guests []fleet.Guest
	for _, g := range s.Guests {
		if g.Job == job && g.Shape != nil {
			guests = append(guests, g)
		}
	}
	slices.SortFunc(guests, func(a, b fleet.Guest) int { return a.Index - b.Index })
	whole = len(guests) > 0
	for _, g := range guests {
		at := s.Hosts[g.Home].Facts.Guests[g.ID].Layout
		whole = whole && at != nil
		all = append(all, bench.Got{Guest: fleet.GuestName(g.Index), Host: string(g.Home), Shape: *g.Shape, Layout: at})
	}
	return all, whole
}

// moveToAndFro moves the first guest of a job away and back until ctx ends. It fails if no
// move finished: the run is then none with moves.
func (l *Lab) moveToAndFro(ctx context.Context, job fleet.JobID) (*bench.Moves, error) {
	guest := string(job) + "g0"
	s, err := l.Snapshot(ctx)
	if err != nil {
		return nil, unlessEnded(ctx, err)
	}
	home, away := string(s.Guests[fleet.GuestID(guest)].Home), true
	did, last := &bench.Moves{}, errShort
	for ctx.Err() == nil {
		begun := time.Now()
		_, err := l.Type(ctx, l.migrateArgs(guest, home, away)...)
		switch {
		case err == nil:
			did.Finished, away = did.Finished+1, !away
		case l.runs(ctx, job): // otherwise the job's end cancelled the move, which is no failure
			did.Failed, last = did.Failed+1, err
		}
		_ = drive.Pause(ctx, l.Every-time.Since(begun)) // the loop looks at ctx itself
	}
	if did.Finished == 0 {
		return did, fmt.Errorf("no move of its guest finished while it ran: %w", last)
	}
	return did, nil
}

// errShort is the reason if no move failed either.
var errShort = errors.New("it ended before the first did, give it more to do")

// migrateArgs returns the command that moves a guest away from its home, or back there. In
// a lab it is always the same two hosts.
func (l *Lab) migrateArgs(guest, home string, away bool) []string {
	args := []string{"migrate", guest, "--wait"}
	if !away {
		return append(args, "--to", home)
	}
	if i := slices.IndexFunc(l.On, func(h string) bool { return h != home }); i >= 0 {
		return append(args, "--to", l.On[i])
	}
	return args
}

// runs reports whether a job's program is still running.
func (l *Lab) runs(ctx context.Context, job fleet.JobID) bool {
	s, err := l.Snapshot(ctx)
	return err == nil && s.Jobs[job].State == fleet.JobRunning
}
