package isolate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"pagurus/fleet"
)

// undoLog is a file of original values: a head, and then a line for each change. It only
// grows, so a killed process leaves complete lines and maybe a partial one, whose change
// was not made. It need not be synced: a crash of the machine also loses the settings.
type undoLog struct {
	path    string
	head    head
	exists  bool
	changes []change
	length  int64 // of the complete lines
}

// head identifies the isolation.
type head struct {
	Boot string       `json:"boot"` // of the machine
	CPUs fleet.CPUSet `json:"cpus"`
}

func boot() (string, error) { return readText("/proc/sys/kernel/random/boot_id") }

// openUndoLog reads the log, if there is one of this boot.
func openUndoLog(path string) (*undoLog, error) {
	n := &undoLog{path: path}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return n, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the earlier settings: %w", err)
	}
	for line := range bytes.Lines(text) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // its writer was killed before the change
		}
		var into any = &n.head
		var c change
		if n.exists {
			into = &c
		}
		if err := json.Unmarshal(line, into); err != nil {
			return nil, fmt.Errorf("%s does not hold the earlier settings: %w; restart the machine, or remove the file and put its settings back by hand", path, err)
		}
		if n.exists {
			n.changes = append(n.changes, c)
		}
		n.exists, n.length = true, n.length+int64(len(line))
	}
	now, err := boot()
	if err != nil {
		return nil, err
	}
	if n.exists && n.head.Boot != now {
		return &undoLog{path: path}, nil
	}
	return n, nil
}

// beginLog makes the log, if there is none.
func (n *undoLog) beginLog(cpus fleet.CPUSet) error {
	if n.exists {
		return nil
	}
	now, err := boot()
	if err != nil {
		return err
	}
	// A log of another boot is in the way.
	if err := os.Remove(n.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	n.head = head{now, cpus}
	if err := n.append(n.head); err != nil {
		return fmt.Errorf("begin the note of the earlier settings: %w", errors.Join(err, n.remove()))
	}
	n.exists = true
	return nil
}

func (n *undoLog) has(c change) bool { return slices.ContainsFunc(n.changes, c.same) }

// add logs a change before it is made. After an error it must not be made.
func (n *undoLog) add(c change) error {
	if err := n.append(c); err != nil {
		return err
	}
	n.changes = append(n.changes, c)
	return nil
}

// append appends a line, over a partial one.
func (n *undoLog) append(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(n.path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	line = append(line, '\n')
	if err = f.Truncate(n.length); err == nil {
		_, err = f.WriteAt(line, n.length)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	n.length += int64(len(line))
	return nil
}

// changed counts the values that differ from the originals. The kernel may have refused
// some changes.
func (n *undoLog) changed() (sum int) {
	for _, c := range n.changes {
		if now, err := c.now(); err == nil && now != c.Before {
			sum++
		}
	}
	return sum
}

func (n *undoLog) remove() error {
	if err := os.Remove(n.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
