package bench

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/internal/note"
)

// Version is that of the records written here. It is raised when an older
// Pagurus would misread a newer record.
const Version = 1

// Record is what an experiment leaves: every raw sample, and what it was made
// with.
type Record struct {
	Version  int                `json:"version"`
	Begun    time.Time          `json:"begun"`
	Complete bool               `json:"complete"`          // false: it was cut off
	Command  []string           `json:"command,omitempty"` // that it was asked for with
	Machine  Machine            `json:"machine"`
	Spec     Spec               `json:"spec"`
	Guests   map[string]Setting `json:"guests"` // by target
	Notes    []string           `json:"notes,omitempty"`
	Runs     []Run              `json:"runs"`
	Sittings []Sitting          `json:"sittings,omitempty"` // at which promises were measured
	Promised map[string]Promise `json:"promised,omitempty"` // what came of them, by figure
	Moves    []fleet.Migration  `json:"moves,omitempty"`    // with what was predicted of them
	// Harness is the processor time that the measuring itself has taken from programs:
	// what this program and the commands it types have used from when each began, or where
	// that is not known from when its run began, until the run was over. Starting guests
	// and keeping the record take nothing from programs, and are left out. Ending guests
	// counts, since it begins before the run is over. Hosts' agents and guests are part of
	// what is measured, and all of a native program's time is its own. In records whose runs
	// do not have Ran, this is what the bench alone used from the first run to the last,
	// without its commands.
	Harness time.Duration `json:"harness_ns"`
}

// Machine is what all was run on.
type Machine struct {
	Commit      string  `json:"commit"` // that Pagurus was built of: its version; of old records the working folder's
	Kernel      string  `json:"kernel"`
	CPU         string  `json:"cpu"`
	CPUs        int     `json:"cpus"`
	MemoryBytes int64   `json:"memory_bytes"`
	Load        float64 `json:"load"` // runnable programs as it began, in the last minute
}

// Setting is how a target's guests are made.
type Setting struct {
	Kind        string `json:"kind"` // "native" where there is no guest
	Guests      int    `json:"guests"`
	CPUs        int    `json:"cpus,omitempty"`
	MemoryBytes int64  `json:"memory_bytes,omitempty"`
	Image       string `json:"image,omitempty"`
	Digest      string `json:"digest,omitempty"` // of the image's content
	Accelerator string `json:"accelerator,omitempty"`
	Version     string `json:"version,omitempty"` // of what runs or moves them: QEMU, CRIU
	CPU         string `json:"cpu,omitempty"`     // that its programs see, where it is not the machine's
	Tune        string `json:"tune,omitempty"`
	Link        string `json:"link,omitempty"`   // what is wrong with the network, for people
	Beside      string `json:"beside,omitempty"` // the target it is compared with; empty: the first of its sort
	// MovesEvery is between two moves of a guest while a program runs; 0: none is moved.
	MovesEvery time.Duration `json:"moves_every_ns,omitempty"`
}

// Emulated reports whether the target's processors are software.
func (s Setting) Emulated() bool { return s.Accelerator == "tcg" }

// Run is one run of one program on one target.
type Run struct {
	Round   int                `json:"round"`
	Turn    int                `json:"turn,omitempty"` // of those that commits take with a lab of their own each, from 1; 0: there are none
	Program string             `json:"program"`
	Target  string             `json:"target"`
	Begun   time.Time          `json:"begun"`
	Took    time.Duration      `json:"took_ns"`          // with what starts and ends it
	Ran     time.Duration      `json:"ran_ns,omitempty"` // of that, since the program began; 0: not known
	Figures map[string]float64 `json:"figures,omitempty"`
	Curves  map[string][]Point `json:"curves,omitempty"`
	Parts   map[string][]Part  `json:"parts,omitempty"`   // of some figures, by their names
	Failure string             `json:"failure,omitempty"` // why there are no figures
	// Apart is how far the machine's CPUs were from each other before or after the run,
	// whichever is more, and Least whichever is less; 0: not known.
	Apart time.Duration `json:"apart_ns,omitempty"`
	Least time.Duration `json:"apart_least_ns,omitempty"`
	// Got is what its guests got of their hosts, of a target that is tuned; empty: not known.
	Got   []Got  `json:"got,omitempty"`
	Moves *Moves `json:"moves,omitempty"` // of a guest while it ran; nil: there were to be none
}

// failed is how often, the last time on end, a program has failed on a target.
func (r *Record) failed(program, target string) (times int) {
	for _, run := range r.Runs {
		if run.Program != program || run.Target != target {
			continue
		}
		if run.Failure == "" {
			times = 0
		} else {
			times++
		}
	}
	return times
}

// Failures says which runs gave no figures; nil if all did.
func (r *Record) Failures() error {
	var errs []error
	for _, run := range r.Runs {
		if run.Failure != "" {
			errs = append(errs, fmt.Errorf("%s on %s, run %d: %s", run.Program, run.Target, run.Round+1, run.Failure))
		}
	}
	return errors.Join(errs...)
}

// HarnessShare is the processor time of the measuring itself beside the time that
// it was metered in: that for which programs ran, as far as it is known; 0 if nothing
// was run.
func (r *Record) HarnessShare() float64 {
	all := time.Duration(0)
	for _, run := range r.Runs {
		all += cmp.Or(run.Ran, run.Took)
	}
	if all == 0 {
		return 0
	}
	return float64(r.Harness) / float64(all)
}

// Samples are a figure's values on a target in the order they were taken, and
// the rounds they are from.
func (r *Record) Samples(program, figure, target string) (values []float64, rounds []int) {
	for _, run := range r.Runs {
		if v, ok := run.Figures[figure]; ok && run.Program == program && run.Target == target {
			values, rounds = append(values, v), append(rounds, run.Round)
		}
	}
	return values, rounds
}

// Here describes this machine, with the Pagurus of that version. What cannot be found
// out is left empty.
func Here(version string) Machine {
	m := Machine{Commit: version, CPUs: runtime.NumCPU()}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		m.MemoryBytes = int64(info.Totalram) * int64(info.Unit)
		m.Load = float64(info.Loads[0]) / (1 << 16)
	}
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			m.CPU = strings.TrimSpace(value)
			break
		}
	}
	return m
}

// Write keeps the record in a file, and makes its folder. The file is whole at
// any time: after an error, as of a full disk, it is as it was before.
func (r *Record) Write(file string) (err error) {
	r.Version = Version
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return fmt.Errorf("keep the record: %w", err)
	}
	return Whole(file, append(text, '\n'))
}

// Whole writes a file so that it is there with all of its text or as it was
// before, and makes its folder.
func Whole(file string, text []byte) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("keep %s: %w", file, err)
		}
	}()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return note.WriteDurably(file, text, 0o644) // a full disk may only say so at the sync
}

// Load reads a record. One of a newer Pagurus is refused.
func Load(file string) (*Record, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read a record: %w", err)
	}
	var about struct{ Version int }
	if err := json.Unmarshal(text, &about); err != nil {
		return nil, fmt.Errorf("%s is no record of `pagurus bench`: %w", file, err)
	}
	if about.Version < 1 {
		return nil, fmt.Errorf("%s is no record of `pagurus bench`: it has no version", file)
	}
	if about.Version > Version {
		return nil, fmt.Errorf("%s was written by a newer Pagurus (version %d of records, this one reads up to %d): read it with that one", file, about.Version, Version)
	}
	var r Record
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("%s is no record of `pagurus bench`: %w", file, err)
	}
	return &r, nil
}

// RecordName is the name of records in their folders.
const RecordName = "record.json"

// Find reads the record that a person names: a file, a folder with one, or a
// commit; it is the newest such record in the folders inside of in.
func Find(name, in string) (*Record, error) {
	at, err := os.Stat(name)
	switch {
	case err == nil && at.IsDir():
		return Load(filepath.Join(name, RecordName))
	case err == nil:
		return Load(name)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(in, "*", RecordName))
	if err != nil {
		return nil, err
	}
	var newest *Record
	for _, f := range files {
		r, err := Load(f)
		if err == nil && len(name) >= leastCommit && strings.Contains(r.Machine.Commit, name) && (newest == nil || r.Begun.After(newest.Begun)) {
			newest = r
		}
	}
	if newest == nil {
		return nil, fmt.Errorf("%q is no file, no folder, and no commit of a record in %s", name, in)
	}
	return newest, nil
}

// leastCommit is how much of a commit's name tells it from others.
const leastCommit = 4
