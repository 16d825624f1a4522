package framing

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"
)

// pair is a connection's two ends.
func pair(t *testing.T) (a, b *Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	there := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			t.Error(err)
		}
		there <- c
	}()
	a, err = Dial(t.Context(), Place{netip.MustParseAddrPort(l.Addr().String()), "w"})
	if err != nil {
		t.Fatal(err)
	}
	b = New(<-there)
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// TestMessagesComeIntoOneRoom: a new buffer for each message kept a target's host busy with
// garbage collection.
func TestMessagesComeIntoOneRoom(t *testing.T) {
	a, b := pair(t)
	go func() {
		for _, text := range []string{"the longest", "short", "as long too"} {
			a.Send('x', []byte(text))
		}
		a.Flush()
	}()
	var room *byte
	for _, want := range []string{"the longest", "short", "as long too"} {
		_, content, err := b.Receive(time.Minute)
		if err != nil || string(content) != want {
			t.Fatalf("%q came for %q: %v", content, want, err)
		}
		if room != nil && room != &content[0] {
			t.Errorf("%q came into other room", want)
		}
		room = &content[0]
	}
}

func TestMessages(t *testing.T) {
	a, b := pair(t)
	long := bytes.Repeat([]byte("long"), Most/4)
	go func() {
		a.Send('x')
		a.Send('y', []byte("two "), []byte("parts"))
		a.Send('z', long)
		a.Flush()
	}()
	for _, want := range []struct {
		kind    byte
		content []byte
	}{{'x', []byte{}}, {'y', []byte("two parts")}, {'z', long}} {
		kind, content, err := b.Receive(time.Minute)
		if err != nil || kind != want.kind || !bytes.Equal(content, want.content) {
			t.Fatalf("%q came with %d bytes, want %q with %d: %v", kind, len(content), want.kind, len(want.content), err)
		}
	}
	if err := a.Send('x', long, []byte{1}); err == nil {
		t.Error("a message that is too long was sent")
	}
	a.Close()
	if _, _, err := b.Receive(time.Minute); !Over(err) {
		t.Errorf("the end of the connection is %v", err)
	}
	if a.Sent() != int64(3*headBytes+9+len(long)) {
		t.Errorf("%d bytes are said to be sent", a.Sent())
	}
}

// TestOver: errors of files are not errors of the connection, although they look alike.
func TestOver(t *testing.T) {
	for _, err := range []error{syscall.ENOENT, &os.PathError{Err: syscall.ENOSPC}, errors.New("x"), nil} {
		if Over(err) {
			t.Errorf("%v is said to be the connection's end", err)
		}
	}
}

// TestDrain: the last message arrives, although the other side was still sending.
func TestDrain(t *testing.T) {
	a, b := pair(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.Send('!', []byte("no more"))
		b.Flush()
		b.Drain()
		b.Close()
	}()
	for range 64 {
		if err := a.Send('x', make([]byte, Most/4)); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Flush(); err != nil {
		t.Fatal(err)
	}
	if kind, content, err := a.Receive(time.Minute); err != nil || kind != '!' || string(content) != "no more" {
		t.Errorf("%q %q %v", kind, content, err)
	}
	a.Close()
	<-done
}

// TestPatience: Receive does not wait for ever for a silent peer.
func TestPatience(t *testing.T) {
	a, b := pair(t)
	if _, _, err := b.Receive(10 * time.Millisecond); !Over(err) {
		t.Errorf("a silent connection is %v", err)
	}
	if err := a.Send('x'); err != nil {
		t.Fatal(err)
	}
}

// TestLimit: the rate limit is kept, however the data is divided. A busy machine can only be
// slower.
func TestLimit(t *testing.T) {
	const rate, bytes, parts = 4 << 20, 1 << 20, 64
	a, b := pair(t)
	go io.Copy(io.Discard, b.raw)
	a.Limit(rate)
	begun := time.Now()
	for range parts {
		if err := a.Send('x', make([]byte, bytes/parts)); err != nil {
			t.Fatal(err)
		}
	}
	if took, least := time.Since(begun), time.Second*bytes/rate; took < least*9/10 {
		t.Errorf("%d bytes at %d bytes a second took only %s", bytes, rate, took)
	}
}

func TestPlace(t *testing.T) {
	p := Place{netip.MustParseAddrPort("198.18.0.1:4711"), "ABC"}
	if got, err := ParsePlace(p.String()); err != nil || got != p {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "/", "198.18.0.1:4711", "198.18.0.1:4711/", "198.18.0.1/x", "198.18.0.1:0/x", "host:1/x", "198.18.0.1:1/a/b", "198.18.0.1:1/a b"} {
		if p, err := ParsePlace(bad); err == nil {
			t.Errorf("%q is %v", bad, p)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Dial(ctx, p); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// FuzzRead: any input is messages or an error.
func FuzzRead(f *testing.F) {
	f.Add([]byte{'x', 0, 0, 0, 1, 7, 'y', 0, 0, 0, 0})
	f.Add([]byte{'x', 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		for {
			_, content, err := Read(r, nil)
			if err != nil {
				return
			}
			if len(content) > len(b) {
				t.Errorf("%d bytes came of %d", len(content), len(b))
			}
		}
	})
}

// FuzzParsePlace: a place that can be parsed prints the same text.
func FuzzParsePlace(f *testing.F) {
	f.Add("198.18.0.1:4711/ABC")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePlace(text)
		if err != nil {
			return
		}
		if again, err := ParsePlace(p.String()); err != nil || again != p {
			t.Errorf("%q is %v and then %v: %v", text, p, again, err)
		}
	})
}
