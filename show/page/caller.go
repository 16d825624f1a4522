package page

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
)

// This file finds out which user of the machine has the other end of a connection over loopback: the kernel lists it with the
// connection. Unlike a secret nobody can steal that.

// callerKey has a connection's caller in its context.
type callerKey struct{}

// caller is who called.
type caller struct {
	foreign string // why that is not this program's user; empty: it is
}

// callerOf finds who called.
func callerOf(c net.Conn) caller {
	ours, ok := c.LocalAddr().(*net.TCPAddr)
	theirs, is := c.RemoteAddr().(*net.TCPAddr)
	if !ok || !is {
		return caller{foreign: "it is not known who asks"}
	}
	list, err := os.Open("/proc/self/net/tcp")
	if err != nil {
		return caller{foreign: "it is not known who asks: " + err.Error()}
	}
	defer list.Close()
	uid, err := holder(list, theirs, ours)
	switch me := os.Getuid(); {
	case err != nil:
		return caller{foreign: "it is not known who asks: " + err.Error()}
	case uid != me:
		return caller{foreign: fmt.Sprintf("this page is for user %d of this machine, and user %d asks", me, uid)}
	}
	return caller{}
}

// holder gives the user who has one end of a connection. An end that was closed has no user, which the kernel shows as root without an
// inode, so it does not count.
func holder(list io.Reader, end, other *net.TCPAddr) (uid int, err error) {
	local, remote := inKernel(end), inKernel(other)
	lines := bufio.NewScanner(list)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 10 || f[1] != local || f[2] != remote || f[9] == "0" {
			continue
		}
		return strconv.Atoi(f[7])
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	return 0, fmt.Errorf("nobody on this machine has %s", end)
}

// inKernel writes an address of IPv4 as /proc/net/tcp does on a machine that stores the least byte first.
func inKernel(a *net.TCPAddr) string {
	ip := a.IP.To4()
	if ip == nil {
		return ""
	}
	return fmt.Sprintf("%02X%02X%02X%02X:%04X", ip[3], ip[2], ip[1], ip[0], a.Port)
}
