package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Freezer is the folder of a control group that can be frozen, of either version of cgroups.
// Empty: there is none, and nothing is frozen.
type Freezer string

// freezers describes both versions of cgroups: what a group should be is in one file, and
// what it is in another.
var freezers = []struct {
	file, frozen, thawed string
	state, done          string // the line of the file state that says that all are frozen
}{
	{"freezer.state", "FROZEN", "THAWED", "freezer.state", "FROZEN"},
	{"cgroup.freeze", "1", "0", "cgroup.events", "frozen 1"},
}

// freezeLimit is the time for freezing: a process that waits for a disk or a file server is
// delayed in the kernel. Meanwhile the others are frozen, so it is short.
const (
	freezeLimit = 3 * time.Second
	freezeAgain = time.Millisecond
)

// version returns the group's row of freezers.
func (f Freezer) version() (int, error) {
	for i, v := range freezers {
		_, err := os.Stat(filepath.Join(string(f), v.file))
		if !errors.Is(err, fs.ErrNotExist) {
			return i, err
		}
	}
	return 0, fmt.Errorf("%s is not a control group that can be frozen: %w", string(f), fs.ErrNotExist)
}

// Legacy reports whether the group is of version 1, in which a frozen process cannot be traced.
func (f Freezer) Legacy() bool {
	v, err := f.version()
	return f != "" && err == nil && v == 0
}

// Frozen reports whether the group is frozen or freezing.
func (f Freezer) Frozen() (bool, error) {
	if f == "" {
		return false, nil
	}
	v, err := f.version()
	if err != nil {
		return false, err
	}
	text, err := os.ReadFile(filepath.Join(string(f), freezers[v].file))
	if err != nil {
		return false, fmt.Errorf("ask whether the control group is frozen: %w", err)
	}
	return strings.TrimSpace(string(text)) != freezers[v].thawed, nil
}

// Set freezes or thaws the group. It does not wait. Without the group the error is
// fs.ErrNotExist.
func (f Freezer) Set(frozen bool) error {
	if f == "" {
		return nil
	}
	v, err := f.version()
	if err != nil {
		return err
	}
	state := freezers[v].thawed
	if frozen {
		state = freezers[v].frozen
	}
	if err := os.WriteFile(filepath.Join(string(f), freezers[v].file), []byte(state), 0); err != nil {
		return fmt.Errorf("freeze or thaw the control group: %w", err)
	}
	return nil
}

// Freeze freezes the group and waits until all its processes are frozen, also new ones. After an
// error some may be.
func (f Freezer) Freeze() error {
	for begun := time.Now(); f != ""; time.Sleep(freezeAgain) {
		// Writing again includes processes that came meanwhile.
		if err := f.Set(true); err != nil {
			return err
		}
		if settled, err := f.Settled(); settled || err != nil {
			return err
		}
		if time.Since(begun) > freezeLimit {
			return fmt.Errorf("after %s some processes are still not frozen: they wait for a disk or a file server", freezeLimit)
		}
	}
	return nil
}

// Settled reports whether all processes of the group are frozen.
func (f Freezer) Settled() (bool, error) {
	v, err := f.version()
	if err != nil {
		return false, err
	}
	text, err := os.ReadFile(filepath.Join(string(f), freezers[v].state))
	if err != nil {
		return false, fmt.Errorf("ask whether the control group is frozen: %w", err)
	}
	return strings.Contains("\n"+string(text), "\n"+freezers[v].done), nil
}
