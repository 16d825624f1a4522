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

// input finds when the last key, mouse or ssh input came. logind knows the sessions with
// their terminals, and desktops tell it when they are idle. Without logind there are the
// times of terminals, which do not cover desktops, and the interrupts of the keyboard
// controller, which not every keyboard uses. The files of input devices are useless: no
// driver sets their times.
type input struct {
	root    string // "/"
	logind  *logind
	devices map[string]*mark
	clicks  mark // of the keyboard controller's interrupts
	last    time.Time
}

// mark is a device's last state. Only changes of its time count, by this process's clock,
// because the machine's may jump.
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

// idle is the time since the last input; nil: unknown. With an error there may be further
// input.
func (i *input) idle(ctx context.Context) (*time.Duration, error) {
	now := time.Now()
	people, err := i.logind.sessions(ctx, now)
	if err == nil {
		paths := make([]string, 0, len(people))
		for _, p := range people {
			switch {
			case p.idleSince.IsZero() && p.tty == "":
				i.touch(now) // a desktop that does not report idle
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

// never is the idle time if no input was ever seen.
const never = 365 * 24 * time.Hour

// since is the time since the last known input.
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

// scanDevices checks which devices were used since the last scan. The first scan accepts
// a device's time, unless it is in the future.
func (i *input) scanDevices(paths []string, now time.Time) (found bool) {
	for _, path := range paths {
		st, err := os.Stat(path)
		if err != nil {
			continue // removed meanwhile, or never existed
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

// interrupts checks the interrupts of the keyboard controller of laptops and old
// machines.
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
				break // the controller's name follows the counts
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
