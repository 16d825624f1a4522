package memory

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

func blocks(st os.FileInfo) int64 { return st.Sys().(*syscall.Stat_t).Blocks * 512 }

// asker is CRIU's end of a connection.
type asker struct {
	t    testing.TB
	conn net.Conn
	over chan error // Serve's result
}

func serve(t testing.TB, store *Store) *asker {
	t.Helper()
	ours, theirs, err := SocketPair()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.FileConn(theirs)
	if err := errors.Join(err, theirs.Close()); err != nil {
		t.Fatal(err)
	}
	a := &asker{t: t, conn: conn, over: make(chan error, 1)}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.over <- store.Serve(ctx, ours)
		_ = ours.Close()
	}()
	t.Cleanup(func() { stop(); <-ended; _ = conn.Close() })
	return a
}

func ask(command uint32, process uint64, address uint64, pages uint64) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(command))
	b = binary.LittleEndian.AppendUint64(b, pages)
	b = binary.LittleEndian.AppendUint64(b, address)
	return binary.LittleEndian.AppendUint64(b, process)
}

// get requests pages and returns those that arrive.
func (a *asker) get(process, address, pages uint64) []byte {
	a.t.Helper()
	if _, err := a.conn.Write(ask(commandGet, process, address, pages)); err != nil {
		a.t.Fatal(err)
	}
	head := make([]byte, pageRequestBytes)
	if _, err := io.ReadFull(a.conn, head); err != nil {
		a.t.Fatal(err)
	}
	n := binary.LittleEndian.Uint64(head[8:])
	if binary.LittleEndian.Uint32(head) != commandAdd || n == 0 || n > pages || !bytes.Equal(head[16:], ask(0, process, address, 0)[16:]) {
		a.t.Fatalf("the answer begins with %x", head)
	}
	content := make([]byte, n*PageBytes)
	if _, err := io.ReadFull(a.conn, content); err != nil {
		a.t.Fatal(err)
	}
	return content
}

func filled(t testing.TB, store *Store, process uint32, address uint64, pages int) {
	t.Helper()
	content := make([]byte, pages*PageBytes)
	for i := range content {
		content[i] = byte(i/PageBytes + 1)
	}
	if err := store.Put(Piece{Process: process, What: Filled, Address: address, Bytes: uint64(len(content))}, content); err != nil {
		t.Fatal(err)
	}
}

func TestServe(t *testing.T) {
	store := newStore(t)
	filled(t, store, 7, 0x10000, 3000)
	if err := store.Put(Piece{Process: 7, What: Zero, Address: 0x10000 + 3000*PageBytes, Bytes: 10 * PageBytes}, nil); err != nil {
		t.Fatal(err)
	}
	a := serve(t, store)
	if b := a.get(7, 0x10000, 1); b[0] != 1 {
		t.Error("not the first page")
	}
	if b := a.get(7, 0x10000+5*PageBytes, 5000); len(b) != mostAnswered*PageBytes || b[0] != 6 || b[PageBytes] != 7 {
		t.Errorf("%d bytes, and not the right ones", len(b))
	}
	if b := a.get(7, 0x10000+2990*PageBytes, 15); len(b) != 10*PageBytes {
		t.Errorf("%d bytes before zeros", len(b))
	}
	if b := a.get(7, 0x10000+3000*PageBytes, 15); len(b) != 10*PageBytes || !bytes.Equal(b[:PageBytes], zeros[:]) {
		t.Errorf("%d bytes of zeros", len(b))
	}
	if b := a.get(7, 0x10000, 1); b[0] != 1 {
		t.Error("a page asked for again is another")
	}
	if _, err := a.conn.Write(ask(commandForceClose, 0, 0, 0)); err != nil {
		t.Fatal(err)
	}
	status := make([]byte, 8)
	if n, err := a.conn.Read(status); err != nil || n != 4 || !bytes.Equal(status[:4], make([]byte, 4)) {
		t.Errorf("the end is answered by %x: %v", status[:n], err)
	}
	if err := <-a.over; err != nil {
		t.Error(err)
	}
}

func TestServeRefuses(t *testing.T) {
	for name, sent := range map[string][]byte{
		"a page that never came":   ask(commandGet, 7, 0, 1),
		"the page after the last":  ask(commandGet, 7, 0x10000+3*PageBytes, 1),
		"an unknown process":       ask(commandGet, 8, 0x10000, 1),
		"a process that cannot be": ask(commandGet, 1<<32+7, 0x10000, 1),
		"no pages":                 ask(commandGet, 7, 0x10000, 0),
		"half a page":              ask(commandGet, 7, 0x10001, 1),
		"an address beyond any":    ask(commandGet, 7, ^uint64(0)&^(PageBytes-1), 5),
		"another command":          ask(3, 7, 0x10000, 1),
		"nothing":                  nil,
		"half a request":           ask(commandGet, 7, 0x10000, 1)[:20],
	} {
		t.Run(name, func(t *testing.T) {
			store := newStore(t)
			filled(t, store, 7, 0x10000, 3)
			a := serve(t, store)
			if _, err := a.conn.Write(sent); err != nil {
				t.Fatal(err)
			}
			if err := a.conn.(*net.UnixConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			got, _ := io.ReadAll(a.conn)
			err := <-a.over
			if err == nil || len(got) != 0 {
				t.Errorf("answered with %d bytes: %v", len(got), err)
			}
			t.Log(err)
		})
	}
}

// TestServeEnds: Serve ends with its context.
func TestServeEnds(t *testing.T) {
	ours, theirs, err := SocketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	defer ours.Close()
	ctx, stop := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, stop)
	if err := NewStore().Serve(ctx, ours); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func FuzzServe(f *testing.F) {
	f.Add(ask(commandGet, 7, 0x10000, 1))
	f.Add(append(ask(commandGet, 7, 0x11000, 5000), ask(commandClose, 0, 0, 0)...))
	f.Add(ask(commandForceClose, 1, 2, 3))
	f.Add(ask(0xffffffff, 1<<63, 1<<63, 1<<63))
	f.Fuzz(func(t *testing.T, sent []byte) {
		store := newStore(t)
		filled(t, store, 7, 0x10000, 3)
		a := serve(t, store)
		go func() {
			_, _ = a.conn.Write(sent)
			_ = a.conn.(*net.UnixConn).CloseWrite()
		}()
		got, _ := io.ReadAll(a.conn)
		if err := <-a.over; err == nil && (len(got) < 4 || !bytes.Equal(got[len(got)-4:], make([]byte, 4))) {
			t.Errorf("it ended well after %d bytes", len(got))
		}
	})
}

func FuzzPut(f *testing.F) {
	f.Add(uint32(1), byte(1), uint64(PageBytes), uint64(PageBytes))
	f.Add(uint32(1), byte(2), uint64(PageBytes), uint64(1<<30))
	f.Add(uint32(1), byte(3), uint64(0), uint64(spaceEnd))
	f.Add(uint32(88), byte(4), uint64(PageBytes), uint64(PageBytes))
	f.Fuzz(func(t *testing.T, process uint32, what byte, address, size uint64) {
		store := newStore(t)
		content := make([]byte, min(size, 1<<20))
		if What(what) != Filled {
			content = nil
		}
		p := Piece{Process: process, What: What(what), Address: address, Bytes: size}
		if err := store.Put(p, content); err != nil || p.What == Gone || p.What == Lazy { // nothing to read yet
			return
		}
		if b, err := store.read(process, address, make([]byte, PageBytes)); err != nil || !bytes.Equal(b, zeros[:]) {
			t.Errorf("%+v: %v", p, err)
		}
	})
}
