// Package bus speaks with Xen from dom0: with xenstored over its socket, and with a guest over a ring of its
// memory (console.go).
//
// It must not know Pagurus's guests. What it does runs on a Xen host only, and its tests there are those of act/xen; the
// pure parts run alone.
package bus

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"sync"
	"time"
)

// Socket is where xenstored listens.
const Socket = "/run/xenstored/socket"

// Kinds of messages (xen/io/xs_wire.h).
const (
	xsDirectory  = 1
	xsRead       = 2
	xsWatch      = 4
	xsWrite      = 11
	xsRm         = 13
	xsSetPerms   = 14
	xsWatchEvent = 15
	xsError      = 16
)

// Limits of a message, and of the time for an answer.
const (
	headBytes   = 16
	mostPayload = 4096
	answerLimit = 20 * time.Second
)

// Store is a connection to xenstored. Its methods may be called at once.
type Store struct {
	conn  net.Conn
	mu    sync.Mutex // held during a question
	event chan string
	reply chan message
	over  chan struct{} // closed when the connection has ended
	why   error
}

type message struct {
	kind    uint32
	payload []byte
}

// OpenStore connects to xenstored.
func OpenStore() (*Store, error) {
	conn, err := net.DialTimeout("unix", Socket, answerLimit)
	if err != nil {
		return nil, fmt.Errorf("reach xenstored: %w", err)
	}
	s := &Store{conn: conn, event: make(chan string, 64), reply: make(chan message), over: make(chan struct{})}
	go s.listen()
	return s, nil
}

// Close ends the connection, with its watches.
func (s *Store) Close() error { return s.conn.Close() }

// Over is closed when the connection has ended, as when xenstored was started again.
func (s *Store) Over() <-chan struct{} { return s.over }

// listen reads answers and events.
func (s *Store) listen() {
	for {
		m, err := readMessage(s.conn)
		if err != nil {
			s.why = fmt.Errorf("xenstored: %w", err)
			close(s.over)
			return
		}
		if m.kind != xsWatchEvent {
			select {
			case s.reply <- m:
			case <-time.After(answerLimit): // nobody waits: the one who asked has given up
			}
			continue
		}
		path, _, _ := strings.Cut(string(m.payload), "\x00")
		select {
		case s.event <- path:
		default: // whoever watches looks at all again after each event
		}
	}
}

func readMessage(from io.Reader) (m message, err error) {
	var head [headBytes]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return m, err
	}
	m.kind = binary.LittleEndian.Uint32(head[:])
	n := binary.LittleEndian.Uint32(head[12:])
	if n > mostPayload {
		return m, fmt.Errorf("a message of %d bytes", n)
	}
	m.payload = make([]byte, n)
	_, err = io.ReadFull(from, m.payload)
	return m, err
}

// ask sends a question and returns the answer.
func (s *Store) ask(kind uint32, payload string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]byte, headBytes, headBytes+len(payload))
	binary.LittleEndian.PutUint32(out, kind)
	binary.LittleEndian.PutUint32(out[12:], uint32(len(payload)))
	if len(payload) > mostPayload {
		return nil, fmt.Errorf("xenstored takes at most %d bytes", mostPayload)
	}
	if err := s.conn.SetWriteDeadline(time.Now().Add(answerLimit)); err != nil {
		return nil, err
	}
	if _, err := s.conn.Write(append(out, payload...)); err != nil {
		return nil, fmt.Errorf("xenstored: %w", err)
	}
	select {
	case m := <-s.reply:
		return m.payload, storeError(m)
	case <-s.over:
		return nil, s.why
	case <-time.After(answerLimit):
		s.conn.Close() // an answer that came later would be taken for another's
		return nil, errors.New("xenstored does not answer")
	}
}

// storeError is the error that an answer is; one about what does not exist is an fs.ErrNotExist.
func storeError(m message) error {
	if m.kind != xsError {
		return nil
	}
	word := string(bytes.TrimRight(m.payload, "\x00"))
	if word == "ENOENT" {
		return fmt.Errorf("xenstored: %w", fs.ErrNotExist)
	}
	return fmt.Errorf("xenstored says %s", word)
}

// Read returns the value of a path.
func (s *Store) Read(path string) (string, error) {
	b, err := s.ask(xsRead, path+"\x00")
	if err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return string(b), nil
}

// List returns the names below a path; none if it does not exist.
func (s *Store) List(path string) ([]string, error) {
	b, err := s.ask(xsDirectory, path+"\x00")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", path, err)
	}
	return strings.FieldsFunc(string(b), func(r rune) bool { return r == 0 }), nil
}

// Write sets the value of a path.
func (s *Store) Write(path, value string) error {
	if _, err := s.ask(xsWrite, path+"\x00"+value); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// Permit says whose a path is, and who may only read it.
func (s *Store) Permit(path string, owner, reader int) error {
	if _, err := s.ask(xsSetPerms, fmt.Sprintf("%s\x00n%d\x00r%d\x00", path, owner, reader)); err != nil {
		return fmt.Errorf("say whose %s is: %w", path, err)
	}
	return nil
}

// Remove removes a path with all below. It is not an error if there is none.
func (s *Store) Remove(path string) error {
	if _, err := s.ask(xsRm, path+"\x00"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}

// Watch has Events tell of changes at and below a path, and once at first.
func (s *Store) Watch(path string) error {
	if _, err := s.ask(xsWatch, path+"\x00"+path+"\x00"); err != nil {
		return fmt.Errorf("watch %s: %w", path, err)
	}
	return nil
}

// Events has the paths of what changed. If nobody reads it for long, some are left out.
func (s *Store) Events() <-chan string { return s.event }

// Domains is the path that Events names when a domain has ended, or shut down.
const Domains = "@releaseDomain"

// Named finds the domain of a name; 0: there is none.
func (s *Store) Named(name string) (int, error) {
	all, err := s.List("/local/domain")
	if err != nil {
		return 0, err
	}
	for _, text := range all {
		var id int
		if _, err := fmt.Sscan(text, &id); err != nil || id == 0 {
			continue
		}
		if is, err := s.Read(fmt.Sprintf("/local/domain/%d/name", id)); err == nil && is == name {
			return id, nil
		}
	}
	return 0, nil
}
