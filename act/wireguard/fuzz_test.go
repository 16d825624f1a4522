package wireguard

import (
	"encoding/json"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/pion/stun/v3"
	"golang.org/x/time/rate"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"pagurus/fleet"
)

// FuzzWant: what a controller wants of a host's device is refused, or all its peers have keys that the tools print the
// same, addresses inside, and endpoints that can be called; and a device that is so needs no change.
func FuzzWant(f *testing.F) {
	const key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAE="
	for _, text := range []string{
		`{"address":"fe80::1","mtu":1420,"peers":[{"host":"h2","key":"` + key + `","address":"fe80::2","endpoint":"192.0.2.2:7462"}]}`,
		`{"address":"fe80::1","peers":[{"host":"h2","key":"` + key + `","address":"fe80::2"},{"host":"h3","key":"` + key + `","address":"fe80::3"}]}`,
		`{"address":"192.0.2.1"}`, `{"address":"fe80::1%eth0"}`, `{"address":"fe80::1","peers":[{"key":"AA==","address":"::1","endpoint":"x:0"}]}`, `{}`,
	} {
		f.Add([]byte(text), key)
	}
	f.Fuzz(func(t *testing.T, text []byte, own string) {
		var w fleet.WireGuard
		if json.Unmarshal(text, &w) != nil {
			return
		}
		s, err := Want(w, fleet.WireGuardEnd{Key: own, Port: 7462})
		if err != nil {
			return
		}
		for k, p := range s.Peers {
			if parsed, err := wgtypes.ParseKey(k); err != nil || parsed.String() != k || k == own {
				t.Errorf("a peer has the key %q: %v", k, err)
			}
			if _, err := netip.ParseAddrPort(p.Endpoint); p.Endpoint != "" && err != nil || !p.Address.IsLinkLocalUnicast() {
				t.Errorf("a peer is %+v: %v", p, err)
			}
		}
		if len(s.Peers) != len(w.Peers) {
			t.Errorf("%d peers became %d", len(w.Peers), len(s.Peers))
		}
		if rest := Diff(s, s); len(rest) > 0 {
			t.Errorf("what is as wanted is changed: %v", rest)
		}
	})
}

// FuzzCheck: whatever is sent to the port where hosts look for each other, no way to a peer is learnt from who has no key of its, and a server's
// answer is an address or nothing.
func FuzzCheck(f *testing.F) {
	id := [stun.TransactionIDSize]byte{1}
	for _, m := range [][]stun.Setter{
		{stun.BindingRequest}, {stun.BindingSuccess, &stun.XORMappedAddress{IP: net.IPv4(192, 0, 2, 1), Port: 1}},
		{stun.BindingSuccess, &stun.XORMappedAddress{IP: net.ParseIP("2001:db8::1"), Port: 65535}}, {stun.BindingRequest, stun.MessageIntegrity("x")},
	} {
		f.Add(stun.MustBuild(append([]stun.Setter{stun.NewTransactionIDSetter(id)}, m...)...).Raw)
	}
	f.Add([]byte{0, 1, 0, 0})
	from := netip.MustParseAddrPort("192.0.2.9:7462")
	f.Fuzz(func(t *testing.T, b []byte) {
		peer := &checked{in: stun.MessageIntegrity("in"), out: stun.MessageIntegrity("out")}
		c := &Checks{
			peers: map[string]*checked{"k": peer}, relays: map[string]*checked{}, limit: rate.NewLimiter(rate.Inf, 1),
			asked: map[[stun.TransactionIDSize]byte]question{id: {nil, from, time.Now()}}, mapped: map[bool]mapping{},
		}
		if !c.worthwhile(b, from) {
			return
		}
		m := &stun.Message{Raw: append([]byte(nil), b...)}
		if m.Decode() != nil {
			return
		}
		c.hear(m, from, time.Now())
		if len(peer.ways) > 0 {
			t.Errorf("a way was learnt: %+v", peer.ways[0].Way)
		}
	})
}
