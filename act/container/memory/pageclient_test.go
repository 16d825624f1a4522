package memory

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"pagurus/internal/testkit"
)

// someMemory returns memory of this process in which every page contains its own number.
func someMemory(t *testing.T, pages int) (content []byte, at uint64) {
	t.Helper()
	b, err := unix.Mmap(-1, 0, pages*servedPageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	for i := range b {
		b[i] = byte(i / servedPageBytes)
	}
	return b, uint64(uintptr(unsafe.Pointer(&b[0])))
}

// pair is a connection over the loopback.
func pair(t *testing.T) (one, other *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	o, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return c.(*net.TCPConn), o.(*net.TCPConn)
}

func file(t *testing.T, c *net.TCPConn) *os.File {
	t.Helper()
	f, err := c.File()
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	return f
}

// servedMemory starts a page server for this process's memory.
func servedMemory(t *testing.T, rate int64) (c *PageClient, tally string, pid int) {
	t.Helper()
	testkit.Root(t)
	testkit.Leftovers(t)
	ours, theirs := pair(t)
	tally = filepath.Join(t.TempDir(), "tally")
	f, err := os.Create(tally)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	conn := file(t, theirs)
	defer conn.Close()
	if pid, err = ServePages(conn, f, rate, []int{os.Getpid(), 1 << 22}); err != nil {
		t.Fatal(err)
	}
	if c, err = joinServer(file(t, ours)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Finish() })
	return c, tally, pid
}

// TestFetch: requested pages arrive unchanged and are counted. When no more are wanted, that is
// recorded, and the page server ends.
func TestFetch(t *testing.T) {
	c, tally, pid := servedMemory(t, 0)
	const pages = Most/servedPageBytes + 3
	want, at := someMemory(t, pages)
	got := make([]byte, len(want))
	self, err := inside(fmt.Sprint(os.Getpid()))
	if err == nil {
		err = c.Fetch(self, at, got)
	}
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("it is other memory: %v", err)
	}
	testkit.Until(t, 10*time.Second, "what came is counted", func() bool {
		got, err := ReadTally(tally)
		return err == nil && got == Tally{Bytes: pages * servedPageBytes}
	})
	if err := c.Finish(); err != nil {
		t.Error(err)
	}
	testkit.Until(t, 10*time.Second, "nothing more is wanted", func() bool {
		got, err := ReadTally(tally)
		return err == nil && got == Tally{Bytes: pages * servedPageBytes, All: true}
	})
	testkit.Until(t, 10*time.Second, "the process has ended", func() bool { return unix.Kill(pid, 0) != nil })
}

// TestNothingIsInvented: a request that cannot be met ends the connection.
func TestNothingIsInvented(t *testing.T) {
	for what, q := range map[string]request{
		"no memory":         {uint32(os.Getpid()), servedPageBytes, 0},
		"another process's": {uint32(os.Getpid()) + 1, servedPageBytes, 1 << 20},
		"half a page":       {uint32(os.Getpid()), servedPageBytes / 2, 1 << 20},
		"nothing":           {uint32(os.Getpid()), 0, 1 << 20},
		"too much":          {uint32(os.Getpid()), 2 * Most, 1 << 20},
	} {
		t.Run(what, func(t *testing.T) {
			c, tally, _ := servedMemory(t, 0)
			if _, err := c.conn.Write(q.encode()); err != nil {
				t.Fatal(err)
			}
			if b, _ := io.ReadAll(c.conn); len(b) != 0 {
				t.Errorf("%d bytes came", len(b))
			}
			if err := c.Fetch(uint32(os.Getpid()), 1<<20, make([]byte, servedPageBytes)); err == nil {
				t.Error("and more")
			}
			if got, err := ReadTally(tally); err != nil || got != (Tally{}) {
				t.Errorf("the tally is %+v: %v", got, err)
			}
		})
	}
}

// TestPace: the page server keeps its rate limit.
func TestPace(t *testing.T) {
	c, _, _ := servedMemory(t, 1<<20)
	want, at := someMemory(t, 128) // half a MiB
	got, begun := make([]byte, servedPageBytes), time.Now()
	self, err := inside(fmt.Sprint(os.Getpid()))
	for i := 0; err == nil && i < len(want); i += servedPageBytes {
		err = c.Fetch(self, at+uint64(i), got)
	}
	if took := time.Since(begun); err != nil || took < 450*time.Millisecond {
		t.Errorf("it took %s: %v", took, err)
	}
}

func FuzzPageServer(f *testing.F) {
	f.Add(request{7, servedPageBytes, 1 << 20}.encode())
	f.Add(append(request{7, Most, 0}.encode(), request{}.encode()...))
	f.Add([]byte{0, 0})
	f.Fuzz(func(t *testing.T, sent []byte) {
		ours, theirs := net.Pipe()
		tally, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer tally.Close()
		go func() { _, _ = ours.Write(sent); ours.Close() }()
		s := &pageServer{memory: map[uint32]*os.File{}, tally: tally}
		if err := s.serve(theirs); err == nil != s.done.All {
			t.Errorf("it ended with %v, all handed out: %t", err, s.done.All)
		}
	})
}
