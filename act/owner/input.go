package owner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// input tells when the last key or mouse or ssh input came: logind knows who is
// there and on which terminal, and desktops tell it when nobody is. Without it
// there are the times of terminals, which say nothing of desktops, and the
// interrupts of the keyboard controller, which not every keyboard is at. The
// files of input devices say nothing: no driver sets their times.
type input struct {
	root    string // "/"
	logind  *logind
	devices map[string]*mark
	clicks  mark // of the keyboard controller's interrupts
	last    time.Time
}

// mark is a device as last seen. What counts is that its time changes, by this
// process's own clock: the machine's may jump.
type mark struct {
	value int64
	seen  bool
}

func openInput(root string) *input {
	return &input{root: root, logind: &logind{}, devices: map[string]*mark{}}
}

func (i *input) close() error { return i.logind.close() }

// globs are the terminals.
var globs = []string{"dev/tty[1-9]*", "dev/pts/[0-9]*"}

// idle is how long ago the last input came; nil: nothing tells. With an error
// there may be input that it does not know of.
func (i *input) idle(ctx context.Context) (*time.Duration, error) {
	now := time.Now()
	people, err := i.logind.sessions(ctx, now)
	if err == nil {
		paths := make([]string, 0, len(people))
		for _, p := range people {
			switch {
			case p.idleSince.IsZero() && p.tty == "":
				i.touch(now) // a desktop that does not say it is idle
			case !p.idleSince.IsZero():
				i.touch(p.idleSince)
			default:
				paths = append(paths, filepath.Join(i.root, "dev", p.tty))
			}
		}
		i.scanDevices(paths, now)
		return i.since(now), nil
	}
	found := false
	for _, pattern := range globs {
		paths, _ := filepath.Glob(filepath.Join(i.root, pattern)) // a constant pattern is well-formed
		found = i.scanDevices(paths, now) || found
	}
	found = i.interrupts(now) || found
	if !found {
		return nil, fmt.Errorf("no logind (%w), and neither a terminal nor a keyboard controller", err)
	}
	return i.since(now), fmt.Errorf("no logind (%w), so only terminals and a portable's own keyboard are sampled", err)
}

// never is how long nobody has been there of whom nothing was ever seen.
const never = 365 * 24 * time.Hour

// since is how long ago the last input came that is known of.
func (i *input) since(now time.Time) *time.Duration {
	idle := never
	if !i.last.IsZero() {
		idle = max(0, now.Sub(i.last))
	}
	return &idle
}

func (i *input) touch(at time.Time) {
	if at.After(i.last) {
		i.last = at
	}
}

// scanDevices notes which devices were used since the last look. The first look at a
// device takes its time at its word, unless that is in the future.
func (i *input) scanDevices(paths []string, now time.Time) (found bool) {
	for _, path := range paths {
		st, err := os.Stat(path)
		if err != nil {
			continue // it went meanwhile, or was never there
		}
		sys, ok := st.Sys().(*syscall.Stat_t)
		if !ok {
			continue
		}
		found = true
		m := i.devices[path]
		if m == nil {
			m = &mark{}
			i.devices[path] = m
		}
		switch at := sys.Atim.Nano(); {
		case m.seen && m.value != at:
			i.touch(now)
			m.value = at
		case !m.seen:
			m.value, m.seen = at, true
			if ago := now.Round(0).Sub(time.Unix(0, at)); ago >= 0 && at > 0 {
				i.touch(now.Add(-ago))
			}
		}
	}
	return found
}

// interrupts notes whether the keyboard controller of a portable, or of an old
// machine, had anything to say.
func (i *input) interrupts(now time.Time) (found bool) {
	text, err := os.ReadFile(filepath.Join(i.root, "proc/interrupts"))
	if err != nil {
		return false
	}
	var sum int64
	for line := range strings.Lines(string(text)) {
		if !strings.Contains(line, "i8042") {
			continue
		}
		found = true
		for _, field := range strings.Fields(line)[1:] {
			var n int64
			if _, err := fmt.Sscanf(field, "%d", &n); err != nil {
				break // after the counts comes the controller's name
			}
			sum += n
		}
	}
	if found && i.clicks.seen && sum != i.clicks.value {
		i.touch(now)
	}
	i.clicks = mark{sum, found}
	return found
}

var errNoLogind = errors.New("it does not answer on the system's bus")
