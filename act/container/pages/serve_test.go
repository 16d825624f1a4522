package pages

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"pagurus/internal/testkit"
)

func blocks(st os.FileInfo) int64 { return st.Sys().(*syscall.Stat_t).Blocks * 512 }

// asker is CRIU's end of a connection.
type asker struct {
	t    testing.TB
	conn net.Conn
	over chan error // what Serve gave
}

func serve(t testing.TB, store *Store, running func() ([]int, error)) *asker {
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
		a.over <- store.Serve(ctx, ours, running)
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

// get asks for pages and gives what came.
func (a *asker) get(process, address, pages uint64) []byte {
	a.t.Helper()
	if _, err := a.conn.Write(ask(commandGet, process, address, pages)); err != nil {
		a.t.Fatal(err)
	}
	head := make([]byte, requestBytes)
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
	a := serve(t, store, nil)
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
			a := serve(t, store, nil)
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

// TestServeEnds with ctx.
func TestServeEnds(t *testing.T) {
	ours, theirs, err := SocketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	defer ours.Close()
	ctx, stop := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, stop)
	if err := NewStore().Serve(ctx, ours, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// TestReturns: what a process has had for a while is given back, and only that,
// unless another is there that may ask for it again.
func TestReturns(t *testing.T) {
	testkit.Root(t)
	for name, stranger := range map[string]bool{"alone": false, "with a child": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const all, asked, has = 100, 60, 50
			b, err := unix.Mmap(-1, 0, all*PageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
			if err == nil {
				err = unix.Madvise(b, unix.MADV_NOHUGEPAGE)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = unix.Munmap(b) }()
			for i := range has {
				b[i*PageBytes] = 1
			}
			self, at := uint32(os.Getpid()), uint64(uintptr(unsafe.Pointer(&b[0])))
			store := newStore(t)
			filled(t, store, self, at, all)
			a := serve(t, store, func() ([]int, error) {
				if stranger {
					return []int{int(self), 1}, nil
				}
				return []int{int(self)}, nil
			})
			a.get(uint64(self), at, asked)
			time.Sleep(settle + 10*time.Millisecond)
			a.get(uint64(self), at+asked*PageBytes, 1)
			if b := a.get(uint64(self), at+(asked+1)*PageBytes, 1); b[0] != asked+2 {
				t.Error("not the page asked for")
			}
			want := int64(all-has) * PageBytes
			if stranger {
				want = all * PageBytes
			}
			if got := store.HeldBytes(); got != want {
				t.Errorf("%d bytes are held, want %d", got, want)
			}
			if got := blocksOf(t, store); got != want {
				t.Errorf("the file takes %d bytes, want %d", got, want)
			}
			// A child that has ended may have been the one that asked.
			if b := a.get(uint64(self), at+has*PageBytes, 1); b[0] != has+1 {
				t.Error("what the process has not is not there any more")
			}
		})
	}
}

// TestGivenBack: CRIU may ask for what was given back, for a child that has ended,
// and gets something; but not while a process lives that may want it.
func TestGivenBack(t *testing.T) {
	testkit.Leftovers(t)
	s := startSubject(t, "obey")
	_, at := s.do("map 0 64 -1")
	child, _ := s.do("fork 0 7") // has the pages, and its parent has not
	testkit.Until(t, answerLimit, "the child has its memory", func() bool {
		a := area{at, at + 64*PageBytes}
		p := &process{folder: mustFolder(t, child)}
		has, err := (&returns{}).has(p, a)
		return err == nil && slices.Equal(has, []area{a})
	})
	store := newStore(t)
	filled(t, store, uint32(child), at, 65)
	if err := store.give(uint32(child), area{at, at + 64*PageBytes}); err != nil {
		t.Fatal(err)
	}
	begin := func() *asker { return serve(t, store, s.family) }
	a := begin()
	if b := a.get(uint64(child), at+64*PageBytes, 1); b[0] != 65 {
		t.Error("not the page asked for")
	}
	if _, err := a.conn.Write(ask(commandGet, uint64(child), at+10*PageBytes, 1)); err != nil {
		t.Fatal(err)
	}
	if err := <-a.over; !errors.Is(err, errGiven) {
		t.Errorf("while another may want it: %v", err)
	}
	s.do("fill 0 1") // now the other has its own
	if b := begin().get(uint64(child), at+10*PageBytes, 100); len(b) != 54*PageBytes || !bytes.Equal(b, make([]byte, len(b))) {
		t.Errorf("%d bytes, and not zeros", len(b))
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
		a := serve(t, store, func() ([]int, error) { return nil, unix.EIO })
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
	f.Fuzz(func(t *testing.T, process uint32, what byte, address, size uint64) {
		store := newStore(t)
		content := make([]byte, min(size, 1<<20))
		if What(what) != Filled {
			content = nil
		}
		p := Piece{Process: process, What: What(what), Address: address, Bytes: size}
		if err := store.Put(p, content); err != nil || p.What == Gone {
			return
		}
		if b, err := store.read(process, address, make([]byte, PageBytes)); err != nil || !bytes.Equal(b, zeros[:]) {
			t.Errorf("%+v: %v", p, err)
		}
	})
}
