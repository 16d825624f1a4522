package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"pagurus/act/host"
)

// Send receives a piece and, if it is filled, its content, which is valid until Send
// returns. It blocks as long as the connection to the target requires.
type Send func(p Piece, content []byte) error

// Passed says what a pass sent.
type Passed struct {
	SentBytes int64 // filled pages
	ZeroBytes int64 // pages that contain only zeros
	LazyBytes int64 // pages that are to be fetched
	// RemainingBytes is the memory written since, and memory that only the last pass
	// sends.
	RemainingBytes int64
}

const (
	// windowBytes is how much is protected, read and sent at a time. A small window
	// leaves little time for writes between protecting and reading. It is a multiple of a
	// huge page, because protecting a part of a huge page splits it permanently.
	windowBytes = 4 << 20
	// mostRegions is the most regions that one scan returns: more than a window has.
	mostRegions = windowBytes/PageBytes + 1
)

// pageKind selects the pages that a scan finds.
type pageKind struct{ flags, mask, inverted, give uint64 }

type kinds struct {
	written, all        pageKind // sent now and recorded as sent
	lastPass, untracked pageKind // sent at the last pass, which records nothing
}

// makeKinds returns the kinds for a kernel that knows guard pages, or does not. Pages
// that were only read are the kernel's one shared page of zeros. They need no copy before
// the last pass, which sends only that they are zero, so that stale content is not used.
func makeKinds(guards bool) kinds {
	g := uint64(0)
	if guards {
		g = host.PageGuard
	}
	return kinds{
		written:   pageKind{host.ScanTracked, host.PageWritten | host.PageZero | g, host.PageZero | g, host.PagePresent},
		all:       pageKind{host.ScanTracked, host.PageZero | g, host.PageZero | g, host.PagePresent},
		lastPass:  pageKind{host.ScanTracked, g, g, host.PageWritten | host.PageZero},
		untracked: pageKind{0, g, g, host.PageZero},
	}
}

// pass is one pass.
type pass struct {
	kinds
	ctx     context.Context
	send    Send
	last    bool
	lazy    bool // pages are left at the source and sent as Lazy
	done    Passed
	process *process // the one at hand
	pagemap uintptr  // its
	doubt   []area   // its, of the pass before
	reader
	room
}

// room holds buffers that passes reuse.
type room struct {
	outer, inner []host.PageRegion
	content      []byte
}

func makeRoom() room {
	return room{make([]host.PageRegion, mostRegions), make([]host.PageRegion, mostRegions), make([]byte, readBytes)}
}

func newPass(ctx context.Context, k kinds, r room, send Send) *pass {
	return &pass{kinds: k, ctx: ctx, send: send, room: r, reader: reader{buffer: r.content}}
}

// over makes a pass over one process. It returns errEnded if the process has ended.
func (s *pass) over(p *process) error {
	// The pagemap is opened before the areas are read. If the process executes another
	// program in between, addresses of its old memory are sent with its new memory's
	// content, which is never used. In the reverse order, pages of its new memory would
	// count as sent.
	pagemap, err := p.folder.open("pagemap")
	if err != nil {
		return err
	}
	defer func() { _ = pagemap.Close() }()
	rows, err := p.folder.areas()
	if err != nil {
		return err
	}
	areas := slices.Concat(rows...)
	s.process, s.pagemap = p, pagemap.Fd()
	s.reader.of(p)
	defer s.reader.close()
	for _, a := range without(p.sent, areas) {
		if err := s.emit(Gone, a.start, a.end-a.start, nil); err != nil {
			return err
		}
	}
	p.sent, s.doubt, p.doubt = areas, p.doubt, nil
	for _, row := range rows {
		if err := s.row(row); err != nil {
			return err
		}
	}
	p.passed = p.uffd >= 0
	return nil
}

// row passes over adjacent areas. The last pass scans them at once if all are tracked: a
// program may have tens of thousands, and scanning each of them would prolong the
// downtime. The other passes scan each area alone. Their scans record pages as sent, and
// if the kernel stops a scan in the middle, the recorded pages are unknown.
func (s *pass) row(row []area) error {
	if s.last && len(row) > 1 && s.process.passed && !around(row).in(s.doubt) {
		err := s.scanArea(s.lastPass, around(row), s.sendLast)
		if !errors.Is(err, unix.EPERM) {
			return err
		}
	}
	for _, a := range row {
		if err := s.area(a); err != nil {
			return err
		}
	}
	return nil
}

// area passes over one area. An area that was newly mapped, or moved here, is not
// tracked, and then all of it is sent.
func (s *pass) area(a area) error {
	p := s.process
	told := p.passed && !a.in(s.doubt)
	switch {
	case s.last && told:
		err := s.scanArea(s.lastPass, a, s.sendLast)
		if errors.Is(err, unix.EPERM) {
			err = s.scanArea(s.untracked, a, s.sendRegions)
		}
		return err
	case s.last:
		return s.scanArea(s.untracked, a, s.sendRegions)
	case p.uffd < 0:
		return nil // all of it is sent at the last pass
	case told:
		err := s.windows(s.written, a)
		if !errors.Is(err, unix.EPERM) {
			return err
		}
	}
	a = s.whole(a)
	if err := register(p.uffd, a); err != nil && forsaken(p.uffd) {
		return s.forget()
	}
	// If registering failed, the scan fails too: the area was unmapped, in part or
	// wholly, or its kind cannot be tracked. Memory that still exists is sent by the next
	// or the last pass.
	err := s.windows(s.all, a)
	if errors.Is(err, unix.EPERM) {
		p.doubt = append(p.doubt, a)
		return nil
	}
	return err
}

// whole returns an area with the bounds that its mappings have now. A pass may have read the
// areas long ago. Tracking only a part of a mapping would split it, and the program could
// not move it by mremap: Linux before 6.17 refuses, and later ones move the part before the
// tracked one and then fail.
func (s *pass) whole(a area) area {
	maps, err := s.process.folder.open("maps")
	if err != nil {
		return a
	}
	defer func() { _ = maps.Close() }()
	b := wholeMapping(maps.Fd(), a)
	if b != a {
		p := s.process
		p.sent = append(p.sent, b)
		slices.SortFunc(p.sent, func(a, b area) int { return cmp.Compare(a.start, b.start) })
	}
	return b
}

// errForgotten says that the process has executed another program.
var errForgotten = errors.New("the process has begun another program")

// forget makes everything sent of a process invalid, because it has executed another
// program. Its userfaultfd has become useless.
func (s *pass) forget() error {
	s.process.untrack()
	s.process.sent, s.process.asked = nil, 0
	if err := s.emit(Gone, 0, spaceEnd, nil); err != nil {
		return err
	}
	return errForgotten
}

// scanArea scans an area and hands over what it finds.
func (s *pass) scanArea(k pageKind, a area, take func([]host.PageRegion) error) error {
	for at := a.start; at < a.end; {
		found, end, err := s.scan(k, area{at, a.end}, s.outer)
		if err != nil {
			return err
		}
		if err := take(found); err != nil {
			return err
		}
		at = end
	}
	return nil
}

// scan finds pages and says how far it came.
func (s *pass) scan(k pageKind, a area, room []host.PageRegion) (found []host.PageRegion, end uint64, err error) {
	if err := s.ctx.Err(); err != nil {
		return nil, 0, err
	}
	q := host.PageScan{Flags: k.flags, Start: a.start, End: a.end, Inverted: k.inverted, Mask: k.mask, AnyOf: host.PagePresent | host.PageSwapped, Give: k.give}
	found, err = q.Run(s.pagemap, room)
	if err == nil && q.WalkEnd <= a.start {
		err = fmt.Errorf("the kernel stays at %#x", a.start)
	}
	return found, q.WalkEnd, ended(err)
}

// windows sends the selected pages of an area. A first scan finds them, because the large
// areas of some programs are almost empty. A second scan, one window at a time, records
// them as sent.
func (s *pass) windows(k pageKind, a area) error {
	protecting := k
	protecting.flags |= host.ScanProtect
	done := a.start
	return s.scanArea(k, a, func(found []host.PageRegion) error {
		for _, r := range found {
			for done = max(done, r.Start); done < r.End; {
				window := area{done, min(a.end, done/windowBytes*windowBytes+windowBytes)}
				inside, end, err := s.scan(protecting, window, s.inner)
				if err == nil {
					err = s.sendRegions(inside)
				}
				if err != nil {
					return err
				}
				done = end
			}
		}
		return nil
	})
}

// sendLast sends what a look for the last pass has found but what was sent
// before and not written since.
func (s *pass) sendLast(found []host.PageRegion) error {
	news := found[:0]
	for _, r := range found {
		if r.Categories != 0 {
			news = append(news, r)
		}
	}
	return s.sendRegions(news)
}

// sendRegions sends pages.
func (s *pass) sendRegions(found []host.PageRegion) error {
	for _, r := range found {
		if r.Categories&host.PageZero != 0 {
			if err := s.emit(Zero, r.Start, r.End-r.Start, nil); err != nil {
				return err
			}
			continue
		}
		if s.lazy {
			if err := s.emit(Lazy, r.Start, r.End-r.Start, nil); err != nil {
				return err
			}
			continue
		}
		for r.Start < r.End {
			if s.reader.full() {
				if err := s.flush(); err != nil {
					return err
				}
			}
			r.Start = s.reader.add(r.Start, r.End)
		}
	}
	return s.flush()
}

// flush reads the gathered pages and sends them.
func (s *pass) flush() error {
	return s.reader.read(func(address uint64, content []byte) error {
		return runs(content, func(zero bool, from, to int) error {
			if zero {
				return s.emit(Zero, address+uint64(from), uint64(to-from), nil)
			}
			return s.emit(Filled, address+uint64(from), uint64(to-from), content[from:to])
		})
	})
}

// emit sends one piece, split if it is too large.
func (s *pass) emit(what What, address, bytes uint64, content []byte) error {
	for bytes > 0 {
		if err := s.ctx.Err(); err != nil {
			return err
		}
		p := Piece{Process: s.process.number, What: what, Address: address, Bytes: bytes}
		switch what {
		case Zero:
			p.Bytes = min(bytes, mostZero)
			s.done.ZeroBytes += int64(p.Bytes)
		case Filled:
			s.done.SentBytes += int64(p.Bytes)
		case Lazy:
			p.Bytes = min(bytes, mostZero)
			s.done.LazyBytes += int64(p.Bytes)
		}
		if err := s.send(p, content); err != nil {
			return fmt.Errorf("send memory of process %d: %w", s.process.pid, err)
		}
		address, bytes = address+p.Bytes, bytes-p.Bytes
	}
	return nil
}

// count returns how many bytes of a process are still to be sent.
func (s *pass) count(p *process) (total int64, err error) {
	pagemap, err := p.folder.open("pagemap")
	if err != nil {
		return 0, err
	}
	defer func() { _ = pagemap.Close() }()
	rows, err := p.folder.areas()
	if err != nil {
		return 0, err
	}
	s.process, s.pagemap = p, pagemap.Fd()
	add := func(found []host.PageRegion) error {
		for _, r := range found {
			total += int64(r.End - r.Start)
		}
		return nil
	}
	unsent := s.all
	unsent.flags = 0
	// as counts one kind of page. After EPERM the area's pages do not count.
	as := func(k pageKind, a area) error {
		before := total
		err := s.scanArea(k, a, add)
		if errors.Is(err, unix.EPERM) {
			total = before
		}
		return err
	}
	one := func(a area) error {
		if p.passed && !a.in(p.doubt) {
			if err := as(s.written, a); !errors.Is(err, unix.EPERM) {
				return err
			}
		}
		return as(unsent, a)
	}
	for _, row := range rows {
		if len(row) > 1 && p.passed && !around(row).in(p.doubt) {
			if err := as(s.written, around(row)); err == nil {
				continue
			} else if !errors.Is(err, unix.EPERM) {
				return 0, err
			}
		}
		for _, a := range row {
			if err := one(a); err != nil {
				return 0, err
			}
		}
	}
	return total, nil
}
