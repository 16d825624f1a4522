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
	text, err := p.Type(ctx, "image", "ls", "--json")
	if err != nil {
		return "", err
	}
	var all []struct{ Name, Digest string }
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return "", fmt.Errorf("the list of images: %w", err)
	}
	for _, i := range all {
		if i.Name == image {
			return i.Digest, nil
		}
	}
	return "", fmt.Errorf("there is no image %s: `pagurus image ls` lists what there is", image)
}

// Running waits until a job runs.
func (p Pagurus) Running(ctx context.Context, job string) error {
	return until(ctx, fmt.Sprintf("job %s did not begin to run", job), func() bool {
		s, err := p.Snapshot(ctx)
		return err == nil && s.Jobs[fleet.JobID(job)].State == fleet.JobRunning
	})
}

// Says waits until a job has printed a text.
func (p Pagurus) Says(ctx context.Context, job, text string) error {
	return until(ctx, fmt.Sprintf("job %s did not say %s", job, text), func() bool {
		out, err := p.Type(ctx, "logs", job)
		return err == nil && strings.Contains(out, text)
	})
}

// Until looks again and again until something is so.
func (Pagurus) Until(ctx context.Context, sorry string, so func() bool) error {
	return until(ctx, sorry, so)
}

// until looks again and again until something is so.
func until(ctx context.Context, sorry string, so func() bool) error {
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

// LastMove gives the newest move, which has to have ended.
func (p Pagurus) LastMove(ctx context.Context) (last fleet.Move, err error) {
	s, err := p.Snapshot(ctx)
	if err != nil {
		return last, err
	}
	for _, m := range s.Moves {
		if m.Begun.After(last.Begun) {
			last = m
		}
	}
	if last.Ended.IsZero() {
		return last, errors.New("the last move has not ended")
	}
	return last, nil
}
