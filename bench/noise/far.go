package noise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// ask is a line that Serve reads, and answer a line that it writes.
type ask struct {
	CPU   int           `json:"cpu"`
	Lasts time.Duration `json:"lasts_ns"`
}

type answer struct {
	CPUs  []int  `json:"cpus,omitempty"` // only in the first answer
	Core  *Core  `json:"core,omitempty"`
	Error string `json:"error,omitempty"`
}

// LongestFar is the longest time for which a Far may probe a core at once.
const LongestFar = time.Hour

// ProbeVerb is the argument with which pagurus-shim runs Serve.
const ProbeVerb = "probe"

// Serve probes cores of this machine for a Far at the other end of in and out, until
// in ends.
func Serve(in io.Reader, out io.Writer) error {
	cpus, err := unbound()
	if err != nil {
		return err
	}
	steps, say := Calibrate(), json.NewEncoder(out)
	if err := say.Encode(answer{CPUs: cpus}); err != nil {
		return err
	}
	for asked := json.NewDecoder(in); ; {
		var a ask
		switch err := asked.Decode(&a); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read what is asked: %w", err)
		}
		if err := say.Encode(probed(a, cpus, steps)); err != nil {
			return err
		}
	}
}

// unbound returns the CPUs that this process may use after removing its own binding. The process
// that started it may have bound it to one, as mpirun does.
func unbound() ([]int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all unix.CPUSet
	for i := range all {
		all[i] = ^all[i]
	}
	if err := unix.SchedSetaffinity(0, &all); err != nil {
		return nil, fmt.Errorf("run on all CPUs: %w", err)
	}
	return CPUs()
}

func probed(a ask, cpus []int, steps int) answer {
	if !slices.Contains(cpus, a.CPU) {
		return answer{Error: fmt.Sprintf("there is no CPU %d, but %v", a.CPU, cpus)}
	}
	if a.Lasts <= 0 || a.Lasts > LongestFar {
		return answer{Error: fmt.Sprintf("a CPU cannot be probed for %s, but for up to %s at once", a.Lasts, LongestFar)}
	}
	c, err := Probe(context.Background(), a.CPU, steps, a.Lasts)
	if err != nil {
		return answer{Error: err.Error()}
	}
	return answer{Core: &c}
}

// Far lets Serve probe cores of another machine.
type Far struct {
	CPUs    []int // CPUs that exist there
	asks    *json.Encoder
	answers *json.Decoder
}

// Reached waits for Serve's first answer.
func Reached(to io.Writer, from io.Reader) (*Far, error) {
	f := &Far{asks: json.NewEncoder(to), answers: json.NewDecoder(from)}
	first, err := f.answer()
	if err == nil && len(first.CPUs) == 0 {
		err = errors.New("it has no CPU")
	}
	f.CPUs = first.CPUs
	return f, err
}

// Probe is like the function Probe, but on the other machine.
func (f *Far) Probe(cpu int, lasts time.Duration) (Core, error) {
	if err := f.asks.Encode(ask{cpu, lasts}); err != nil {
		return Core{}, err
	}
	a, err := f.answer()
	switch {
	case err != nil:
		return Core{}, err
	case a.Core == nil || a.Core.CPU != cpu || len(a.Core.Quanta) == 0:
		return Core{}, fmt.Errorf("nothing was said of CPU %d", cpu)
	}
	return *a.Core, nil
}

func (f *Far) answer() (a answer, err error) {
	if err := f.answers.Decode(&a); err != nil {
		return a, fmt.Errorf("read what the probe says: %w", err)
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}
