package drive

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"pagurus/fleet"
	"pagurus/serve/wire"
)

const (
	// pollEvery is between two looks at a job that is waited for.
	pollEvery = 200 * time.Millisecond
	// beginLimit is how long a job may take to run, and its ranks to speak.
	beginLimit = 2 * time.Minute
	// exitCancelled is what `pagurus wait` exits with for a job that was cancelled.
	exitCancelled = 125
)

// Snapshot is what the controller knows.
func (p Pagurus) Snapshot(ctx context.Context) (fleet.Snapshot, error) {
	where, err := wire.Resolve(wire.Config{}, wire.UserCredentials())
	if err != nil {
		return fleet.Snapshot{}, err
	}
	c, err := wire.Dial(where)
	if err != nil {
		return fleet.Snapshot{}, err
	}
	defer c.Close()
	return c.Snapshot(ctx)
}

// Digest gives that of an image's content.
func (p Pagurus) Digest(ctx context.Context, image string) (string, error) {
	i, err := p.Image(ctx, image)
	return string(i.Digest), err
}

// Image gives what is known of an image.
func (p Pagurus) Image(ctx context.Context, name string) (fleet.Image, error) {
	text, err := p.Type(ctx, "image", "ls", "--json")
	if err != nil {
		return fleet.Image{}, err
	}
	var all []fleet.Image
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return fleet.Image{}, fmt.Errorf("the list of images: %w", err)
	}
	for _, i := range all {
		if i.Name == name {
			return i, nil
		}
	}
	return fleet.Image{}, fmt.Errorf("there is no image %s: `pagurus image ls` lists what there is", name)
}

// Running waits until a job runs.
func (p Pagurus) Running(ctx context.Context, job string) error {
	return Until(ctx, fmt.Sprintf("job %s did not begin to run", job), func() bool {
		s, err := p.Snapshot(ctx)
		return err == nil && s.Jobs[fleet.JobID(job)].State == fleet.JobRunning
	})
}

// Says waits until a job has printed a text.
func (p Pagurus) Says(ctx context.Context, job, text string) error {
	return Until(ctx, fmt.Sprintf("job %s did not say %s", job, text), func() bool {
		out, err := p.Type(ctx, "logs", job)
		return err == nil && strings.Contains(out, text)
	})
}

// Until looks again and again until something is so.
func Until(ctx context.Context, sorry string, so func() bool) error {
	for begun := time.Now(); time.Since(begun) < beginLimit; {
		if so() {
			return nil
		}
		if err := Pause(ctx, pollEvery); err != nil {
			return err
		}
	}
	return errors.New(sorry)
}

// Discard ends a job that has served its purpose, and returns when all of it is
// gone, so that it disturbs nothing that is measured next.
func (p Pagurus) Discard(ctx context.Context, job string) error {
	ctx = context.WithoutCancel(ctx)
	if _, err := p.Type(ctx, "cancel", job); err != nil {
		return err
	}
	_, err := p.Type(ctx, "wait", job)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == exitCancelled {
		return nil
	}
	if err == nil {
		err = errors.New("it had come to its end by itself")
	}
	return fmt.Errorf("ending job %s: %w", job, err)
}

// During runs a job, as "run --detach" with these words, and does something when the job has
// printed a text, or without one when it runs. Then it ends the job, also after an error.
func (p Pagurus) During(ctx context.Context, text string, do func(job string) error, words ...string) (err error) {
	job, err := p.Type(ctx, append([]string{"run", "--detach"}, words...)...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Discard(ctx, job)) }()
	if text == "" {
		err = p.Running(ctx, job)
	} else {
		err = p.Says(ctx, job, text)
	}
	if err != nil {
		return err
	}
	return do(job)
}

// ToEnd runs a job as During does, and lets it come to its end when that was done. It gives what
// the job printed and what the controller knows of it.
func (p Pagurus) ToEnd(ctx context.Context, text string, do func(job string) error, words ...string) (said string, j fleet.Job, err error) {
	job, err := p.Type(ctx, append([]string{"run", "--detach"}, words...)...)
	if err != nil {
		return "", j, err
	}
	if err = p.Says(ctx, job, text); err == nil {
		err = do(job)
	}
	if err == nil {
		_, err = p.Type(ctx, "wait", job)
	}
	if err != nil {
		return "", j, errors.Join(err, p.Discard(ctx, job))
	}
	if said, err = p.Type(ctx, "logs", job); err != nil {
		return "", j, err
	}
	s, err := p.Snapshot(ctx)
	return said, s.Jobs[fleet.JobID(job)], err
}

// LastMove gives the migration of the newest move, which has to have ended and to be of one
// guest, and how long that move took.
func (p Pagurus) LastMove(ctx context.Context) (m fleet.Migration, took time.Duration, err error) {
	s, err := p.Snapshot(ctx)
	if err != nil {
		return m, 0, err
	}
	var last fleet.Move
	for _, m := range s.Moves {
		if m.Begun.After(last.Begun) {
			last = m
		}
	}
	if last.Ended.IsZero() || len(last.Migrations) != 1 {
		return m, 0, errors.New("the last move has not ended, or was of several guests")
	}
	return s.Migrations[last.Migrations[0]], last.Ended.Sub(last.Begun), nil
}
