package transfer

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/container/framing"
)

// Recording is a connection that leads to a file instead of to a target. What a Sender sends
// is written there. Whatever it asks is answered at once, as a target does that has received
// everything. Replay reads the file. Its methods may be called concurrently.
type Recording struct {
	mu     sync.Mutex
	file   *os.File
	memory *os.File // has what is written while no disk may be waited for; nil: that goes to the file
	answer []byte
	bytes  int64
	sum    uint32
	closed bool
	failed error // of the first write that failed
}

// NewRecording returns a Recording that writes to an empty file, which it owns from then on.
func NewRecording(file *os.File) (*Recording, error) {
	var answer bytes.Buffer
	if err := Reply(framing.New(wire{Reader: &answer, Writer: &answer}), Answer{}); err != nil {
		return nil, err
	}
	return &Recording{file: file, answer: answer.Bytes()}, nil
}

// Conn returns the Sender's end.
func (r *Recording) Conn() *framing.Conn { return framing.New(wire{r, r, r}) }

// Read returns the answer to a question.
func (r *Recording) Read(p []byte) (int, error) {
	if len(p) < len(r.answer) {
		return 0, io.ErrShortBuffer
	}
	return copy(p, r.answer), nil
}

// Write writes to the file, or keeps it in memory.
func (r *Recording) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, os.ErrClosed
	}
	to := r.file
	if r.memory != nil {
		to = r.memory
	}
	n, err := to.Write(p)
	r.bytes += int64(n)
	r.sum = crc32.Update(r.sum, castagnoli, p[:n])
	if r.failed == nil {
		r.failed = err
	}
	return n, err
}

// Failed returns why the recording cannot be used, if something could not be written. A Sender's own
// error speaks of another host.
func (r *Recording) Failed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

// castagnoli is the table of a checksum that processors compute.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// HoldInMemory keeps what is written from now on in memory, until Pour.
func (r *Recording) HoldInMemory() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.memory != nil {
		return nil
	}
	fd, err := unix.MemfdCreate("pagurus-checkpoint", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("make room for a checkpoint in memory: %w", err)
	}
	r.memory = os.NewFile(uintptr(fd), "checkpoint")
	return nil
}

// pourBytes is how much is moved from memory to the file at a time.
const pourBytes = 1 << 20

// Pour moves what HoldInMemory kept to the file, to which the rest then goes, too. Nothing may be
// written meanwhile. After an error the recording cannot be used.
func (r *Recording) Pour() error {
	r.mu.Lock()
	memory := r.memory
	r.mu.Unlock()
	if memory == nil {
		return nil
	}
	buffer := make([]byte, pourBytes)
	for at := int64(0); ; {
		n, err := memory.ReadAt(buffer, at)
		if n > 0 {
			if _, err := r.file.Write(buffer[:n]); err != nil {
				return err
			}
			at += int64(n)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return os.ErrClosed
	}
	r.memory = nil
	return memory.Close()
}

// Sync writes the file to its disk, and returns how long it is, and its checksum.
func (r *Recording) Sync() (bytes int64, sum uint32, err error) {
	r.mu.Lock()
	bytes, sum, memory, closed := r.bytes, r.sum, r.memory, r.closed
	r.mu.Unlock()
	switch {
	case closed:
		return 0, 0, os.ErrClosed
	case memory != nil:
		return 0, 0, errors.New("a part of the checkpoint is still in memory")
	}
	return bytes, sum, r.file.Sync()
}

// Bytes returns how many bytes have been recorded.
func (r *Recording) Bytes() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bytes
}

// Close ends the recording. Nothing more can be written. It may be called again.
func (r *Recording) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	err := r.file.Close()
	if r.memory != nil {
		err = errors.Join(err, r.memory.Close())
	}
	return err
}

// Replay has a Receiver receive what was recorded: so many bytes with this checksum. After an
// error what was received cannot be used.
func Replay(in *Receiver, from io.Reader, bytes int64, sum uint32) error {
	tape := &tape{from: from}
	err := in.Receive(framing.New(wire{Reader: tape, Writer: io.Discard}))
	_, failed := io.Copy(io.Discard, tape) // what the connection has not read ahead
	switch {
	case failed != nil:
		return fmt.Errorf("read the checkpoint: %w", failed)
	case tape.bytes != bytes || tape.sum != sum:
		return errors.Join(fmt.Errorf("the checkpoint is damaged: it has %d bytes with the checksum %08x, and was written with %d and %08x", tape.bytes, tape.sum, bytes, sum), err)
	case err != nil:
		return fmt.Errorf("the checkpoint is not one that this agent understands: %w", err)
	}
	return nil
}

// tape adds up what is read.
type tape struct {
	from  io.Reader
	bytes int64
	sum   uint32
}

func (t *tape) Read(p []byte) (int, error) {
	n, err := t.from.Read(p)
	t.bytes += int64(n)
	t.sum = crc32.Update(t.sum, castagnoli, p[:n])
	return n, err
}

// wire is a connection whose two directions lead to different places, where nothing takes long.
type wire struct {
	io.Reader
	io.Writer
	end io.Closer // may be nil
}

// Close closes the connection.
func (w wire) Close() error {
	if w.end == nil {
		return nil
	}
	return w.end.Close()
}

// LocalAddr returns nil, because no host has an end of it.
func (wire) LocalAddr() net.Addr { return nil }

// RemoteAddr returns nil, as LocalAddr does.
func (wire) RemoteAddr() net.Addr { return nil }

// SetDeadline does nothing.
func (wire) SetDeadline(time.Time) error { return nil }

// SetReadDeadline does nothing.
func (wire) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline does nothing.
func (wire) SetWriteDeadline(time.Time) error { return nil }
