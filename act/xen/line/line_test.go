package line

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
)

// pair are both ends of a line.
func pair(t *testing.T) (*Guest, *Host) {
	t.Helper()
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close(); far.Close() })
	h := NewHost(near)
	go func() { _ = h.Listen(near) }()
	return NewGuest(far), h
}

// hard is content that looks like marks.
var hard = []byte{escape, begin, escape, escape, literal, 0, escape, end, 'x', escape}

// echo answers each connection of the guest's with what it gets, and tells when one has ended.
func echo(g *Guest, over chan<- error) {
	for {
		c, err := g.Accept()
		if err != nil {
			close(over)
			return
		}
		_, err = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
		over <- err
	}
}

func TestConnections(t *testing.T) {
	g, h := pair(t)
	over := make(chan error, 9)
	go echo(g, over)
	for range 3 { // each ends the one before
		near, far := net.Pipe()
		if err := h.BeginFor(far); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := h.Say(far, hard); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, len(hard))
			if _, err := io.ReadFull(near, got); err != nil || !bytes.Equal(got, hard) {
				t.Fatalf("%x came back as %x: %v", hard, got, err)
			}
		}
		defer func() {
			if _, err := near.Read(make([]byte, 1)); err == nil {
				t.Error("a connection is open after another one")
			}
		}()
		defer h.End(far)
	}
	_, other := net.Pipe()
	if err := h.Say(other, hard); !errors.Is(err, ErrOver) {
		t.Errorf("a stranger says something: %v", err)
	}
	for range 2 {
		if err := <-over; err != nil {
			t.Error(err)
		}
	}
}

// A guest that has lost bytes finds the next beginning.
func TestLosses(t *testing.T) {
	text := append(append([]byte{'a', escape, begin, 1}, Stuff(hard)...), append([]byte{escape, begin, 2}, Stuff([]byte("second"))...)...)
	for lost := range len(text) - len("second") - 3 {
		g := NewGuest(struct {
			io.Reader
			io.Writer
		}{bytes.NewReader(append(bytes.Clone(text[:lost]), text[lost+1:]...)), io.Discard})
		last := ""
		for {
			c, err := g.Accept()
			if err != nil {
				break
			}
			all, _ := io.ReadAll(c)
			last = string(all)
		}
		if last != "second" {
			t.Errorf("without byte %d the last connection has %q", lost, last)
		}
	}
}

// FuzzReader: content comes back as it was, whatever else is on the line.
func FuzzReader(f *testing.F) {
	f.Add([]byte{escape}, []byte("x"))
	f.Add([]byte{escape, begin, 'a'}, hard)
	f.Fuzz(func(t *testing.T, noise, content []byte) {
		r := NewReader(bytes.NewReader(append(append(bytes.Clone(noise), escape, literal, escape, begin, 7), Stuff(content)...)))
		var last []byte
		for {
			e, err := r.Next()
			if err != nil {
				break
			}
			if e.Mark == begin {
				last = nil
			}
			last = append(last, e.Content...)
		}
		if !bytes.Equal(last, content) {
			t.Errorf("%x after %x is %x", content, noise, last)
		}
	})
}
