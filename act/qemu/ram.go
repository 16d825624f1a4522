// This file looks at a process's memory from outside and says how much of it
// is filled and how much of it changes in how short a time.
//
// It reads a sample of the pages again and again and compares what they hold.
// Nothing is asked of the process and nothing in it is write-protected, so the
// guest that lives in that memory does not notice: no exits, no faults, no
// pages made to be there that were not. A page that is written with what it
// held before counts as unchanged, which a copy that tracks writes sends again;
// so what a program changes is a little more than this sees. The alternatives
// cost the guest: tracking writes (soft-dirty, QEMU's dirty-bitmap mode)
// protects every page, and QEMU's own page sampling, which also reads and
// compares, knows one interval of whole seconds at a time.
//
// It must not know what a guest is. Its tests run against the test's own memory
// and, in package qemu, against a guest that dirties at a known rate.

package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"pagurus/act/host"
	"pagurus/fleet"
	"pagurus/internal/pause"
)

// ramArea is a part of a process's address space.
type ramArea struct {
	PID   int
	Start uintptr
	Bytes int64
}

// samplePlan is how to look: at so many pages, and at which times after the first
// time, rising. Every pair of two looks in a row gives an interval as well.
type samplePlan struct {
	Pages int
	After []time.Duration
}

const (
	// batch is how many pages are read at once. It bounds the memory this takes
	// and how long the process's own changes to its address space wait.
	batch = 128
	// entryBytes is the size of an entry of /proc/PID/pagemap (see the kernel's
	// Documentation/admin-guide/mm/pagemap.rst).
	entryBytes = 8
	present    = 1 << 63
)

// What stands for a page instead of a hash of it.
const (
	empty   = 0 // never touched, or nothing but zeros
	unknown = 1 // swapped out, or not to be read: it would cost the guest to look
)

// sampleRAM looks at the area as planned. It takes as long as the plan says and ends
// early, with an error, when ctx does.
func sampleRAM(ctx context.Context, a ramArea, p samplePlan) (fleet.Profile, error) {
	if a.Bytes <= 0 || p.Pages <= 0 || len(p.After) == 0 {
		return fleet.Profile{}, errors.New("there is nothing to sample")
	}
	// One thread, so that its processor time is that of this look.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began, err := host.ThreadTime()
	if err != nil {
		return fleet.Profile{}, err
	}
	l, err := open(a, p.Pages)
	if err != nil {
		return fleet.Profile{}, err
	}
	defer l.pagemap.Close()
	out, err := l.run(ctx, p)
	if err != nil {
		return fleet.Profile{}, err
	}
	ended, err := host.ThreadTime()
	out.Took = ended - began
	return out, err
}

// sampler is one look under way.
type sampler struct {
	area     ramArea
	pageSize int64
	pagemap  *os.File
	seed     maphash.Seed
	zeros    []byte
	buffer   []byte
	pages    []page
	asked    []int // pages of the batch being read
	local    []unix.Iovec
	remote   []unix.RemoteIovec
}

// page is one page of the sample and what it held.
type page struct {
	at                 int64 // number within the area
	first, before, now uint64
}

func open(a ramArea, pages int) (*sampler, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", a.PID))
	if err != nil {
		return nil, fmt.Errorf("sample the memory of process %d: %w", a.PID, err)
	}
	l := &sampler{area: a, pageSize: int64(os.Getpagesize()), pagemap: f, seed: maphash.MakeSeed()}
	l.zeros, l.buffer = make([]byte, l.pageSize), make([]byte, batch*l.pageSize)
	total := max(a.Bytes/l.pageSize, 1)
	n := min(int64(pages), total)
	// One page at random in each of n parts of equal size: what changes mostly
	// lies together, and is then met more evenly than by chance alone; a fixed
	// distance might meet a program's own.
	for i := range n {
		from, to := i*total/n, (i+1)*total/n
		l.pages = append(l.pages, page{at: from + rand.Int64N(to-from)})
	}
	return l, nil
}

func (l *sampler) run(ctx context.Context, p samplePlan) (fleet.Profile, error) {
	begun := time.Now()
	out := fleet.Profile{At: begun.UTC().Round(0), MemoryBytes: l.area.Bytes, Pages: len(l.pages)}
	if err := l.pass(); err != nil {
		return out, err
	}
	filled := 0
	for i := range l.pages {
		q := &l.pages[i]
		q.first, q.before = q.now, q.now
		if q.now != empty {
			filled++
		}
	}
	out.FilledBytes = l.scaled(filled)
	last := time.Duration(0)
	for _, after := range p.After {
		if err := pause.For(ctx, after-time.Since(begun)); err != nil {
			return out, err
		}
		at := time.Since(begun)
		if err := l.pass(); err != nil {
			return out, err
		}
		sinceFirst, sinceBefore := 0, 0
		for i := range l.pages {
			q := &l.pages[i]
			if differ(q.first, q.now) {
				sinceFirst++
			}
			if differ(q.before, q.now) {
				sinceBefore++
			}
			q.before = q.now
		}
		out.Changed = append(out.Changed, fleet.Changed{Within: at, Bytes: l.scaled(sinceFirst)})
		if last > 0 {
			out.Changed = append(out.Changed, fleet.Changed{Within: at - last, Bytes: l.scaled(sinceBefore)})
		}
		last = at
	}
	out.Changed = host.Rising(out.Changed)
	return out, nil
}

func differ(a, b uint64) bool { return a != b && a != unknown && b != unknown }

// scaled is what so many pages of the sample stand for.
func (l *sampler) scaled(pages int) int64 {
	return int64(float64(l.area.Bytes) * float64(pages) / float64(len(l.pages)))
}

// pass reads every page of the sample that is there.
func (l *sampler) pass() error {
	l.asked = l.asked[:0]
	entry := make([]byte, entryBytes)
	for i := range l.pages {
		q := &l.pages[i]
		address := int64(l.area.Start) + q.at*l.pageSize
		if _, err := l.pagemap.ReadAt(entry, address/l.pageSize*entryBytes); err != nil {
			return fmt.Errorf("sample the memory of process %d: %w", l.area.PID, err)
		}
		word := uint64(0)
		for k := entryBytes - 1; k >= 0; k-- {
			word = word<<8 | uint64(entry[k])
		}
		switch {
		case word == 0:
			q.now = empty // reading it would make the kernel put something there
		case word&present == 0:
			q.now = unknown // reading it would bring it back from the swap space
		default:
			if l.asked = append(l.asked, i); len(l.asked) == batch {
				if err := l.read(); err != nil {
					return err
				}
			}
		}
	}
	return l.read()
}

// read reads the pages asked for and notes what they hold.
func (l *sampler) read() error {
	for len(l.asked) > 0 {
		l.local, l.remote = l.local[:0], l.remote[:0]
		for k, i := range l.asked {
			l.local = append(l.local, iovec(l.slot(k)))
			l.remote = append(l.remote, unix.RemoteIovec{Base: l.area.Start + uintptr(l.pages[i].at*l.pageSize), Len: int(l.pageSize)})
		}
		n, err := unix.ProcessVMReadv(l.area.PID, l.local, l.remote, 0)
		whole := max(n, 0) / int(l.pageSize)
		if errors.Is(err, unix.EFAULT) || err == nil && whole < len(l.asked) {
			l.pages[l.asked[whole]].now = unknown // it went away a moment ago
		} else if err != nil {
			return fmt.Errorf("read the memory of process %d: %w", l.area.PID, err)
		}
		for k, i := range l.asked[:whole] {
			l.pages[i].now = l.hash(l.slot(k))
		}
		l.asked = l.asked[min(whole+1, len(l.asked)):]
	}
	l.asked = l.asked[:0]
	return nil
}

func (l *sampler) slot(k int) []byte { return l.buffer[int64(k)*l.pageSize : int64(k+1)*l.pageSize] }

func iovec(b []byte) unix.Iovec {
	v := unix.Iovec{Base: unsafe.SliceData(b)}
	v.SetLen(len(b))
	return v
}

// hash stands for what a page holds.
func (l *sampler) hash(b []byte) uint64 {
	if bytes.Equal(b, l.zeros) {
		return empty
	}
	return max(maphash.Bytes(l.seed, b), unknown+1)
}
