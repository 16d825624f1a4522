package passage

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"pagurus/internal/testkit"
)

// attackerName makes a copy of the test binary try what a relay cannot do.
const attackerName = "pagurus-attacker"

// attackFromRelay is a relay that somebody else has taken over.
func attackFromRelay(args []string) error {
	uid, err := strconv.Atoi(args[0])
	if err == nil {
		err = confine(uid)
	}
	if err != nil {
		return err
	}
	socket := func(family, kind int) error {
		_, err := unix.Socket(family, kind, 0)
		return err
	}
	opens := func(path string, how int) error {
		_, err := unix.Open(path, how, 0)
		return err
	}
	for what, err := range map[string]error{
		"make a TCP socket":      socket(unix.AF_INET6, unix.SOCK_STREAM),
		"make a UDP socket":      socket(unix.AF_INET, unix.SOCK_DGRAM),
		"make a netlink socket":  socket(unix.AF_NETLINK, unix.SOCK_RAW),
		"read a file":            opens("/etc/passwd", unix.O_RDONLY),
		"write a file":           opens("/tmp", unix.O_TMPFILE|unix.O_WRONLY),
		"run a program":          unix.Exec("/bin/true", []string{"true"}, nil),
		"become root":            unix.Setresuid(0, 0, 0),
		"signal another process": unix.Kill(os.Getppid(), 0),
		"trace another process":  unix.PtraceAttach(os.Getppid()),
		"make a user namespace":  unix.Unshare(unix.CLONE_NEWUSER),
		"have a child":           fork(),
	} {
		if !errors.Is(err, unix.EPERM) {
			fmt.Printf("it can %s: %v\n", what, err)
		}
	}
	fmt.Println("all was tried")
	return nil
}

func fork() error {
	pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	if pid == 0 {
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	return nil
}

// Who takes over a relay has its connections, and nothing of the host.
func TestRelayIsConfined(t *testing.T) {
	testkit.Root(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{attackerName, "2100000902"}
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "all was tried\n" {
		t.Errorf("%s: %v", out, err)
	}
}

// disconnect ends a connection and keeps its socket (connect(2), AF_UNSPEC).
func disconnect(fd int) error {
	none := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	if _, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&none)), unsafe.Sizeof(none)); errno != 0 {
		return errno
	}
	return nil
}

// sockaddr is an address for system calls.
func sockaddr(a net.Addr) unix.Sockaddr {
	at := a.(*net.TCPAddr).AddrPort()
	if at.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
}

// reconnects reports whether a socket can be connected elsewhere.
func reconnects(t *testing.T, fd int, to net.Addr) bool {
	t.Helper()
	if err := disconnect(fd); err != nil {
		t.Fatal(err)
	}
	if err := unix.Connect(fd, sockaddr(to)); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		t.Fatal(err)
	}
	ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	if n, err := unix.Poll(ready, 1500); err != nil || n == 0 { // 1.5 s: one more try of the kernel's
		return false
	}
	failed, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	return err == nil && failed == 0
}

// hearsOthers reports whether a socket can be made to listen, and then be reached.
func hearsOthers(t *testing.T, fd int) bool {
	t.Helper()
	if err := errors.Join(disconnect(fd), unix.Listen(fd, 5)); err != nil {
		t.Fatal(err)
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	to := "127.0.0.1"
	port := 0
	switch a := at.(type) {
	case *unix.SockaddrInet4:
		port = a.Port
	case *unix.SockaddrInet6:
		to, port = "::1", a.Port
	}
	c, err := net.DialTimeout("tcp", net.JoinHostPort(to, strconv.Itoa(port)), 1500*time.Millisecond)
	if err == nil {
		c.Close()
	}
	return err == nil
}

// A connection that QEMU was given goes to the other end that it has and nowhere else, whatever its
// owner does with it, at both ends. Without that it would go anywhere.
func TestConnectionsAreTied(t *testing.T) {
	for _, local := range []string{"127.0.0.1:0", "[::1]:0"} {
		elsewhere, err := net.Listen("tcp", local)
		if err != nil {
			t.Fatal(err)
		}
		defer elsewhere.Close()
		for _, tied := range []bool{false, true} {
			for name, attack := range map[string]func(fd int) bool{
				"connects elsewhere": func(fd int) bool { return reconnects(t, fd, elsewhere.Addr()) },
				"hears others":       func(fd int) bool { return hearsOthers(t, fd) },
			} {
				for end, conn := range ends(t, local) {
					if tied {
						if err := tie(conn); err != nil {
							t.Fatal(err)
						}
					}
					f, err := conn.File()
					if err != nil {
						t.Fatal(err)
					}
					defer f.Close()
					fd := int(f.Fd())
					if err := unix.SetNonblock(fd, true); err != nil {
						t.Fatal(err)
					}
					if tied {
						loosens(t, fd)
					}
					if got := attack(fd); got == tied {
						t.Errorf("%s, %s, tied %v: it %s: %v", local, end, tied, name, got)
					}
				}
			}
		}
	}
}

// ends are both ends of a connection.
func ends(t *testing.T, local string) map[string]*net.TCPConn {
	t.Helper()
	l, err := net.Listen("tcp", local)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	out, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	in, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close(); in.Close() })
	return map[string]*net.TCPConn{"source": out.(*net.TCPConn), "target": in.(*net.TCPConn)}
}

// loosens tries to take the filter off, even as root.
func loosens(t *testing.T, fd int) {
	t.Helper()
	all := []unix.SockFilter{{Code: unix.BPF_RET, K: 1 << 16}}
	for what, err := range map[string]error{
		"unlock": unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_LOCK_FILTER, 0),
		"detach": unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0),
		"attach": unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &all[0]}),
	} {
		if !errors.Is(err, unix.EPERM) {
			t.Errorf("one can %s the filter: %v", what, err)
		}
	}
}

// Both ends of a move's connections are tied.
func TestMovesAreTied(t *testing.T) {
	l, came, _ := target(t, 2, "")
	out, err := l.Place.Dial(t.Context(), move, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer CloseAll(out)
	if _, err := out[0].Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	in := <-came
	defer CloseAll(in)
	for _, c := range append(in, out...) {
		raw, err := c.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		locked := 0
		if e := raw.Control(func(fd uintptr) { locked, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_LOCK_FILTER) }); e != nil || err != nil || locked != 1 {
			t.Errorf("%s is not tied: %d, %v, %v", c.LocalAddr(), locked, e, err)
		}
	}
	if len(in) != 2 {
		t.Errorf("%d connections came", len(in))
	}
}
