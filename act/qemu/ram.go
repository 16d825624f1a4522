// This file samples a process's memory from outside. It measures how much is filled and
// how much changes in various intervals.
//
// It repeatedly reads a sample of the pages and compares their content. It asks the
// process nothing and write-protects nothing, so the guest in that memory does not
// notice: no exits, no faults, no newly allocated pages. A page rewritten with the same
// content counts as unchanged, but a copy that tracks writes sends it. So a program
// changes a little more than this measures. The alternatives cost the guest: tracking
// writes (soft-dirty, QEMU's dirty-bitmap mode) protects every page. QEMU's own page
// sampling, which also reads and compares, supports one interval of whole seconds at a
// time.
//
// It must not know what a guest is. Its tests use the test's own memory and, in package
// qemu, a guest that dirties at a known rate.

package qemu

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"pagurus/act/host"
	"pagurus/fleet"
)

// ramArea is a part of a process's address space.
type ramArea struct {
	PID   int
	Start uintptr
	Bytes int64
}

const (
	batch = 128 // pages that are read at once
	// entryBytes is the size of an entry of /proc/PID/pagemap (see the kernel's
	// Documentation/admin-guide/mm/pagemap.rst).
	entryBytes = 8
	present    = 1 << 63
)

// sampleRAM looks at the area as planned. It takes as long as the plan says and ends
// early, with an error, when ctx does.
func sampleRAM(ctx context.Context, a ramArea, p host.SamplePlan) (fleet.Profile, error) {
	if a.Bytes <= 0 || p.Pages <= 0 || len(p.After) == 0 {
		return fleet.Profile{}, errors.New("there is nothing to sample")
	}
	return host.Profile(func() (fleet.Profile, error) {
		l, err := open(a, p.Pages)
		if err != nil {
			return fleet.Profile{}, err
		}
		defer l.pagemap.Close()
		return l.run(ctx, p)
	})
}

// sampler is one sampling in progress.
type sampler struct {
	area     ramArea
	pageSize int64
	pagemap  *os.File
	reader   *host.PageReader
	pages    []page
}

// page is one sampled page with its content.
type page struct {
	at int64 // number within the area
	host.Sampled
}

func open(a ramArea, pages int) (*sampler, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", a.PID))
	if err != nil {
		return nil, fmt.Errorf("sample the memory of process %d: %w", a.PID, err)
	}
	l := &sampler{area: a, pageSize: int64(os.Getpagesize()), pagemap: f, reader: host.NewPageReader(batch)}
	total := max(a.Bytes/l.pageSize, 1)
	n := min(int64(pages), total)
	// Takes one random page in each of n equal parts. Changes are usually clustered, and
	// are then met more evenly than by chance alone. A fixed distance could coincide with
	// a program's.
	for i := range n {
		from, to := i*total/n, (i+1)*total/n
		l.pages = append(l.pages, page{at: from + rand.Int64N(to-from)})
	}
	return l, nil
}

func (l *sampler) run(ctx context.Context, p host.SamplePlan) (fleet.Profile, error) {
	begun := time.Now()
	out := fleet.Profile{At: begun.UTC().Round(0), MemoryBytes: l.area.Bytes, Pages: len(l.pages)}
	if err := l.pass(); err != nil {
		return out, err
	}
	filled := 0
	for i := range l.pages {
		q := &l.pages[i]
		q.MarkFirst()
		if q.Now != host.PageEmpty {
			filled++
		}
	}
	out.FilledBytes = l.scaled(filled)
	var err error
	out.Changed, err = p.Curve(ctx, begun, func() (int64, int64, error) {
		if err := l.pass(); err != nil {
			return 0, 0, err
		}
		sinceFirst, sinceBefore := 0, 0
		for i := range l.pages {
			first, before := l.pages[i].Changes()
			if first {
				sinceFirst++
			}
			if before {
				sinceBefore++
			}
		}
		return l.scaled(sinceFirst), l.scaled(sinceBefore), nil
	})
	return out, err
}

// scaled is what so many pages of the sample stand for.
func (l *sampler) scaled(pages int) int64 {
	return int64(float64(l.area.Bytes) * float64(pages) / float64(len(l.pages)))
}

// pass reads every present page of the sample.
func (l *sampler) pass() error {
	entry := make([]byte, entryBytes)
	for i := range l.pages {
		q := &l.pages[i]
		address := int64(l.area.Start) + q.at*l.pageSize
		if _, err := l.pagemap.ReadAt(entry, address/l.pageSize*entryBytes); err != nil {
			return fmt.Errorf("sample the memory of process %d: %w", l.area.PID, err)
		}
		switch word := binary.LittleEndian.Uint64(entry); {
		case word == 0:
			q.Now = host.PageEmpty // reading it would make the kernel put something there
		case word&present == 0:
			q.Now = host.PageUnknown // reading it would bring it back from the swap space
		default:
			if err := l.reader.Add(l.area.PID, uint64(address), &q.Sampled); err != nil {
				return err
			}
		}
	}
	return l.reader.Flush()
}
