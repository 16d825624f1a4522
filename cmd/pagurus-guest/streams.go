package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

const (
	// outputLimit bounds the output of one stream that the host has not fetched. Beyond it
	// the program waits, as with any full pipe.
	outputLimit = 1 << 20
	// inputLimit bounds the input that a program has not read.
	inputLimit = 64 << 10
	// chunk is how much is copied at once.
	chunk = 32 << 10
	// lastWords is how long a stream may stay silent after its program's end while child
	// processes still hold it open.
	lastWords = 2 * time.Second
)

// notice lets many callers wait for a change.
type notice struct{ changed chan struct{} }

func (n *notice) wait() <-chan struct{} {
	if n.changed == nil {
		n.changed = make(chan struct{})
	}
	return n.changed
}

func (n *notice) tell() {
	if n.changed != nil {
		close(n.changed)
		n.changed = nil
	}
}

// output holds a program's output that the host has not fetched.
type output struct {
	mu     sync.Mutex
	notice notice
	held   []byte
	base   int64 // offset of held in the stream
	closed bool  // nothing more is added
}

// fill copies everything from r to the output. ended is closed when the program has ended.
func (o *output) fill(r *os.File, ended <-chan struct{}) {
	defer o.close()
	copyAll(o, r, ended)
}

// Write adds b, after waiting until less than outputLimit is held.
func (o *output) Write(b []byte) (int, error) {
	for {
		o.mu.Lock()
		if len(o.held) < outputLimit {
			o.held = append(o.held, b...)
			o.notice.tell()
			o.mu.Unlock()
			return len(b), nil
		}
		wait := o.notice.wait()
		o.mu.Unlock()
		<-wait
	}
}

func (o *output) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.notice.tell()
}

// read gives bytes from offset on and forgets those before it.
func (o *output) read(ctx context.Context, offset int64) (data []byte, eof bool, err error) {
	for {
		data, eof, wait, err := o.readFrom(offset)
		if err != nil || eof || len(data) > 0 {
			return data, eof, err
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
	}
}

func (o *output) readFrom(offset int64) (data []byte, eof bool, wait <-chan struct{}, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if offset < o.base {
		return nil, false, nil, fmt.Errorf("output before byte %d has been fetched already and is gone from the guest", o.base)
	}
	if offset > o.base+int64(len(o.held)) {
		return nil, false, nil, fmt.Errorf("output ends at byte %d in the guest, before byte %d", o.base+int64(len(o.held)), offset)
	}
	if gone := int(offset - o.base); gone > 0 {
		o.held = o.held[:copy(o.held, o.held[gone:])]
		o.base = offset
		if len(o.held) == 0 && cap(o.held) > 2*chunk {
			o.held = nil
		}
		o.notice.tell()
	}
	data = append([]byte(nil), o.held[:min(len(o.held), chunk)]...)
	return data, o.closed && len(data) == 0, o.notice.wait(), nil
}

// input holds the host's input that a program has not read.
type input struct {
	mu     sync.Mutex
	notice notice
	held   []byte
	next   int64 // offset of the next byte from the host
	eof    bool  // no more input comes
	closed bool  // the reader is gone; input is dropped
}

// write takes input that begins at offset, waits for room, and returns the next offset.
func (in *input) write(ctx context.Context, offset int64, data []byte, eof bool) (next int64, err error) {
	for {
		next, wait := in.put(offset, data, eof)
		if wait == nil {
			return next, nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return next, ctx.Err()
		}
	}
}

// put takes the input that fits. If nothing fits, wait is closed when to try again.
func (in *input) put(offset int64, data []byte, eof bool) (next int64, wait <-chan struct{}) {
	in.mu.Lock()
	defer in.mu.Unlock()
	end := offset + int64(len(data))
	if offset > in.next || end < in.next || in.eof {
		return in.next, nil // bytes between are missing, or all are known
	}
	fresh := data[in.next-offset:]
	if in.closed {
		in.next = end
		return in.next, nil
	}
	taken := min(len(fresh), inputLimit-len(in.held))
	if len(fresh) > 0 && taken == 0 {
		return in.next, in.notice.wait()
	}
	in.held = append(in.held, fresh[:taken]...)
	in.next += int64(taken)
	in.eof = eof && taken == len(fresh)
	in.notice.tell()
	return in.next, nil
}

// drain copies all input to w until it ends or w fails.
func (in *input) drain(w io.WriteCloser) {
	defer in.close()
	defer w.Close()
	for {
		data, eof := in.get()
		if len(data) > 0 {
			if _, err := w.Write(data); err != nil {
				return
			}
		} else if eof {
			return
		}
	}
}

// get waits for input, or its end.
func (in *input) get() (data []byte, eof bool) {
	for {
		in.mu.Lock()
		if len(in.held) > 0 || in.eof || in.closed {
			data, eof = in.held, in.eof || in.closed
			in.held = nil
			in.notice.tell()
			in.mu.Unlock()
			return data, eof
		}
		wait := in.notice.wait()
		in.mu.Unlock()
		<-wait
	}
}

func (in *input) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	in.held = nil
	in.notice.tell()
}

// copyAll copies everything from a program's stream r to w, and closes r. ended is closed
// when the program has ended. Other processes may then hold the stream open without end, so it
// ends after lastWords of silence.
func copyAll(w io.Writer, r *os.File, ended <-chan struct{}) error {
	defer r.Close()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-ended:
			r.SetReadDeadline(time.Now().Add(lastWords)) // for the Read under way
		case <-stop:
		}
	}()
	buffer := make([]byte, chunk)
	for {
		select {
		case <-ended: // the time that w took does not count as silence of r
			r.SetReadDeadline(time.Now().Add(lastWords))
		default:
		}
		n, err := r.Read(buffer)
		if n > 0 {
			if _, err := w.Write(buffer[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
