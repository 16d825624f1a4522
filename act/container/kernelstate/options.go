package kernelstate

import (
	"encoding/binary"
	"errors"
	"strconv"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// usualBytes is enough for most options, and mostBytes for all: IPv6's headers are the longest.
const (
	usualBytes = 128
	mostBytes  = 2048
)

func getsockopt(fd, level, number int, value []byte) (int, error) {
	length := uint32(len(value))
	var first unsafe.Pointer
	if len(value) > 0 {
		first = unsafe.Pointer(&value[0])
	}
	_, _, e := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(number), uintptr(first), uintptr(unsafe.Pointer(&length)), 0)
	if e != 0 {
		return int(length), e
	}
	return int(length), nil
}

func setsockopt(fd, level, number int, value []byte) error {
	var first unsafe.Pointer
	if len(value) > 0 {
		first = unsafe.Pointer(&value[0])
	}
	if _, _, e := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(number), uintptr(first), uintptr(len(value)), 0); e != 0 {
		return e
	}
	return nil
}

func setInt(fd, level, number, value int) error {
	return setsockopt(fd, level, number, binary.NativeEndian.AppendUint32(nil, uint32(value)))
}

func getInt(fd, level, number int) int {
	var value [4]byte
	if n, err := getsockopt(fd, level, number, value[:]); err != nil || n != 4 {
		return 0
	}
	return int(int32(binary.NativeEndian.Uint32(value[:])))
}

// option is an Option with its key in the recorded state, which other versions must know, too.
type option struct {
	Option
	key string
}

// suiting maps a kind to the options that its sockets may have.
var suiting sync.Map

func optionsOf(k kind) []option {
	if all, ok := suiting.Load(k); ok {
		return all.([]option)
	}
	levels := map[int]bool{SocketLevel: true}
	switch k.Family {
	case unix.AF_INET6:
		levels[IPv6Level] = true
		fallthrough
	case unix.AF_INET:
		levels[IPLevel], levels[k.Protocol] = true, true
	case unix.AF_NETLINK:
		levels[NetlinkLevel] = true
	}
	var all []option
	for _, o := range Options {
		if o.Way != Kept && levels[o.Level] {
			all = append(all, option{o, strconv.Itoa(o.Level) + "/" + strconv.Itoa(o.Number)})
		}
	}
	suiting.Store(k, all)
	return all
}

// get reads an option into a buffer, or a larger one if necessary. It is not ok if the socket
// lacks the option, or if the option means something else in the socket's state.
func (s socket) get(o option, buffer []byte) (value []byte, ok bool) {
	switch {
	case o.Way == Fresh && s.state != tcpClosed && s.state != tcpListening, o.Way == Listening && s.state != tcpListening:
		return nil, false
	case o.Way == Message && s.kind.Type == unix.SOCK_STREAM:
		return nil, false
	}
	n, err := getsockopt(s.fd, o.Level, o.Number, buffer)
	if err == nil && n >= len(buffer) {
		buffer = make([]byte, mostBytes)
		n, err = getsockopt(s.fd, o.Level, o.Number, buffer)
	}
	if err != nil || n > len(buffer) {
		return nil, false
	}
	return buffer[:n], true
}

// lacks reports whether the kernel does not know an option of sockets of this kind.
func (s socket) lacks(o option) bool {
	_, err := getsockopt(s.fd, o.Level, o.Number, make([]byte, usualBytes))
	return errors.Is(err, unix.ENOPROTOOPT)
}

func (s socket) set(o option, value []byte) error {
	switch o.Way {
	case Half:
		forced := map[int]int{unix.SO_SNDBUF: unix.SO_SNDBUFFORCE, unix.SO_RCVBUF: unix.SO_RCVBUFFORCE}[o.Number]
		return setInt(s.fd, o.Level, forced, int(binary.NativeEndian.Uint32(value))/2)
	case Joined:
		return s.joinNetlink(value)
	}
	return setsockopt(s.fd, o.Level, o.Number, value)
}

// joinNetlink joins the groups whose bits are set.
func (s socket) joinNetlink(groups []byte) error {
	for i := range len(groups) * 8 {
		if groups[i/8]&(1<<(i%8)) == 0 {
			continue
		}
		if err := setInt(s.fd, NetlinkLevel, unix.NETLINK_ADD_MEMBERSHIP, i+1); err != nil {
			return err
		}
	}
	return nil
}

// getFilter reads a filter. The kernel counts its length in instructions.
func getFilter(fd int, filter []unix.SockFilter) error {
	length := uint32(len(filter))
	_, _, e := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_GET_FILTER, uintptr(unsafe.Pointer(&filter[0])), uintptr(unsafe.Pointer(&length)), 0)
	if e != 0 {
		return e
	}
	return nil
}
