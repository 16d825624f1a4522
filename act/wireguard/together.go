package wireguard

import (
	"syscall"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
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

	// The parts of a packet for which the caller has no room wait for the next call. The link gives a packet once, and drops what does
	// not fit.
	spare [][]byte
	left  []int // sizes of the parts in spare that wait, from this one on
	next  int
	room  [][]byte // the caller's, and spare
	sizes []int
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

// mostParts is into how many parts a packet is usually cut up at most: 64 KiB of a stream. Small segments make more.
const mostParts = 64

// Read waits for a packet, unless parts of one wait. What waits behind it is read, too, as long as there is room for all parts of a usual one.
func (l *together) Read(packets [][]byte, sizes []int, offset int) (n int, err error) {
	n = l.takeLeft(packets, sizes, offset)
	for first := n == 0; err == nil && (first || len(packets)-n >= mostParts && l.waits()); first = false {
		var more int
		more, err = l.readOne(packets[n:], sizes[n:], offset)
		n += more
	}
	return n, err
}

// takeLeft takes the parts that had no room in the call before.
func (l *together) takeLeft(packets [][]byte, sizes []int, offset int) int {
	n := copy(sizes[:len(packets)], l.left)
	for i, size := range l.left[:n] {
		copy(packets[i][offset:], l.spare[l.next+i][offset:offset+size])
	}
	l.left, l.next = l.left[n:], l.next+n
	return n
}

// readOne reads a packet. Parts for which there is no room are left for the next call.
func (l *together) readOne(packets [][]byte, sizes []int, offset int) (int, error) {
	if l.spare == nil {
		l.spare = make([][]byte, conn.IdealBatchSize) // a page of each is used: parts that are as many are small
		for i := range l.spare {
			l.spare[i] = make([]byte, len(packets[0]))
		}
	}
	l.room = append(append(l.room[:0], packets...), l.spare...)
	if len(l.sizes) < len(l.room) {
		l.sizes = make([]int, len(l.room))
	}
	n, err := l.Device.Read(l.room, l.sizes, offset)
	fits := min(n, len(packets))
	copy(sizes, l.sizes[:fits])
	l.left, l.next = l.sizes[fits:n], 0
	return fits, err
}

func (l *together) waits() bool {
	l.fds[0].Revents = 0
	return l.file.Control(l.look) == nil && l.fds[0].Revents&unix.POLLIN != 0
}
