package monitor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os/exec"
	"reflect"
	"slices"
	"sync"
	"syscall"
	"time"

	"pagurus/decide/health"
	"pagurus/fleet"
	"pagurus/internal/note"
	"pagurus/internal/pause"
)

// lookEvery is the interval of looks at the counters. The shortest time for which one counts is a minute.
const lookEvery = 10 * time.Second

// checkLimit ends a check that hangs, which is a sign itself.
const checkLimit = 30 * time.Second

// HealthConfig configures a Health.
type HealthConfig struct {
	Policy   fleet.HealthPolicy
	Counters func() (all []fleet.Counter, blind []string)
	Check    string        // an administrator's program, absolute; its exit code says whether the host is well; empty: none
	Every    time.Duration // between two checks
	File     string        // keeps what was seen for the next agent
	Log      *slog.Logger
}

// Health watches whether one host may fail. Run must be called once; other methods at any time. A nil Health does nothing.
type Health struct {
	HealthConfig

	mu    sync.Mutex
	watch health.Watch
	blind []string
}

// NewHealth makes a Health and starts nothing.
func NewHealth(c HealthConfig) *Health { return &Health{HealthConfig: c} }

// Seen is what the controller is told; nil: nobody looks.
func (l *Health) Seen() *fleet.Health {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return &fleet.Health{Policy: l.Policy, Signs: l.watch.Signs(now()), Blind: slices.Clone(l.blind)}
}

func now() time.Time { return time.Now().UTC().Round(0) }

// Run watches until ctx ends.
func (l *Health) Run(ctx context.Context) {
	if l == nil || l.Policy == fleet.HealthOff {
		return
	}
	var before health.Watch
	if err := note.Load(l.File, &before); err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.Log.Warn("what was counted of this host's health before is unknown", "cause", err)
		before = health.Watch{}
	}
	l.mu.Lock()
	l.watch = before
	l.mu.Unlock()
	var checks sync.WaitGroup
	defer checks.Wait()
	if l.Check != "" {
		checks.Go(func() { l.checks(ctx) })
	} else {
		l.change(func(w *health.Watch) { w.Check = nil }) // an earlier agent had one
	}
	for {
		all, blind := l.Counters()
		l.change(func(w *health.Watch) { w.TakeCounters(all, now()) })
		l.mu.Lock()
		l.blind = blind
		l.mu.Unlock()
		if pause.For(ctx, lookEvery) != nil {
			return
		}
	}
}

// change changes what was seen, keeps it, and logs new signs.
func (l *Health) change(do func(*health.Watch)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before, signs := l.watch.Clone(), l.watch.Signs(now())
	do(&l.watch)
	if reflect.DeepEqual(before, l.watch) {
		return
	}
	if err := note.Replace(l.File, l.watch); err != nil {
		l.Log.Warn("what was counted of this host's health is not kept for the next agent", "cause", err)
	}
	for _, s := range l.watch.Signs(now()) {
		if !slices.ContainsFunc(signs, func(b fleet.Sign) bool { return b.Kind == s.Kind && b.Where == s.Where }) {
			l.Log.Warn("this host shows a sign of failing", "sign", s.Sentence(), "grave", s.Grave)
		}
	}
}

func (l *Health) checks(ctx context.Context) {
	for {
		says, err := l.check(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil && says == "" {
			says = err.Error()
		}
		l.change(func(w *health.Watch) { w.Checked(err != nil, says, now()) })
		if pause.For(ctx, l.Every) != nil {
			return
		}
	}
}

// mostChecked is how much of a check's output is kept, in bytes.
const mostChecked = 64 << 10

// check runs the program once, with all that it starts in a group that ends with it. It gets no input.
func (l *Health) check(ctx context.Context) (says string, err error) {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, l.Check)
	out := &tail{most: mostChecked}
	cmd.Stdout, cmd.Stderr, cmd.Dir = out, out, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // for what holds its output open
	err = cmd.Run()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return "", fmt.Errorf("%s did not end within %s", l.Check, checkLimit)
	}
	if errors.Is(err, exec.ErrWaitDelay) { // it has ended well
		err = nil
	}
	return out.String(), err
}

// tail keeps the end of what is written.
type tail struct {
	most int
	bytes.Buffer
}

func (t *tail) Write(b []byte) (int, error) {
	n := len(b)
	t.Buffer.Write(b)
	if over := t.Len() - t.most; over > 0 {
		t.Next(over)
	}
	return n, nil
}
