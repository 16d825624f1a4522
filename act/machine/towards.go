package machine

import (
	"net"
	"net/netip"
	"strings"
)

// Towards is this machine's address on the route to another, given as host:port; empty:
// unknown, or the same machine, or one that means something on one link only.
func Towards(other string) string {
	if strings.HasPrefix(other, "unix:") {
		return ""
	}
	conn, err := net.Dial("udp", other) // sends nothing; the kernel chooses the route
	if err != nil {
		return ""
	}
	defer func() { _ = conn.Close() }()
	at, err := netip.ParseAddrPort(conn.LocalAddr().String())
	if err != nil || at.Addr().IsLinkLocalUnicast() {
		return ""
	}
	return at.Addr().Unmap().String()
}
