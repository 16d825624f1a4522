package passage

import (
	"errors"
	"fmt"
	"math"
	"net"

	"golang.org/x/sys/unix"
)

// A connection that QEMU is given belongs to the host's network. Who has broken out of QEMU could end it and connect the same socket
// elsewhere, or listen with it. tie has the kernel drop all that comes to it from anyone but the other end of now, address and port, and nobody
// can undo that: nothing else ever answers, so no other connection comes about. Filters of sockets (socket(7)) are older than
// every kernel here; Landlock refuses connect only from Linux 6.7 on, and not to listen.
func tie(conn *net.TCPConn) error {
	remote, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return errors.New("a connection without another end")
	}
	code := onlyFrom(remote)
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]})
		if failed == nil {
			failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_LOCK_FILTER, 1)
		}
	})
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("tie a connection to its other end: %w", err)
	}
	return nil
}

// Where a filter finds what came before TCP's header, which it begins at (SKF_NET_OFF), and in it.
const (
	ipHeader       = 0xfff00000
	sourcePort     = 0
	sourceOfIPv4   = ipHeader + 12
	sourceOfIPv6   = ipHeader + 8
	versionShift   = 4
	bytesInOneWord = 4
)

// onlyFrom is a filter that takes what comes from one address and port.
func onlyFrom(remote *net.TCPAddr) []unix.SockFilter {
	at := remote.AddrPort().Addr().Unmap()
	version, source := uint32(6), uint32(sourceOfIPv6)
	if at.Is4() {
		version, source = 4, sourceOfIPv4
	}
	type compare struct{ load, from, with uint32 }
	all := []compare{{unix.BPF_H, sourcePort, uint32(remote.Port)}}
	for words := at.AsSlice(); len(words) > 0; words, source = words[bytesInOneWord:], source+bytesInOneWord {
		all = append(all, compare{unix.BPF_W, source, uint32(words[0])<<24 | uint32(words[1])<<16 | uint32(words[2])<<8 | uint32(words[3])})
	}
	code := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: ipHeader},
		{Code: unix.BPF_ALU | unix.BPF_RSH | unix.BPF_K, K: versionShift},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: version, Jf: uint8(2*len(all) + 1)},
	}
	for i, c := range all {
		code = append(code, unix.SockFilter{Code: unix.BPF_LD | uint16(c.load) | unix.BPF_ABS, K: c.from},
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: c.with, Jf: uint8(2*(len(all)-i) - 1)})
	}
	return append(code, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: math.MaxUint32}, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0})
}
