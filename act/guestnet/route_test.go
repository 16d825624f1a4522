package guestnet

import (
	"net/netip"
	"strings"
	"testing"

	"pagurus/internal/testkit"
)

// TestRouteHurry: without a setting for all connections, the route to the job's network
// has the timeout, once, also after repeated calls.
func TestRouteHurry(t *testing.T) {
	testkit.Leftovers(t)
	testkit.Root(t, "ip")
	space := testkit.Namespace(t)
	space.Run("ip", "link", "add", "eth0", "up", "type", "veth", "peer", "name", "eth1")
	space.Run("ip", "addr", "add", "10.1.2.3/26", "dev", "eth0")
	addr := netip.MustParseAddr("10.1.2.3")
	for range 2 {
		if err := space.Do(func() error { return shortenRouteTimeout("eth0", addr, 26) }); err != nil {
			t.Error(err)
		}
		got := strings.Replace(strings.Join(strings.Fields(space.Run("ip", "route")), " "), " linkdown", "", 1)
		if want := "10.1.2.0/26 dev eth0 proto kernel scope link src 10.1.2.3 rto_min lock 20ms"; got != want {
			t.Errorf("the routes are %q, want %q", got, want)
		}
	}
	for _, bad := range []struct {
		name, addr string
		prefix     int
	}{{"none", "10.1.2.3", 26}, {"eth0", "10.1.2.3", 33}, {"eth0", "fd00::1", 64}, {"eth0", "10.9.9.9", 24}} {
		if err := space.Do(func() error { return shortenRouteTimeout(bad.name, netip.MustParseAddr(bad.addr), bad.prefix) }); err == nil {
			t.Errorf("%v: no error", bad)
		}
	}
}
