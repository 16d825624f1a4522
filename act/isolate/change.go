package isolate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	threads "pagurus/internal/thread"
)

// action is a kind of change.
type action string

const (
	write      action = "write" // a file
	keepThread action = "keep"  // a kernel thread, on CPUs
	mkdir      action = "mkdir" // a cgroup
)

// change is one change; its JSON form is what undoing needs.
type change struct {
	Do     action `json:"do"`
	Path   string `json:"path,omitempty"`
	Thread int    `json:"thread,omitempty"`
	Born   uint64 `json:"born,omitempty"` // start time of the thread
	Before string `json:"before"`         // the original value
	Back   string `json:"back"`           // the value that restores it; for a group, where its processes go

	after string
	first [][2]string // for a group: files with contents, set before it has processes
	what  string      // for people
}

// same reports whether two changes affect the same object.
func (c change) same(other change) bool {
	return c.Do == other.Do && c.Path == other.Path && c.Thread == other.Thread && c.Born == other.Born
}

func writeText(path, text string) error { return os.WriteFile(path, []byte(text+"\n"), 0) }

// do makes the change. It is idempotent.
func (c change) do() error {
	switch c.Do {
	case write:
		return writeText(c.Path, c.after)
	case keepThread:
		to, err := fleet.ParseCPUs(c.after)
		if err != nil || !c.alive() {
			return err
		}
		return setAffinity(c.Thread, to)
	}
	if err := os.Mkdir(c.Path, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	for _, f := range c.first {
		at := filepath.Join(c.Path, f[0])
		if have, err := readText(at); err == nil && have == f[1] {
			continue
		}
		if err := writeText(at, f[1]); err != nil {
			return err
		}
	}
	return nil
}

// alive reports whether the thread still exists and its ID was not reused.
func (c change) alive() bool {
	t, kernel, err := readThread(c.Thread, c.Thread)
	return err == nil && kernel && t.born == c.Born
}

// now is the present value, in the form of Before.
func (c change) now() (string, error) {
	switch c.Do {
	case write:
		return readText(c.Path)
	case keepThread:
		cpus, err := threads.CPUs(c.Thread)
		return cpus.String(), err
	}
	_, err := os.Stat(c.Path)
	return "there", err
}

// undo restores the original value. It skips what is already restored: also changes that
// were logged and not made, and those the kernel refused.
func (c change) undo() error {
	switch c.Do {
	case write:
		have, err := readText(c.Path)
		if err != nil || have == c.Before {
			return err
		}
		if err = writeText(c.Path, c.Back); c.Back != "" || !errors.Is(err, unix.ENOSPC) {
			return err
		}
		// The kernel does not let a group with processes go back to having no CPUs of its
		// own. All possible CPUs have the same effect. If the controller was enabled
		// here, all of this disappears with it.
		all, err := readText("/sys/devices/system/cpu/possible")
		if err != nil || have == all {
			return err
		}
		return writeText(c.Path, all)
	case keepThread:
		if !c.alive() {
			return nil
		}
		have, err := threads.CPUs(c.Thread)
		if err != nil || have.String() == c.Before {
			return err
		}
		back, err := fleet.ParseCPUs(c.Back)
		if err == nil {
			err = setAffinity(c.Thread, back)
		}
		if err != nil {
			return fmt.Errorf("let thread %d run on CPUs %s again: %w", c.Thread, c.Back, err)
		}
		return nil
	case mkdir:
		return c.dissolve()
	}
	return fmt.Errorf("the note says %q, which this version does not know; use the one that wrote it, or restart the machine", c.Do)
}

// dissolveLimit: processes may start while others are moved, and a group is empty a
// moment after the last has ended.
const (
	dissolveLimit = 5 * time.Second
	dissolveAgain = 5 * time.Millisecond
)

// dissolve removes a group and moves its processes back.
func (c change) dissolve() error {
	for begun := time.Now(); ; time.Sleep(dissolveAgain) {
		err := unix.Rmdir(c.Path)
		if err == nil || gone(err) {
			return nil
		}
		if time.Since(begun) > dissolveLimit {
			return fmt.Errorf("remove the control group %s: %w; maybe there are groups of others in it", c.Path, err)
		}
		text, err := os.ReadFile(filepath.Join(c.Path, procs))
		if err != nil {
			return err
		}
		for _, pid := range strings.Fields(string(text)) {
			if err := os.WriteFile(filepath.Join(c.Back, procs), []byte(pid), 0); err != nil && !gone(err) {
				return fmt.Errorf("move process %s to %s: %w", pid, c.Back, err)
			}
		}
	}
}
