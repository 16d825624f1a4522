package host

import (
	"net/netip"
	"testing"
)

// A listener that is opened again is where it was, by the link that has the address now.
func TestAgain(t *testing.T) {
	for _, c := range []struct{ earlier, here, want string }{
		{"[fe80::7%12]:4000", "fe80::7%31", "[fe80::7%31]:4000"},
		{"[fe80::7%12]:4000", "fe80::7%12", "[fe80::7%12]:4000"},
		{"[fe80::7%12]:4000", "fe80::8%31", "[fe80::7%12]:4000"},
		{"198.18.0.1:4000", "198.18.0.1", "198.18.0.1:4000"},
		{"198.18.0.1:4000", "fe80::7%31", "198.18.0.1:4000"},
	} {
		if got := Again(netip.MustParseAddrPort(c.earlier), netip.MustParseAddr(c.here)); got != netip.MustParseAddrPort(c.want) {
			t.Errorf("%s, which was at %s, is at %s", c.here, c.earlier, got)
		}
	}
}
