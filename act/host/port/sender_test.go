package port

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/internal/testkit"
)

// source is a program in a container that streams without pause. It can be stopped and continue
// elsewhere.
type source struct {
	stop atomic.Bool
	sent uint64
	err  error
	done chan struct{}
}

// run continues the stream.
func (s *source) run(fd int) {
	s.stop.Store(false)
	s.done = make(chan struct{})
	wait := unix.NsecToTimeval(int64(20 * time.Millisecond))
	s.err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait)
	go func() {
		defer close(s.done)
		block := make([]byte, 64<<10)
		for !s.stop.Load() && s.err == nil {
			for i := range block {
				block[i] = pattern(s.sent + uint64(i))
			}
			n, err := unix.Write(fd, block)
			if err == nil {
				s.sent += uint64(n)
			} else if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
				s.err = err
			}
		}
	}()
}

func (s *source) freeze() {
	s.stop.Store(true)
	<-s.done
}

// sink reads a source's stream in another container.
type sink struct {
	got   atomic.Uint64
	first atomic.Int64 // when the first came since this was 0
	end   chan error
}

func (s *sink) run(c net.Conn) {
	s.end = make(chan error, 1)
	go func() {
		buffer := make([]byte, 256<<10)
		for {
			n, err := c.Read(buffer)
			got := s.got.Load()
			for i, b := range buffer[:n] {
				if b != pattern(got+uint64(i)) {
					s.end <- fmt.Errorf("byte %d is wrong", got+uint64(i))
					return
				}
			}
			s.got.Add(uint64(n))
			s.first.CompareAndSwap(0, time.Now().UnixNano())
			if err != nil {
				s.end <- err
				return
			}
		}
	}()
}

// A container that sends as fast as it can continues after a move, although its restored sockets
// may send nothing before it runs.
func TestSenderGoesOnAfterAMove(t *testing.T) {
	testkit.Leftovers(t)
	hosts := stations(t, 2)
	layout{at: []int{0, 1}, to: 1}.apply(hosts)
	held := hosts[1].queueFrames(0)
	hosts[1].cut(0)
	from, to, beside := hosts[0].attachContainer(0), hosts[1].attachContainer(0), hosts[1].attachContainer(1)
	accept := (&service{}).listen(t, from)
	c := call(t, beside).conn
	fd := accept()
	var out source
	var in sink
	out.run(fd)
	in.run(c)
	time.Sleep(300 * time.Millisecond)

	hosts[0].Must(func() error { return hosts[0].Forward(subnet, 0) })
	out.freeze()
	time.Sleep(underWay)
	hosts[0].cut(0)
	moved, err := takeOut(fd)
	if err != nil {
		t.Fatal(err)
	}
	fd, err = moved.putIn(to)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond) // its kernel sends in vain
	in.first.Store(0)
	began := time.Now()
	hosts[1].mend(0)
	out.run(fd)
	if err := held.Release(); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, surely, "more is heard", func() bool { return in.first.Load() != 0 })
	t.Logf("more is heard %v after the release began; of %d bytes that waited to be sent or acknowledged %d had not been sent",
		time.Duration(in.first.Load()-began.UnixNano()), len(moved.sent.data), moved.sent.late)
	layout{at: []int{1, 1}, left: true}.apply(hosts)
	time.Sleep(200 * time.Millisecond)
	out.freeze()
	unix.Close(fd)
	if err := <-in.end; err != io.EOF || out.err != nil || in.got.Load() != out.sent {
		t.Errorf("%d bytes of %d were heard (%v, %v)", in.got.Load(), out.sent, err, out.err)
	}
}
