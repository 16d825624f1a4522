package pages

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// CRIU's page server protocol, as far as `criu lazy-pages` speaks it (criu/page-xfer.c):
// requests and answers begin with the same 32 bytes, and an answer with pages is
// followed by them.
const (
	commandAdd        = 6 | 1<<2<<16 // with the flag that the pages follow
	commandGet        = 7
	commandClose      = 0x1023
	commandForceClose = 0x1024
	requestBytes      = 32

	// mostAnswered is how many pages one answer has at most. CRIU asks again for
	// what is missing; it never asks for more than this.
	mostAnswered = 1024
)

// errEarly says that CRIU has hung up.
var errEarly = errors.New("CRIU ended before it had all memory; see the log of criu lazy-pages")

// Serve gives the memory received to a `criu lazy-pages --page-server`, whose
// other end of the connection is best a socket that it inherits (--ps-socket),
// since a port could be asked by others. It returns when CRIU has all it wants, or
// with an error; then the processes will not get on, and must be killed.
//
// What the processes have is given back some time after, so that this machine does
// not hold it twice for long; running lists them, by their numbers here. CRIU asks
// for a page again only for a process that was forked before its parent had that
// page: as long as there is a process of which no memory was received nothing is
// given back. nil gives nothing back before Close.
func (s *Store) Serve(ctx context.Context, conn net.Conn, running func() ([]int, error)) error {
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	v := &server{store: s, conn: conn, requests: bufio.NewReader(conn),
		answer: make([]byte, requestBytes+mostAnswered*PageBytes), returns: returns{store: s, running: running}}
	for {
		more, err := v.one()
		if ctx.Err() != nil {
			return fmt.Errorf("serve memory: %w", ctx.Err())
		}
		if err != nil {
			return fmt.Errorf("serve memory: %w", err)
		}
		if !more {
			return nil
		}
	}
}

// SocketPair gives a connection and its other end as a file, for a program to
// inherit.
func SocketPair() (net.Conn, *os.File, error) { return socketPair(unix.SOCK_STREAM) }

// server answers on one connection.
type server struct {
	store    *Store
	conn     net.Conn
	requests *bufio.Reader
	answer   []byte
	returns  returns
}

// request is one, as it comes.
type request struct {
	command                 uint32
	pages, address, process uint64
}

func parseRequest(b [requestBytes]byte) request {
	return request{
		command: binary.LittleEndian.Uint32(b[0:]),
		pages:   binary.LittleEndian.Uint64(b[8:]),
		address: binary.LittleEndian.Uint64(b[16:]),
		process: binary.LittleEndian.Uint64(b[24:]),
	}
}

// one answers one request and says whether more can come.
func (v *server) one() (more bool, err error) {
	var b [requestBytes]byte
	if _, err := io.ReadFull(v.requests, b[:]); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return false, errEarly
		}
		return false, err
	}
	q := parseRequest(b)
	switch q.command & 0xffff {
	case commandGet:
		return true, v.get(b, q)
	case commandClose, commandForceClose:
		if _, err := v.conn.Write(make([]byte, 4)); err != nil { // all is well
			return false, err
		}
		return false, nil
	}
	return false, fmt.Errorf("CRIU gave the command %#x, which is not known", q.command)
}

// get answers a request for pages, or for the first of them.
func (v *server) get(b [requestBytes]byte, q request) error {
	if q.pages == 0 || q.address%PageBytes != 0 || q.address >= spaceEnd || q.process == 0 || q.process > mostProcess {
		return fmt.Errorf("CRIU asked for %d pages at %#x of process %d, which cannot be", q.pages, q.address, q.process)
	}
	pages := v.answer[requestBytes:]
	pages = pages[:min(q.pages, mostAnswered)*PageBytes]
	content, err := v.store.read(uint32(q.process), q.address, pages)
	if errors.Is(err, errGiven) && v.returns.nobodys(area{q.address, q.address + uint64(len(content))}) {
		// CRIU does not yet know that a child that it asks this for has ended.
		clear(content)
		err = nil
	}
	if err != nil {
		return err
	}
	binary.LittleEndian.PutUint32(b[0:], commandAdd)
	binary.LittleEndian.PutUint64(b[8:], uint64(len(content)/PageBytes))
	copy(v.answer, b[:])
	if _, err := v.conn.Write(v.answer[:requestBytes+len(content)]); err != nil {
		return err
	}
	return v.returns.note(uint32(q.process), area{q.address, q.address + uint64(len(content))})
}

// returns gives memory back that CRIU has.
type returns struct {
	store   *Store
	running func() ([]int, error)
	queue   []delivery
	looked  time.Time
	room    []region
}

// delivery is what CRIU was given, and when.
type delivery struct {
	process uint32
	area    area
	at      time.Time
}

const (
	// settle is how long after its delivery a page is given back at the earliest.
	// A process that is just being forked is not yet seen; by then it is.
	settle = time.Second
	// between is how often is looked.
	between = 200 * time.Millisecond
)

// note notes what was delivered, and gives back what can be.
func (r *returns) note(process uint32, a area) error {
	if r.running == nil {
		return nil
	}
	now := time.Now()
	r.queue = append(r.queue, delivery{process, a, now})
	if now.Sub(r.queue[0].at) < settle || now.Sub(r.looked) < between {
		return nil
	}
	r.looked = now
	restored, strangers, err := r.processes()
	defer closeAll(restored, strangers)
	if err != nil || len(strangers) > 0 {
		return nil // who cannot be seen may be a stranger
	}
	left := r.queue[:0]
	for _, d := range r.queue {
		p := find(restored, d.process)
		if p == nil || now.Sub(d.at) < settle {
			left = append(left, d)
			continue
		}
		rest, err := r.give(p, d)
		if err != nil {
			return fmt.Errorf("give memory back: %w", err)
		}
		left = append(left, rest...)
	}
	r.queue = left
	return nil
}

// give gives back of a delivery what the process has, and says what is left. What
// it has not may have been asked for by a child of it that has ended, and will be
// asked for again.
func (r *returns) give(p *process, d delivery) (left []delivery, err error) {
	has, err := r.has(p, d.area)
	if err != nil {
		return []delivery{d}, nil // it has just ended
	}
	for _, a := range has {
		if err := r.store.give(d.process, a); err != nil {
			return nil, err
		}
	}
	for _, a := range without([]area{d.area}, has) {
		left = append(left, delivery{d.process, a, d.at})
	}
	return left, nil
}

// has says which of some pages a process has.
func (r *returns) has(p *process, a area) (list []area, err error) {
	pagemap, err := p.folder.open("pagemap")
	if err != nil {
		return nil, err
	}
	defer func() { _ = pagemap.Close() }()
	if r.room == nil {
		r.room = make([]region, mostAnswered)
	}
	q := scan{start: a.start, end: a.end, anyOf: isPresent | isSwapped, give: isPresent}
	found, err := q.run(int(pagemap.Fd()), r.room)
	for _, f := range found {
		list = append(list, area{f.start, f.end})
	}
	return list, ended(err)
}

// nobodys reports whether of pages that were given back nobody is left who could
// want them: the process had them, and so had every child of it that lives.
func (r *returns) nobodys(a area) bool {
	restored, strangers, err := r.processes()
	defer closeAll(restored, strangers)
	for _, p := range strangers {
		if err == nil && r.lacks(p, a) {
			return false
		}
	}
	return err == nil
}

// lacks reports whether a process has room for pages, and not all of them.
func (r *returns) lacks(p *process, a area) bool {
	has, err := r.has(p, a)
	var areas []area
	if err == nil {
		areas, err = p.folder.areas()
	}
	if err != nil {
		return !errors.Is(err, errEnded)
	}
	missing := without([]area{a}, has)
	return !slices.Equal(without(missing, areas), missing)
}

// processes lists those that run: such as were restored, and others. To be closed
// by the caller, error or not.
func (r *returns) processes() (restored, strangers []*process, err error) {
	pids, err := r.running()
	if err != nil {
		return nil, nil, err
	}
	for _, pid := range pids {
		p, err := openProcess(pid)
		switch {
		case errors.Is(err, errEnded):
		case err != nil:
			return restored, strangers, err
		case !p.alive(): // it asks for nothing
			p.close()
		case r.store.knows(p.number):
			restored = append(restored, p)
		default:
			strangers = append(strangers, p)
		}
	}
	return restored, strangers, nil
}

func find(list []*process, number uint32) *process {
	for _, p := range list {
		if p.number == number {
			return p
		}
	}
	return nil
}

func closeAll(lists ...[]*process) {
	for _, p := range slices.Concat(lists...) {
		p.close()
	}
}
