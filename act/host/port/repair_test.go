package port

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"pagurus/internal/testkit"
)

// connection is the state of an established TCP connection taken from its socket, as CRIU does
// it (tcp(7), TCP_REPAIR): enough to continue elsewhere.
type connection struct {
	local, remote unix.SockaddrInet4
	info          unix.TCPInfo
	mss           int
	stamp         int // of TCP's timestamps
	window        repairWindow
	received      queue // and not yet read
	sent          queue // and not yet acknowledged, or not yet sent
}

type queue struct {
	next uint32 // number of the byte after the last
	data []byte
	late int // bytes at the end that were never sent
}

// repairWindow is struct tcp_repair_window.
type repairWindow struct{ sendLine, sendWindow, most, receiveWindow, update uint32 }

const (
	receiveQueue = 1 // TCP_RECV_QUEUE
	sendQueue    = 2 // TCP_SEND_QUEUE
)

// takeOut takes a connection out of its socket, which is then closed without a packet to the
// peer.
func takeOut(fd int) (c connection, err error) {
	step := func(what string, do func() error) {
		if err == nil {
			if err = do(); err != nil {
				err = fmt.Errorf("%s: %w", what, err)
			}
		}
	}
	step("repairing", func() error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, 1) })
	step("addresses", func() error {
		a, err1 := unix.Getsockname(fd)
		b, err2 := unix.Getpeername(fd)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		c.local, c.remote = *a.(*unix.SockaddrInet4), *b.(*unix.SockaddrInet4)
		return nil
	})
	step("options", func() error {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil {
			c.info = *info
			c.mss, err = unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG)
		}
		return err
	})
	step("timestamp", func() (err error) {
		c.stamp, err = unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_TIMESTAMP)
		return err
	})
	step("window", func() error { return option(unix.SYS_GETSOCKOPT, fd, &c.window) })
	step("receive queue", func() (err error) {
		c.received, err = takeQueue(fd, receiveQueue, unix.SIOCINQ)
		return err
	})
	step("send queue", func() (err error) {
		if c.sent, err = takeQueue(fd, sendQueue, unix.SIOCOUTQ); err == nil {
			c.sent.late, err = unix.IoctlGetInt(fd, unix.SIOCOUTQNSD)
		}
		return err
	})
	step("closing", func() error { return unix.Close(fd) })
	return c, err
}

func option(call uintptr, fd int, w *repairWindow) error {
	size := uint32(unsafe.Sizeof(*w))
	last := uintptr(size)
	if call == unix.SYS_GETSOCKOPT {
		last = uintptr(unsafe.Pointer(&size))
	}
	_, _, errno := unix.Syscall6(call, uintptr(fd), unix.IPPROTO_TCP, unix.TCP_REPAIR_WINDOW, uintptr(unsafe.Pointer(w)), last, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func takeQueue(fd, which int, ask uint) (q queue, err error) {
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR_QUEUE, which); err != nil {
		return q, err
	}
	next, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ)
	if err != nil {
		return q, err
	}
	q.next = uint32(next)
	n, err := unix.IoctlGetInt(fd, ask)
	if err != nil || n == 0 {
		return q, err
	}
	q.data = make([]byte, n)
	got, _, err := unix.Recvfrom(fd, q.data, unix.MSG_PEEK|unix.MSG_DONTWAIT)
	if err == nil && got != n {
		err = fmt.Errorf("%d bytes instead of %d", got, n)
	}
	return q, err
}

// putIn restores the connection in a container. Until the last step its kernel sends nothing for
// it.
func (c connection) putIn(in *testkit.Host) (fd int, err error) {
	err = in.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		return err
	})
	step := func(what string, do func() error) {
		if err == nil {
			if err = do(); err != nil {
				err = fmt.Errorf("%s: %w", what, err)
			}
		}
	}
	set := func(what string, option, value int) {
		step(what, func() error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, option, value) })
	}
	start := func(which int, q queue) {
		set("queue", unix.TCP_REPAIR_QUEUE, which)
		set("number", unix.TCP_QUEUE_SEQ, int(q.next-uint32(len(q.data))))
	}
	fill := func(which int, data []byte) {
		set("queue", unix.TCP_REPAIR_QUEUE, which)
		for len(data) > 0 && err == nil {
			step("filling a queue", func() error {
				n, err := unix.SendmsgN(fd, data[:min(len(data), 64<<10)], nil, nil, 0)
				data = data[max(n, 0):]
				return err
			})
		}
	}
	step("reusing", func() error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
	// The queues are as full as before.
	step("room", func() error {
		return errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 32<<20), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20))
	})
	set("repairing", unix.TCP_REPAIR, 1)
	start(sendQueue, c.sent)
	start(receiveQueue, c.received)
	step("binding", func() error { return unix.Bind(fd, &c.local) })
	step("connecting", func() error { return unix.Connect(fd, &c.remote) })
	step("options", c.setOptions(&fd))
	set("timestamp", unix.TCP_TIMESTAMP, c.stamp)
	fill(receiveQueue, c.received.data)
	under := len(c.sent.data) - c.sent.late
	fill(sendQueue, c.sent.data[:max(under, 0)])
	step("window", func() error { return option(unix.SYS_SETSOCKOPT, fd, &c.window) })
	set("letting go", unix.TCP_REPAIR, 0)
	if rest := c.sent.data[max(under, 0):]; err == nil && len(rest) > 0 {
		step("sending the rest", func() error {
			n, err := unix.SendmsgN(fd, rest, nil, nil, 0)
			if err == nil && n != len(rest) {
				err = fmt.Errorf("%d bytes of %d", n, len(rest))
			}
			return err
		})
	}
	return fd, err
}

// setOptions sets the options that the two sides agreed on when they connected.
func (c connection) setOptions(fd *int) func() error {
	return func() error {
		type one struct{ code, value uint32 }
		const mss, scale, sack, stamps = 2, 3, 4, 8
		scales := uint32(*(*byte)(unsafe.Add(unsafe.Pointer(&c.info), 6))) // two bit fields: sender's, receiver's
		all := []one{{mss, uint32(c.mss)}}
		for flag, o := range map[uint8]one{1: {stamps, 0}, 2: {sack, 0}, 4: {scale, scales&0xf | scales>>4<<16}} {
			if c.info.Options&flag != 0 {
				all = append(all, o)
			}
		}
		_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(*fd), unix.IPPROTO_TCP, unix.TCP_REPAIR_OPTIONS,
			uintptr(unsafe.Pointer(&all[0])), uintptr(len(all))*unsafe.Sizeof(one{}), 0)
		if errno != 0 {
			return os.NewSyscallError("setsockopt", errno)
		}
		return nil
	}
}
