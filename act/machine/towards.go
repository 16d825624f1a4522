package machine

import (
	"net"
	"strings"
)

// Towards is this machine's address on the route to another, given as host:port; empty:
// unknown, or the same machine.
func Towards(other string) string {
	if strings.HasPrefix(other, "unix:") {
		return ""
	}
	conn, err := net.Dial("udp", other) // sends nothing; the kernel chooses the route
	if err != nil {
		return ""
	}
	defer func() { _ = conn.Close() }()
	host, _, err := net.SplitHostPort(conn.LocalAddr().String())
	if err != nil {
		return ""
	}
	return host
}
