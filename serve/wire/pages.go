package wire

import (
	"net"
	"slices"
	"strconv"
)

// pages are the addresses at which a browser finds the page, what a person types first. Where the controller listens on all its
// machine's addresses it says localhost: callers know better by which name they reach that machine.
func (c ServeConfig) pages() (out []string) {
	if c.Page == nil {
		return nil
	}
	for _, l := range slices.Concat(c.Faces, c.Listeners) {
		at, is := l.Addr().(*net.TCPAddr)
		if !is {
			continue
		}
		scheme, host := "https://", at.IP.String()
		if _, plain := l.(*counting); plain {
			scheme = "http://"
		}
		if at.IP == nil || at.IP.IsUnspecified() {
			host = "localhost"
		}
		out = append(out, scheme+net.JoinHostPort(host, strconv.Itoa(at.Port))+"/")
	}
	return out
}
