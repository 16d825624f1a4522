package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// DialSocket connects to a socket on which a process listens, in a folder in which that process, which nobody trusts, can
// put anything. It follows no link, and what another process listens on is refused: the kernel notes who does. folder may be open with O_PATH.
func DialSocket(ctx context.Context, folder *os.File, name string, pid int) (*net.UnixConn, error) {
	refused := func(err error) (*net.UnixConn, error) {
		return nil, fmt.Errorf("connect to %s of process %d: %w", name, pid, err)
	}
	fd, err := unix.Openat(int(folder.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return refused(err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return refused(err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return refused(errors.New("it is no socket"))
	}
	// Through /proc, which leads to just this file, and fits into a socket's address however long the folder's path is.
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return refused(err)
	}
	c := conn.(*net.UnixConn)
	if err := listens(c, pid); err != nil {
		c.Close()
		return refused(err)
	}
	return c, nil
}

// listens is nil if it is a process that listens at the other end.
func listens(c *net.UnixConn, pid int) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) { peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return err
	}
	if failed == nil && int(peer.Pid) != pid {
		failed = fmt.Errorf("process %d of user %d listens on it", peer.Pid, peer.Uid)
	}
	return failed
}
