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

// Moved ends the name of a target that is another one, with a guest moved to another
// host and back as long as the program runs.
const Moved = "-moved"

// kind is what `pagurus run` is told on a target beside what all are.
func (l *Lab) kind(target string) []string { return l.Kinds[strings.TrimSuffix(target, Moved)] }

// followJob looks after a job of its own from when its program begins, until ctx ends. It
// gives why the run is not what the target promises; nil: it is.
func (r *round) followJob(ctx context.Context, target string) error {
	underway := bench.UnderwayOf(ctx)
	for out := filepath.Join(r.lab.Dir, outputOf(0)); ; {
		if _, err := os.Stat(out); err == nil {
			break
		}
		if drive.Pause(ctx, pollEvery) != nil {
			return nil // why it never began the job says itself
		}
	}
	underway.Begins()
	tuned, moved := slices.Contains(r.lab.kind(target), "--tune"), strings.HasSuffix(target, Moved)
	if !tuned && !moved {
		return nil
	}
	job, err := r.ours(ctx)
	if err != nil {
		return unless(ctx, err)
	}
	if tuned {
		underway.Got = r.lab.got(ctx, job)
	}
	if moved {
		underway.Moves, err = r.lab.moves(ctx, job)
	}
	return err
}

// unless leaves out what failed because ctx had ended.
func unless(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// ours is the job that runs the program: `pagurus run` says its name only to people, but
// nobody else has this folder.
func (r *round) ours(ctx context.Context) (fleet.JobID, error) {
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

// Hosts say where they have put the parts of a guest with what they say every few
// seconds: it is asked for so often, so long. A program may have ended before.
const (
	gotEvery = 500 * time.Millisecond
	gotLimit = 10 * time.Second
)

// got is what a job's guests got of their hosts, as far as those say so in time.
func (l *Lab) got(ctx context.Context, job fleet.JobID) (got []bench.Got) {
	for begun := time.Now(); time.Since(begun) < gotLimit; {
		if s, err := l.Snapshot(ctx); err == nil {
			all, whole := gotOf(s, job)
			if got = all; whole {
				break
			}
		}
		if drive.Pause(ctx, gotEvery) != nil {
			break
		}
	}
	return got
}

// gotOf is what a job's guests got, and whether all their hosts have said it.
func gotOf(s fleet.Snapshot, job fleet.JobID) (all []bench.Got, whole bool) {
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

// moves moves the first guest of a job away and back, from now until ctx ends. A run
// in which none of that finished is no run with moves, and it says why.
func (l *Lab) moves(ctx context.Context, job fleet.JobID) (*bench.Moves, error) {
	guest := string(job) + "g0"
	s, err := l.Snapshot(ctx)
	if err != nil {
		return nil, unless(ctx, err)
	}
	home, away := string(s.Guests[fleet.GuestID(guest)].Home), true
	did, last := &bench.Moves{}, errShort
	for ctx.Err() == nil {
		begun := time.Now()
		_, err := l.Type(ctx, l.migrate(guest, home, away)...)
		switch {
		case err == nil:
			did.Finished, away = did.Finished+1, !away
		case l.runs(ctx, job): // else its end has called the move off, which is no failure
			did.Failed, last = did.Failed+1, err
		}
		_ = drive.Pause(ctx, l.Every-time.Since(begun)) // the loop looks at ctx itself
	}
	if did.Finished == 0 {
		return did, fmt.Errorf("no move of its guest finished while it ran: %w", last)
	}
	return did, nil
}

// errShort is why not, if none failed either.
var errShort = errors.New("it ended before the first did, give it more to do")

// migrate is what is typed to move a guest away from its home, or back there. Of a lab
// it is always the same two hosts.
func (l *Lab) migrate(guest, home string, away bool) []string {
	args := []string{"migrate", guest, "--wait"}
	if !away {
		return append(args, "--to", home)
	}
	if i := slices.IndexFunc(l.On, func(h string) bool { return h != home }); i >= 0 {
		return append(args, "--to", l.On[i])
	}
	return args
}

// runs reports whether a job's program has not come to its end.
func (l *Lab) runs(ctx context.Context, job fleet.JobID) bool {
	s, err := l.Snapshot(ctx)
	return err == nil && s.Jobs[job].State == fleet.JobRunning
}
