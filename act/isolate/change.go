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
	keepThread action = "keep"  // a thread of the kernel, to CPUs
	mkdir      action = "mkdir" // a control group
)

// change is one change, and in JSON what has to be known to undo it.
type change struct {
	Do     action `json:"do"`
	Path   string `json:"path,omitempty"`
	Thread int    `json:"thread,omitempty"`
	Born   uint64 `json:"born,omitempty"` // of the thread
	Before string `json:"before"`         // how it was
	Back   string `json:"back"`           // what makes it so again; of a group, where its processes go

	after string
	first [][2]string // of a group: files, and what is to be in them before there are processes
	what  string      // for people
}

// same reports whether two changes are of the same thing.
func (c change) same(other change) bool {
	return c.Do == other.Do && c.Path == other.Path && c.Thread == other.Thread && c.Born == other.Born
}

func writeText(path, text string) error { return os.WriteFile(path, []byte(text+"\n"), 0) }

// do makes the change. Done twice is done once.
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

// alive reports whether the thread is still there, and not another of its number.
func (c change) alive() bool {
	t, kernel, err := readThread(c.Thread, c.Thread)
	return err == nil && kernel && t.born == c.Born
}

// now is how it is, in the words of Before.
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

// undo makes it as it was. What is as it was already is left alone: so are changes
// that were noted and not made, and those the kernel refused.
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
		// The kernel lets no group with processes go without CPUs of its own again;
		// all there can ever be are as good. If the controller was given here, all
		// of this goes with it.
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

// dissolveLimit: processes are started while others go, and a group is empty a
// moment after the last has ended.
const (
	dissolveLimit = 5 * time.Second
	dissolveAgain = 5 * time.Millisecond
)

// dissolve removes a group and sends its processes back.
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
