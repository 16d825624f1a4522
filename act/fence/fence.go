// Package fence stops a host's guests when its lease ends. A small process of its own does it: it
// outlives the agent, counts by a clock that no one can set and that goes on while the machine is
// suspended, and needs neither agent nor controller. A file says until when the lease lasts.
//
// It must not know what a controller is, or how a kind of guest is run: it ends processes. Its
// tests run the process against processes of their own.
package fence

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/host"
	"pagurus/fleet"
	"pagurus/internal/note"
)

// Folder is where the files of a host's lease are, in its run folder.
const Folder = "lease"

// The files in Folder.
const (
	leaseFile   = "lease.json"   // what is in force
	processFile = "process.json" // the process that keeps it
	stoppedFile = "stopped.json" // what the process has stopped
	logFile     = "log"
)

// Config says which guests are stopped, and by what.
type Config struct {
	Run     string // the host's run folder, absolute
	Group   string // folder of the control groups of all guests; empty: there is none
	Program string // becomes the process when it is started with the name of one of Shims
	Length  time.Duration
	Log     *slog.Logger
}

// Fence is this host's.
type Fence struct {
	config Config

	mu   sync.Mutex
	held lease
}

// lease is the one in force.
type lease struct {
	Boot   string        `json:"boot"`  // of the machine to whose clock Asked belongs
	Asked  int64         `json:"asked"` // from when it counts, as Now has it
	Length time.Duration `json:"length_ns"`
	Group  string        `json:"group,omitempty"`
}

// left is how much of the lease is left.
func (l lease) left(now int64) time.Duration { return l.Length - time.Duration(now-l.Asked) }

// Stopped is what the process has done.
type Stopped struct {
	At     time.Time       `json:"at"`
	Length time.Duration   `json:"length_ns"` // of the lease that ended
	Guests []fleet.GuestID `json:"guests,omitempty"`

	Processes map[fleet.GuestID]host.Process `json:"processes,omitempty"` // their first ones; an earlier Pagurus did not note them
}

// Open finds the lease that is in force. A lease that an earlier agent left is kept, also if its
// process has died.
func Open(c Config) (*Fence, error) {
	f := &Fence{config: c}
	if err := os.MkdirAll(f.file(""), 0o755); err != nil {
		return nil, fmt.Errorf("making the folder of the host's lease: %w", err)
	}
	err := note.Load(f.file(leaseFile), &f.held)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return f, nil
	case err != nil:
		return nil, fmt.Errorf("reading the host's lease: %w: if no guest is here, remove the file %s", err, f.file(leaseFile))
	case f.held.Boot != boot():
		f.held = lease{} // all that was here ended with that boot
		return f, nil
	}
	return f, f.keepProcess()
}

func (f *Fence) file(name string) string { return filepath.Join(f.config.Run, Folder, name) }

// Now is the time by a clock that cannot be set, and that goes on while the machine is suspended.
func Now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(err) // no Linux that runs guests is without it
	}
	return t.Nano()
}

func boot() string {
	text, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // empty without it, always
	return strings.TrimSpace(string(text))
}

// Ask returns what to ask the controller for now, and what is in force. Nothing is in force if the
// process that keeps it cannot run.
func (f *Fence) Ask() fleet.Lease {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := fleet.Lease{Length: f.config.Length, Held: f.held.Length}
	if err := f.keepProcess(); err != nil {
		f.config.Log.Error("the host's lease is not kept, and its guests run on when the controller is not heard", "cause", err)
		out.Held = 0
	}
	if out.Length > 0 || out.Held > 0 {
		out.Asked = Now()
	}
	return out
}

// Renew has the lease that the controller granted in force. After an error the one before is.
func (f *Fence) Renew(granted fleet.Lease) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if granted.Length == 0 {
		return f.end()
	}
	now := lease{Boot: boot(), Asked: granted.Asked, Length: granted.Length, Group: f.config.Group}
	if now.Asked < f.held.Asked {
		return nil // a late answer
	}
	if err := note.Replace(f.file(leaseFile), now); err != nil {
		return fmt.Errorf("noting the host's lease: %w", err)
	}
	shorter := now.Length < f.held.Length
	f.held = now
	if shorter { // the process looks again only when the one that it knows is over
		if err := f.stop(); err != nil {
			return err
		}
	}
	return f.keepProcess()
}

// keepProcess has the process run, if there is a lease.
func (f *Fence) keepProcess() error {
	if f.held.Length == 0 {
		return nil
	}
	p, err := f.process()
	if err != nil {
		return err
	}
	if !p.Gone() {
		return nil
	}
	return f.start()
}

func (f *Fence) process() (p host.Process, err error) {
	if err := note.Load(f.file(processFile), &p); err != nil && !errors.Is(err, os.ErrNotExist) {
		return p, fmt.Errorf("reading which process keeps the host's lease: %w", err)
	}
	return p, nil
}

func (f *Fence) start() error {
	_, _, err := host.Outliving{
		What: "the fence, which keeps the host's lease", Program: f.config.Program, Args: []string{processName, f.config.Run},
		Log: f.file(logFile), Note: f.file(processFile),
	}.Start()
	return err
}

func (f *Fence) stop() error {
	p, err := f.process()
	if err == nil {
		err = p.End()
	}
	if err != nil {
		return fmt.Errorf("ending the process that keeps the host's lease: %w", err)
	}
	return nil
}

// end ends the lease without stopping a guest.
func (f *Fence) end() error {
	if f.held.Length == 0 {
		return nil
	}
	// First the file: a process that is not known of ends without one.
	if err := os.Remove(f.file(leaseFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("ending the host's lease: %w", err)
	}
	f.held = lease{}
	return f.stop()
}

// Remove ends the lease, its process and its files.
func (f *Fence) Remove() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := errors.Join(f.end(), f.stop()); err != nil {
		return err
	}
	return os.RemoveAll(f.file(""))
}

// Stopped says why a guest was stopped; empty: by no lease.
func (f *Fence) Stopped(g fleet.GuestID) string {
	var s Stopped
	if err := note.Load(f.file(stoppedFile), &s); err != nil {
		return "" // it has stopped nothing
	}
	for _, id := range s.Guests {
		if id == g && f.isThat(g, s.Processes[g]) {
			return fmt.Sprintf("this host had not heard the controller for its lease of %s, and stopped its guests at %s", fleet.ShortDuration(s.Length), s.At.UTC().Format("15:04:05 UTC"))
		}
	}
	return ""
}

// isThat reports whether a process was the first of the guest that is here, or was here last. A job that began again may have come
// back, with the same guest.
func (f *Fence) isThat(g fleet.GuestID, was host.Process) bool {
	for _, kind := range kinds {
		var is host.Record
		if err := note.Load(filepath.Join(f.config.Run, kind.folder, string(g), recordFile), &is); err == nil && was != (host.Process{}) {
			return is.Process == was
		}
	}
	return true
}
