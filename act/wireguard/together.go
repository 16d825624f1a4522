package wireguard

import (
	"syscall"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"
)

// together is a TUN link of which all packets that wait are read at once, so that they are encrypted and sent at once. A stream of
// this host's own comes in one packet, which the link's reader cuts up; but the kernel cuts up a guest's before it puts VXLAN's header
// before it, and then each part is a packet to read.
type together struct {
	tun.Device
	file syscall.RawConn
	look func(fd uintptr) // fills fds
	fds  [1]unix.PollFd   // of the one that reads
}

func readTogether(link tun.Device) (*together, error) {
	file, err := link.File().SyscallConn()
	if err != nil {
		return nil, err
	}
	l := &together{Device: link, file: file}
	l.look = func(fd uintptr) {
		l.fds[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
		_, _ = unix.Poll(l.fds[:], 0)
	}
	return l, nil
}

// mostParts is into how many parts one packet may be cut up: 64 KiB of a stream, with room for small ones.
const mostParts = 64

// Read waits for a packet. What waits behind it is read, too, as long as there is room for all parts of the next.
func (l *together) Read(packets [][]byte, sizes []int, offset int) (n int, err error) {
	n, err = l.Device.Read(packets, sizes, offset)
	for err == nil && len(packets)-n >= mostParts && l.waits() {
		var more int
		more, err = l.Device.Read(packets[n:], sizes[n:], offset)
		n += more
	}
	return n, err
}

func (l *together) waits() bool {
	l.fds[0].Revents = 0
	return l.file.Control(l.look) == nil && l.fds[0].Revents&unix.POLLIN != 0
}
