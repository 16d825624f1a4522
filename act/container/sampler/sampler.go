// Package sampler measures from outside how a container's processes use their memory: how much
// of it is filled, and how much changes within certain times. A move would have to send that.
//
// It finds the existing pages and reads a sample of them repeatedly. No process takes part, is
// stopped, or has its pages write-protected, so the processes do not notice. Package memory
// finds every write, because it protects pages. It stops each process for a moment, splits its
// huge pages and costs a fault for each written page. That is right for a copy, but too much for
// a measurement every half minute. The price here: a page that is written with the same content
// counts as unchanged.
//
// It must not know what a guest is. Its tests use the kernel and processes of their own.
package sampler

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"time"

	"pagurus/act/host"
	"pagurus/fleet"
	"pagurus/internal/pause"
)

// Subject says whose memory is sampled.
type Subject struct {
	Processes []int  // PIDs on this host
	Files     string // the tmpfs with the files that they write; empty: there is none
}

// Plan says how many pages are sampled, and at which times after the first sample, in rising
// order. Every two consecutive samples give an interval as well.
type Plan struct {
	Pages int
	After []time.Duration
}

// SampleMemory samples the subject as planned. It takes as long as the plan says, and ends
// early, with an error, when ctx does. It is not an error if processes end meanwhile. Processes
// that begin meanwhile are not sampled.
func SampleMemory(ctx context.Context, s Subject, p Plan) (fleet.Profile, error) {
	if p.Pages <= 0 || len(p.After) == 0 {
		return fleet.Profile{}, errors.New("there is nothing to sample")
	}
	// One thread, whose processor time is this measurement's.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began, err := host.ThreadTime()
	if err != nil {
		return fleet.Profile{}, err
	}
	l, err := open(s)
	if err != nil {
		return fleet.Profile{}, err
	}
	defer l.close()
	out, err := l.run(ctx, p)
	if err != nil {
		return fleet.Profile{}, err
	}
	ended, err := host.ThreadTime()
	out.Took = ended - began
	return out, err
}

// run counts the pages, samples them and computes the profile.
func (l *sampler) run(ctx context.Context, p Plan) (fleet.Profile, error) {
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
		q.first, q.before = q.now, q.now
		if l.areas[q.area].files {
			continue
		}
		own++
		if q.now != empty {
			filled++
		}
	}
	out.Pages, out.Mappings, out.Segments = len(l.sample), l.mappings, l.segments
	out.FilledBytes = first.files + share(filled, own, first.own*pageBytes)
	out.MemoryBytes = max(out.FilledBytes, first.own*pageBytes+first.files)
	last, before := time.Duration(0), first
	for _, after := range p.After {
		if err := pause.For(ctx, after-time.Since(begun)); err != nil {
			return out, err
		}
		at := time.Since(begun)
		now, err := l.census()
		if err == nil {
			err = l.read()
		}
		if err != nil {
			return out, err
		}
		sinceFirst, sinceBefore := l.changed()
		scaled := func(n int) int64 { return share(n, len(l.sample), first.pages()*pageBytes) }
		out.Changed = append(out.Changed, fleet.Changed{Within: at, Bytes: scaled(sinceFirst) + now.grown(first)})
		if last > 0 {
			out.Changed = append(out.Changed, fleet.Changed{Within: at - last, Bytes: scaled(sinceBefore) + now.grown(before)})
		}
		last, before = at, now
	}
	out.Changed = host.Rising(out.Changed)
	return out, nil
}

// changed counts the changed pages of the sample.
func (l *sampler) changed() (sinceFirst, sinceBefore int) {
	differ := func(a, b uint64) bool { return a != b && a != unknown && b != unknown }
	for i := range l.sample {
		q := &l.sample[i]
		if differ(q.first, q.now) {
			sinceFirst++
		}
		if differ(q.before, q.now) {
			sinceBefore++
		}
		q.before = q.now
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
	return l.each(func(area int, r region) {
		here := int64(r.end-r.start) / pageBytes
		for next < n && at < passed+here {
			l.sample = append(l.sample, page{area: area, address: r.start + uint64(at-passed)*pageBytes, there: true})
			if next++; next < n {
				at = place(next)
			}
		}
		passed += here
	})
}
