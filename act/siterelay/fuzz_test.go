package siterelay

import (
	"net/netip"
	"testing"
	"time"
)

// FuzzPass: whatever somebody on the Internet sends to a relay, nobody who has proved nothing is taken for a host, and nothing is passed to them.
func FuzzPass(f *testing.F) {
	f.Add(question("a"))
	f.Add(question("x"))
	f.Add(message(transport, 32))
	f.Add(message(1, 148))
	f.Add([]byte{4, 0, 0, 0})
	var secrets [2]Secrets
	for i, of := range []string{"a", "b"} {
		s, err := secretsOf(of)
		if err != nil {
			f.Fatal(err)
		}
		secrets[i] = s
	}
	p, err := newPair(secrets)
	if err != nil {
		f.Fatal(err)
	}
	stranger := netip.MustParseAddrPort("192.0.2.9:7462")
	f.Fuzz(func(t *testing.T, b []byte) {
		say := p.check(b, stranger, time.Now())
		if len(say) > len(b)+64 {
			t.Errorf("%d bytes are answered with %d", len(b), len(say))
		}
		if to := p.pass(b, stranger); to.IsValid() {
			t.Errorf("it is passed to %s", to)
		}
		for i := range p.sides {
			if p.sides[i].at.IsValid() {
				t.Fatalf("side %d is at %s", i, p.sides[i].at)
			}
		}
	})
}
