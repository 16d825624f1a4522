package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/internal/pause"
)

// SamplePlan says how to sample memory: how many pages, and how long after the first sample.
// The times rise. Two consecutive samples give an interval as well.
type SamplePlan struct {
	Pages int
	After []time.Duration
}

// These stand for a page instead of its hash.
const (
	PageEmpty   = 0 // never touched, or only zeros
	PageUnknown = 1 // absent, or reading it would cost the process time
)

// Sampled is the content of one page: PageEmpty, PageUnknown or a hash.
type Sampled struct{ First, Before, Now uint64 }

// MarkFirst makes the current content what later samples are compared with.
func (s *Sampled) MarkFirst() { s.First, s.Before = s.Now, s.Now }

// Changes compares the newest sample with the first and the previous one, and starts the next interval.
func (s *Sampled) Changes() (sinceFirst, sinceBefore bool) {
	differ := func(a, b uint64) bool { return a != b && a != PageUnknown && b != PageUnknown }
	sinceFirst, sinceBefore = differ(s.First, s.Now), differ(s.Before, s.Now)
	s.Before = s.Now
	return sinceFirst, sinceBefore
}

// Profile runs look on one thread and records the CPU time it took.
func Profile(look func() (fleet.Profile, error)) (fleet.Profile, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began, err := ThreadTime()
	if err != nil {
		return fleet.Profile{}, err
	}
	out, err := look()
	if err != nil {
		return fleet.Profile{}, err
	}
	ended, err := ThreadTime()
	out.Took = ended - began
	return out, err
}

// Curve looks at the planned times after begun. Look returns how many bytes have changed
// since the first look and since the one before.
func (p SamplePlan) Curve(ctx context.Context, begun time.Time, look func() (sinceFirst, sinceBefore int64, err error)) (out []fleet.Changed, err error) {
	last := time.Duration(0)
	for _, after := range p.After {
		if err := pause.For(ctx, after-time.Since(begun)); err != nil {
			return nil, err
		}
		at := time.Since(begun)
		sinceFirst, sinceBefore, err := look()
		if err != nil {
			return nil, err
		}
		out = append(out, fleet.Changed{Within: at, Bytes: sinceFirst})
		if last > 0 {
			out = append(out, fleet.Changed{Within: at - last, Bytes: sinceBefore})
		}
		last = at
	}
	return Rising(out), nil
}

// PageReader reads pages of processes, some at once, and notes what they hold.
type PageReader struct {
	seed          maphash.Seed
	zeros, buffer []byte
	pid           int
	local         []unix.Iovec // of as many pages as are read at once
	remote        []unix.RemoteIovec
	notes         []*Sampled // of the pages to be read
}

// NewPageReader reads so many pages at once. That bounds the memory this takes and how
// long a process's own changes to its address space wait.
func NewPageReader(batch int) *PageReader {
	size := os.Getpagesize()
	r := &PageReader{seed: maphash.MakeSeed(), zeros: make([]byte, size), buffer: make([]byte, batch*size)}
	for k := range batch {
		v := unix.Iovec{Base: unsafe.SliceData(r.slot(k))}
		v.SetLen(size)
		r.local = append(r.local, v)
	}
	return r
}

// Add has a page read, now or by Flush at the latest. A page that is no longer there is
// noted as PageUnknown.
func (r *PageReader) Add(pid int, address uint64, note *Sampled) (err error) {
	if pid != r.pid || len(r.notes) == len(r.local) {
		err = r.Flush()
	}
	note.Now, r.pid = PageUnknown, pid
	r.notes = append(r.notes, note)
	r.remote = append(r.remote, unix.RemoteIovec{Base: uintptr(address), Len: len(r.zeros)})
	return err
}

// Flush reads the pages that were added.
func (r *PageReader) Flush() error {
	notes, remote := r.notes, r.remote
	r.notes, r.remote = notes[:0], remote[:0]
	for len(notes) > 0 {
		n, err := unix.ProcessVMReadv(r.pid, r.local[:len(notes)], remote, 0)
		if err != nil && !errors.Is(err, unix.EFAULT) {
			return fmt.Errorf("read the memory of process %d: %w", r.pid, err)
		}
		whole := max(n, 0) / len(r.zeros)
		for k, note := range notes[:whole] {
			note.Now = r.hash(r.slot(k))
		}
		next := min(whole+1, len(notes)) // the one it stopped at went away a moment ago
		notes, remote = notes[next:], remote[next:]
	}
	return nil
}

func (r *PageReader) slot(k int) []byte { return r.buffer[k*len(r.zeros) : (k+1)*len(r.zeros)] }

// hash stands for what a page holds.
func (r *PageReader) hash(b []byte) uint64 {
	if bytes.Equal(b, r.zeros) {
		return PageEmpty
	}
	return max(maphash.Bytes(r.seed, b), PageUnknown+1)
}
