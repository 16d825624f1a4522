package view

import (
	"testing"
	"time"

	"pagurus/fleet"
)

// sites is a cluster of four sites: two behind NAT that a third relays for, and one that nobody reaches.
func sites() fleet.Snapshot {
	s := fleet.NewSnapshot()
	s.At, s.Cluster.Encryption = noon, fleet.AutoEncryption
	add := func(id fleet.HostID, site string, paths map[fleet.HostID]fleet.Path) {
		s.Hosts[id] = fleet.Host{ID: id, State: fleet.HostUp, Facts: fleet.Facts{SeenAt: noon, Connected: true, Site: site, Address: "192.168.1.2",
			WireGuard: &fleet.WireGuardFacts{By: fleet.UserWireGuard, Paths: paths}}}
	}
	ms, since := time.Millisecond, noon.Add(-time.Minute)
	add("head", "hall", map[fleet.HostID]fleet.Path{
		"home1": {Kind: fleet.DirectPath, At: "203.0.113.1:4711", Latency: 12 * ms, BytesPerSecond: 4 << 20, Since: since},
		"home2": {Kind: fleet.DirectPath, At: "203.0.113.2:4711", Latency: 30 * ms, Lost: 0.25, BytesPerSecond: 1 << 20, Since: since},
	})
	add("home1", "ada", map[fleet.HostID]fleet.Path{
		"head":  {Kind: fleet.DirectPath, At: "198.51.100.1:7462", Latency: 14 * ms, Since: since},
		"home2": {Kind: fleet.RelayedPath, Relay: "head", NeedsRelay: true, Latency: 45 * ms, Since: since.Add(time.Second)},
		"lost":  {NeedsRelay: true, Since: since},
	})
	add("home2", "bob", map[fleet.HostID]fleet.Path{
		"head":  {Kind: fleet.DirectPath, At: "198.51.100.1:7462", Latency: 32 * ms, Since: since},
		"home1": {Kind: fleet.RelayedPath, Relay: "head", NeedsRelay: true, Latency: 43 * ms, Since: since},
		"lost":  {NeedsRelay: true, Relay: "head", Dead: true, Since: since},
	})
	add("lost", "moon", nil)
	return s
}

func TestSites(t *testing.T) {
	c := Read(sites())
	none := Read(fleet.NewSnapshot()).SiteTable()
	golden(t, "sites", c.SiteTable().Text()+c.HostTable().Text()+none.Text())
}
