package memory

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
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
	pageRequestBytes  = 32

	// mostAnswered is how many pages one answer has at most. CRIU asks again for
	// what is missing; it never asks for more than this.
	mostAnswered = 1024
)

// errEarly says that CRIU has hung up.
var errEarly = errors.New("CRIU, which puts it in its place, was killed or failed; see the log of criu lazy-pages")

// Serve gives the memory received to a `criu lazy-pages --page-server`, whose
// other end of the connection is best a socket that it inherits (--ps-socket),
// since a port could be asked by others. It returns when CRIU has all it wants, or
// with an error; then the processes will not get on, and must be killed.
func (s *Store) Serve(ctx context.Context, conn net.Conn) error {
	return s.serve(ctx, conn, func() error { return nil })
}

// serve is Serve; parting is asked whether CRIU may go when it wants to, and else it waits.
func (s *Store) serve(ctx context.Context, conn net.Conn, parting func() error) error {
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	v := &server{store: s, conn: conn, parting: parting, requests: bufio.NewReader(conn), answer: make([]byte, pageRequestBytes+mostAnswered*PageBytes)}
	for {
		more, err := v.one()
		if ctx.Err() != nil {
			return fmt.Errorf("serve memory: %w", ctx.Err())
		}
		if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
			err = errEarly
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
	parting  func() error
	requests *bufio.Reader
	answer   []byte
}

// pageRequest is one, as it comes.
type pageRequest struct {
	command                 uint32
	pages, address, process uint64
}

func parseRequest(b [pageRequestBytes]byte) pageRequest {
	return pageRequest{
		command: binary.LittleEndian.Uint32(b[0:]),
		pages:   binary.LittleEndian.Uint64(b[8:]),
		address: binary.LittleEndian.Uint64(b[16:]),
		process: binary.LittleEndian.Uint64(b[24:]),
	}
}

// one answers one request and says whether more can come.
func (v *server) one() (more bool, err error) {
	var b [pageRequestBytes]byte
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
		if err := v.parting(); err != nil {
			return false, err
		}
		if _, err := v.conn.Write(make([]byte, 4)); err != nil { // all is well
			return false, err
		}
		return false, nil
	}
	return false, fmt.Errorf("CRIU gave the command %#x, which is not known", q.command)
}

// get answers a request for pages, or for the first of them.
func (v *server) get(b [pageRequestBytes]byte, q pageRequest) error {
	if q.pages == 0 || q.address%PageBytes != 0 || q.address >= spaceEnd || q.process == 0 || q.process > mostProcess {
		return fmt.Errorf("CRIU asked for %d pages at %#x of process %d, which cannot be", q.pages, q.address, q.process)
	}
	pages := v.answer[pageRequestBytes:]
	pages = pages[:min(q.pages, mostAnswered)*PageBytes]
	content, err := v.store.read(uint32(q.process), q.address, pages)
	if err != nil {
		return err
	}
	binary.LittleEndian.PutUint32(b[0:], commandAdd)
	binary.LittleEndian.PutUint64(b[8:], uint64(len(content)/PageBytes))
	copy(v.answer, b[:])
	_, err = v.conn.Write(v.answer[:pageRequestBytes+len(content)])
	return err
}
