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

// CRIU's page server protocol, in the part that `criu lazy-pages` uses
// (criu/page-xfer.c). Requests and answers begin with the same 32 bytes. In an answer the
// pages follow.
const (
	commandAdd        = 6 | 1<<2<<16 // with the flag that the pages follow
	commandGet        = 7
	commandClose      = 0x1023
	commandForceClose = 0x1024
	pageRequestBytes  = 32

	// mostAnswered is the most pages in one answer. CRIU asks again for missing pages; it
	// never asks for more than this.
	mostAnswered = 1024
)

// errEarly says that CRIU closed the connection before it had all memory.
var errEarly = errors.New("CRIU, which puts it in its place, was killed or failed; see the log of criu lazy-pages")

// Serve gives the received memory to a `criu lazy-pages --page-server`. The other end of
// the connection should be a socket that CRIU inherits (--ps-socket), because any process
// could connect to a port. Serve returns when CRIU has all the pages that it wants. After
// an error the processes cannot continue and must be killed.
func (s *Store) Serve(ctx context.Context, conn net.Conn) error {
	return s.serve(ctx, conn, func() error { return nil })
}

// serve is Serve with a check: CRIU may end only if parting returns nil, otherwise it
// waits.
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

// SocketPair returns a connection, and its other end as a file for a program to inherit.
func SocketPair() (net.Conn, *os.File, error) { return socketPair(unix.SOCK_STREAM) }

// server answers requests on one connection.
type server struct {
	store    *Store
	conn     net.Conn
	parting  func() error
	requests *bufio.Reader
	answer   []byte
}

// pageRequest is a request as CRIU sends it.
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

// one answers one request and reports whether more can come.
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
		if _, err := v.conn.Write(make([]byte, 4)); err != nil { // status: success
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
