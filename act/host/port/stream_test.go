package port

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/internal/testkit"
)

// service is a program in a container. It reads a stream, checks it, and answers how much it has
// read. It can be stopped and continue elsewhere.
type service struct {
	fd    int
	stop  atomic.Bool
	ended sync.WaitGroup
	read  uint64
	err   error // why it ended; io.EOF if the other side ended the stream
}

// run continues the service.
func (s *service) run(fd int) {
	s.fd = fd
	s.stop.Store(false)
	s.ended.Go(func() {
		buffer := make([]byte, 256<<10)
		for !s.stop.Load() && s.err == nil {
			n, err := unix.Read(fd, buffer)
			switch {
			case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
				continue
			case err != nil:
				s.err = fmt.Errorf("reading: %w", err)
			case n == 0:
				s.err = io.EOF
			}
			if s.err != nil {
				return
			}
			for i, b := range buffer[:n] {
				if b != pattern(s.read+uint64(i)) {
					s.err = fmt.Errorf("byte %d is wrong", s.read+uint64(i))
					return
				}
			}
			s.read += uint64(n)
			if _, err := unix.Write(fd, binary.LittleEndian.AppendUint64(nil, s.read)); err != nil {
				s.err = fmt.Errorf("writing: %w", err)
			}
		}
	})
}

func (s *service) freeze() {
	s.stop.Store(true)
	s.ended.Wait()
}

// pattern is byte i of the stream.
func pattern(i uint64) byte { return byte(i>>8*31 + i) }

// listen listens in a container for the test's one connection.
func (s *service) listen(t *testing.T, in *testkit.Host) (accept func() (fd int)) {
	var l int
	in.Must(func() (err error) {
		if l, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return errors.Join(unix.Bind(l, &unix.SockaddrInet4{Port: 7777, Addr: subnet.GuestAddr(0).As4()}), unix.Listen(l, 1))
	})
	return func() int {
		fd, _, err := unix.Accept4(l, unix.SOCK_CLOEXEC)
		if err = errors.Join(err, unix.Close(l)); err != nil {
			t.Fatal(err)
		}
		return fd
	}
}

// patient makes a socket's reader return from time to time.
func patient(t *testing.T, fd int) {
	t.Helper()
	wait := unix.NsecToTimeval(int64(20 * time.Millisecond))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		t.Fatal(err)
	}
}

// caller is a program in another container, which streams to the service without pause.
type caller struct {
	conn    *net.TCPConn
	stop    atomic.Bool
	written uint64
	answer  atomic.Uint64 // the last
	first   atomic.Int64  // when the first came since this was 0
	writing error         // why either ended; the kernel tells only one of them
	reading error
	ended   sync.WaitGroup
}

func (c *caller) wait() error {
	c.ended.Wait()
	return errors.Join(c.writing, c.reading)
}

func call(t *testing.T, in *testkit.Host) *caller {
	t.Helper()
	c := &caller{}
	in.Must(func() error {
		conn, err := net.DialTimeout("tcp4", net.JoinHostPort(subnet.GuestAddr(0).String(), "7777"), surely)
		if err == nil {
			c.conn = conn.(*net.TCPConn)
		}
		return err
	})
	t.Cleanup(func() { c.conn.Close() })
	return c
}

func (c *caller) run() {
	c.ended.Go(func() {
		block := make([]byte, 64<<10)
		for !c.stop.Load() {
			for i := range block {
				block[i] = pattern(c.written + uint64(i))
			}
			n, err := c.conn.Write(block)
			if c.written += uint64(n); err != nil {
				c.writing = err
				return
			}
		}
		c.writing = c.conn.CloseWrite()
	})
	c.ended.Go(func() {
		var b [8]byte
		for {
			_, err := io.ReadFull(c.conn, b[:])
			if errors.Is(err, io.EOF) {
				return
			}
			now := binary.LittleEndian.Uint64(b[:])
			if err == nil && now <= c.answer.Load() {
				err = fmt.Errorf("answer %d after %d", now, c.answer.Load())
			}
			if err != nil {
				c.reading = err
				c.conn.Close()
				return
			}
			c.first.CompareAndSwap(0, time.Now().UnixNano())
			c.answer.Store(now)
		}
	})
}

func (c *caller) retransmitted(t *testing.T) (n uint32) {
	t.Helper()
	raw, err := c.conn.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
				n = info.Total_retrans
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// underWay is how long frames sent before a container was frozen may still be in transit in its
// host, where a cut would drop them. Drivers do other work in between.
const underWay = 100 * time.Millisecond

// A TCP connection under full load is moved with its container. Its sockets are restored up to a
// second after the source was cut. Nothing is lost, and the caller is answered as soon as the
// waiting frames are released.
func TestConnectionOutlivesAMove(t *testing.T) {
	testkit.Leftovers(t)
	for callerAt, name := range []string{"caller on the source", "caller on the target", "caller on a third host"} {
		t.Run(name, func(t *testing.T) {
			hosts := stations(t, 3)
			layout{at: []int{0, callerAt}, to: 1}.apply(hosts)
			held := hosts[1].queueFrames(0)
			from, to, beside := hosts[0].attachContainer(0), hosts[1].attachContainer(0), hosts[callerAt].attachContainer(1)
			s := &service{}
			accept := s.listen(t, from)
			c := call(t, beside)
			fd := accept()
			patient(t, fd)
			s.run(fd)
			c.run()
			time.Sleep(300 * time.Millisecond)
			before := c.retransmitted(t)

			hosts[0].Must(func() error { return hosts[0].Forward(subnet, 0) })
			s.freeze()
			time.Sleep(underWay)
			hosts[0].cut(0)
			moved, err := takeOut(fd)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second / time.Duration(3-callerAt))
			fd, err = moved.putIn(to)
			if err != nil {
				t.Fatal(err)
			}
			patient(t, fd)
			c.first.Store(0)
			s.run(fd)
			began := time.Now()
			if err := held.Release(); err != nil {
				t.Fatal(err)
			}
			released := time.Since(began)
			testkit.Until(t, surely, "the caller is answered again", func() bool { return c.first.Load() != 0 })
			t.Logf("%d frames released in %v, answered %v after the release began, %d segments sent again; queues of %d and %d bytes moved",
				held.Count().Delivered, released, time.Duration(c.first.Load()-began.UnixNano()), c.retransmitted(t)-before, len(moved.received.data), len(moved.sent.data))
			if count := held.Count(); count.Delivered == 0 || count.Lost != 0 {
				t.Errorf("%+v", count)
			}
			layout{at: []int{1, callerAt}, left: true}.apply(hosts) // all hosts now send to the target
			time.Sleep(300 * time.Millisecond)
			c.stop.Store(true)
			s.ended.Wait()
			unix.Close(fd)
			err = c.wait()
			if s.err != io.EOF || err != nil || s.read != c.written || c.answer.Load() != c.written {
				t.Errorf("the service read %d bytes of %d (%v), the caller knows of %d (%v)", s.read, c.written, s.err, c.answer.Load(), err)
			}
			t.Logf("%d MiB", c.written>>20)
		})
	}
}

// Without a hold the target's kernel answers for sockets that it does not have yet, and the
// connection is lost. This shows that the test above can fail.
func TestConnectionIsLostWithoutAHold(t *testing.T) {
	testkit.Leftovers(t)
	hosts := stations(t, 2)
	layout{at: []int{0, 1}, to: 1}.apply(hosts)
	from, beside := hosts[0].attachContainer(0), hosts[1].attachContainer(1)
	hosts[1].attachContainer(0)
	s := &service{}
	accept := s.listen(t, from)
	c := call(t, beside)
	fd := accept()
	patient(t, fd)
	s.run(fd)
	c.run()
	time.Sleep(100 * time.Millisecond)
	hosts[0].Must(func() error { return hosts[0].Forward(subnet, 0) })
	hosts[0].cut(0)
	s.freeze()
	if _, err := takeOut(fd); err != nil {
		t.Fatal(err)
	}
	if err := c.wait(); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the caller's connection ended with %v", err)
	}
}

// A container that is killed while it is cut sends nothing. Its peers' connections wait for the
// container that continues elsewhere.
func TestKilledWhileCutSaysNothing(t *testing.T) {
	testkit.Leftovers(t)
	hosts := stations(t, 2)
	layout{at: []int{0, 1}}.apply(hosts)
	from, beside := hosts[0].attachContainer(0), hosts[1].attachContainer(1)
	s := &service{}
	accept := s.listen(t, from)
	c := call(t, beside)
	fd := accept()
	patient(t, fd)
	s.run(fd)
	c.run()
	time.Sleep(100 * time.Millisecond)
	hosts[0].cut(0)
	s.freeze()
	unix.Close(fd) // with data unread: a reset, and one for each segment that comes
	time.Sleep(noFrameFor)
	if state := beside.Run("ss", "-tn", "state", "established"); !strings.Contains(state, "10.128.7.1:7777") {
		t.Errorf("the caller's connections are\n%s", state)
	}
	hosts[0].mend(0)
	if err := c.wait(); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the caller's connection ended with %v", err)
	}
}
