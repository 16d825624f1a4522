package memory

import (
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
	// RemainingBytes is what was written since, and everything that is sent only at the
	// last pass.
	RemainingBytes int64
}

const (
	// windowBytes is how much is protected, read and sent at a time: what is sent
	// at once is seldom written in between. A multiple of a huge page, which is
	// split for good when only a part of it is protected.
	windowBytes = 4 << 20
	// mostRegions is how many one look gives: above what a window has.
	mostRegions = windowBytes/PageBytes + 1
)

// pageKind is what a scan looks for.
type pageKind struct{ flags, mask, inverted, give uint64 }

// kinds are those there are.
type kinds struct {
	written, all        pageKind // to be sent now, and noted as sent
	lastPass, untracked pageKind // to be sent at the last pass, which notes nothing
}

// makeKinds makes them for a kernel that knows guard pages, or not. Pages that
// were only ever read, which the kernel keeps as one page of zeros, need no copy
// before the last pass, and then only a word, lest an older content be taken.
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

// pass is a pass under way.
type pass struct {
	kinds
	ctx     context.Context
	send    Send
	last    bool
	lazy    bool // what is to be sent is owed
	done    Passed
	process *process // the one at hand
	pagemap uintptr  // its
	doubt   []area   // its, of the pass before
	reader
	room
}

// room is what passes look and read into, one after the other.
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

// over passes over one process. It gives errEnded if the process has ended.
func (s *pass) over(p *process) error {
	// In this order. Of a process that begins another program between the two,
	// pages of its old memory are sent with what its new memory holds there, which
	// nobody will ask for. The other way round, pages of its new memory would
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
// if the kernel stops a scan in the middle it is unknown what was recorded.
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

// area passes over one area. Only the kernel knows what is tracked. An area that was
// newly mapped, or moved here, is not tracked, and then all of it is sent.
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
	if err := register(p.uffd, a); err != nil && forsaken(p.uffd) {
		return s.forget()
	}
	// Where that was refused, the scan is, too: the area is gone again, in part or
	// wholly, or not of a kind that can be tracked. What is still there is sent by
	// the next pass, or the last.
	err := s.windows(s.all, a)
	if errors.Is(err, unix.EPERM) {
		p.doubt = append(p.doubt, a)
		return nil
	}
	return err
}

// errForgotten says that a process has begun another program.
var errForgotten = errors.New("the process has begun another program")

// forget takes back all that was sent of a process, since it has begun another
// program. Its userfaultfd is of no use any more.
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

// windows sends what is to be sent of an area. A first look finds where that is,
// which in the vast empty areas of some programs is almost nowhere; only the
// second, a window at a time, notes it as sent.
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

// flush reads the pages gathered and sends them.
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

// emit sends one piece, in several if it is too long for one.
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

// count adds up what is still to be sent of a process.
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
	// as counts by a kind; after EPERM, where the kernel does not tell, nothing of it counts.
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
