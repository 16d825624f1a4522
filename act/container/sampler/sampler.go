// Package sampler measures from outside how a container's processes use their memory: how much
// of it is filled, and how much changes within certain times. A move would have to send that.
//
// The package finds out which pages there are, and reads a sample of them again and again. The
// processes do not notice: they are not stopped, they take no part, and their pages are not
// write-protected. Package memory protects pages, so it knows every write. For that it stops
// each process for a moment, splits its huge pages, and costs it a fault for each page that it
// writes. That is right for a copy, but too much for a measurement every half minute. The
// price is that a page counts as unchanged if the same content is written again.
//
// The package must not know what a guest is. Its tests use the kernel and processes of their
// own.
package sampler

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"pagurus/act/host"
	"pagurus/fleet"
)

// Subject says whose memory is sampled.
type Subject struct {
	Processes []int  // PIDs on this host
	Files     string // the tmpfs with the files that they write; empty: there is none
}

// SampleMemory samples the subject as planned. It takes as long as the plan says. If ctx ends
// earlier, so does SampleMemory, with an error. It is not an error if a process ends
// meanwhile. New processes are not sampled.
func SampleMemory(ctx context.Context, s Subject, p host.SamplePlan) (fleet.Profile, error) {
	if p.Pages <= 0 || len(p.After) == 0 {
		return fleet.Profile{}, errors.New("there is nothing to sample")
	}
	return host.Profile(func() (fleet.Profile, error) {
		l, err := open(s)
		if err != nil {
			return fleet.Profile{}, err
		}
		defer l.close()
		return l.run(ctx, p)
	})
}

// run is the whole of it: a census, a sample, and what becomes of that.
func (l *sampler) run(ctx context.Context, p host.SamplePlan) (fleet.Profile, error) {
	begun := time.Now()
	out := fleet.Profile{At: begun.UTC().Round(0)}
	first, err := l.census()
	if err != nil {
		return out, err
	}
	if err := l.choose(p.Pages, first.pages()); err != nil {
		return out, err
	}
	if err := l.read(); err != nil {
		return out, err
	}
	filled, own := 0, 0
	for i := range l.sample {
		q := &l.sample[i]
		q.MarkFirst()
		if l.areas[q.area].files {
			continue
		}
		own++
		if q.Now != host.PageEmpty {
			filled++
		}
	}
	out.Pages, out.Mappings, out.Segments = len(l.sample), l.mappings, l.segments
	out.FilledBytes = first.files + share(filled, own, first.own*pageBytes)
	out.MemoryBytes = max(out.FilledBytes, first.own*pageBytes+first.files)
	before := first
	out.Changed, err = p.Curve(ctx, begun, func() (int64, int64, error) {
		now, err := l.census()
		if err == nil {
			err = l.read()
		}
		if err != nil {
			return 0, 0, err
		}
		sinceFirst, sinceBefore := l.changed()
		scaled := func(n int) int64 { return share(n, len(l.sample), first.pages()*pageBytes) }
		last := before
		before = now
		return scaled(sinceFirst) + now.grown(first), scaled(sinceBefore) + now.grown(last), nil
	})
	return out, err
}

// changed counts the changed pages of the sample.
func (l *sampler) changed() (sinceFirst, sinceBefore int) {
	for i := range l.sample {
		first, before := l.sample[i].Changes()
		if first {
			sinceFirst++
		}
		if before {
			sinceBefore++
		}
	}
	return sinceFirst, sinceBefore
}

// share scales n pages of a sample of of pages to bytes.
func share(n, of int, bytes int64) int64 {
	if of == 0 {
		return 0
	}
	return int64(float64(bytes) * float64(n) / float64(of))
}

// counted holds the amount of memory.
type counted struct {
	own    int64 // pages of memory without a file
	mapped int64 // pages of mapped files
	files  int64 // bytes of all files, mapped or not
}

func (c counted) pages() int64 { return c.own + c.mapped }

// grown returns the bytes that have appeared since. They are not in the sample.
func (c counted) grown(since counted) int64 {
	return max(0, c.own-since.own)*pageBytes + max(0, c.files-since.files)
}

// choose samples all pages: a random one from each of n equal parts. Changing pages are mostly
// close together, and this covers them more evenly than chance alone. A fixed distance might
// coincide with a program's own.
func (l *sampler) choose(want int, pages int64) error {
	n := min(int64(want), pages)
	l.sample = make([]page, 0, n)
	next, passed := int64(0), int64(0)
	place := func(i int64) int64 {
		from, to := i*pages/n, (i+1)*pages/n
		return from + rand.Int64N(to-from)
	}
	if n == 0 {
		return nil
	}
	at := place(0)
	return l.each(func(area int, r host.PageRegion) {
		here := int64(r.End-r.Start) / pageBytes
		for next < n && at < passed+here {
			l.sample = append(l.sample, page{area: area, address: r.Start + uint64(at-passed)*pageBytes, there: true})
			if next++; next < n {
				at = place(next)
			}
		}
		passed += here
	})
}
