package light

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"pagurus/bench/drive"
	"pagurus/fleet"
)

// mapped are programs with many memory mappings, and what a move of each may take of
// their time, in seconds. CRIU takes nine tenths of that.
var mapped = []struct {
	kind  string // as mappings.c has it
	count int
	down  float64
}{{"gaps", 3000, 0.4}, {"gaps", 30000, 2}, {"shared", 3000, 1.5}}

// mappings moves programs with many memory mappings to and fro. Beside what they stood
// still for it keeps what was predicted.
func (l *containerBench) mappings(ctx context.Context) error {
	if err := l.plain(ctx); err != nil {
		return err
	}
	if err := l.compile(ctx, "openmpi", "mappings", "gcc", "-O2", "-static"); err != nil {
		return err
	}
	var errs []error
	for _, p := range mapped {
		name := fmt.Sprintf("%d mappings (%s)", p.count, p.kind)
		if err := l.moveMapped(ctx, name, p.kind, p.count); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		errs = append(errs, l.Mean("seconds that "+name+" downtime", name+" down_s", p.down))
	}
	return errors.Join(errs...)
}

func (l *containerBench) moveMapped(ctx context.Context, name, kind string, count int) (err error) {
	job, err := l.Type(ctx, "run", "--detach", "--kind", "container", "-n", "1", "--mem", "512M", "--image", plainImage, "--on", "host1", "--",
		"./mappings", strconv.Itoa(count), kind)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Discard(ctx, job)) }()
	if err := l.Says(ctx, job, "START"); err != nil {
		return err
	}
	if err := l.awaitMappings(ctx, job, count); err != nil {
		return err
	}
	hosts := []string{"host2", "host1"}
	for i := range 2 * max(l.Repeat, 1) {
		if _, err := l.Type(ctx, "migrate", job+"g0", "--to", hosts[i%2], "--wait"); err != nil {
			return err
		}
		phases, err := l.phases(ctx)
		if err != nil {
			return err
		}
		m := l.Record.Moves[len(l.Record.Moves)-1]
		l.Sample(name+" down_s", m.Cost.Downtime.Seconds())
		said := ""
		if m.Predicted != nil && m.Predicted.Profile != nil && m.Predicted.Profile.Mappings >= count {
			l.Sample(name+" predicted_s", m.Predicted.Downtime.Value.Seconds())
			said = fmt.Sprintf(", predicted %.0f ms", ms(m.Predicted.Downtime.Value))
		}
		fmt.Printf("  %s%s: %s\n", name, said, phases)
	}
	return nil
}

// An agent looks at guests every half minute.
const (
	mappingsLimit = 90 * time.Second
	mappingsPoll  = 500 * time.Millisecond
)

// awaitMappings waits until the host knows of a job's guest that it has so many mappings.
func (l *containerBench) awaitMappings(ctx context.Context, job string, count int) error {
	guest := fleet.GuestID(job + "g0")
	for begun := time.Now(); time.Since(begun) < mappingsLimit; {
		s, err := l.Snapshot(ctx)
		if err != nil {
			return err
		}
		if p := s.Hosts[s.Guests[guest].Home].Facts.Guests[guest].Profile; p != nil && p.Mappings >= count {
			return nil
		}
		if err := drive.Pause(ctx, mappingsPoll); err != nil {
			return err
		}
	}
	return fmt.Errorf("nobody has seen its mappings within %s", mappingsLimit)
}
