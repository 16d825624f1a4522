package wireguard

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"
)

// calls is a link that keeps what each call writes.
type calls struct {
	tun.Device
	all [][][]byte
}

func (c *calls) Write(packets [][]byte, offset int) (total int, err error) {
	c.all = append(c.all, slices.Clone(packets))
	for _, p := range packets {
		total += len(p) - offset
	}
	return total, nil
}

// Whatever comes, no call writes packets of two networks, all are written in their order, and those of one network together.
func TestNoCallWritesTwoNetworks(t *testing.T) {
	const offset = 16
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		var sent [][]byte
		changes := 0
		for range r.IntN(130) {
			p := make([]byte, offset+r.IntN(200))
			if inner := p[offset:]; len(inner) > vniAt+vniBytes {
				inner[0], inner[nextAt], inner[vniAt+2] = 0x60, unix.IPPROTO_UDP, byte(r.IntN(2))
				inner[len(inner)-1] = byte(r.Uint32())
			}
			if n := len(sent); n > 0 && !bytes.Equal(network(p[offset:]), network(sent[n-1][offset:])) {
				changes++
			}
			sent = append(sent, p)
		}
		var c calls
		total, err := byNetwork{&c}.Write(sent, offset)
		if err != nil {
			t.Fatal(err)
		}
		var written [][]byte
		for _, call := range c.all {
			for _, p := range call {
				if !bytes.Equal(network(p[offset:]), network(call[0][offset:])) {
					t.Fatalf("seed %d: one call writes packets of two networks", seed)
				}
				written, total = append(written, p), total-len(p)+offset
			}
		}
		if len(sent) > 0 && len(c.all) != changes+1 || total != 0 || !slices.EqualFunc(written, sent, func(a, b []byte) bool { return &a[0] == &b[0] }) {
			t.Errorf("seed %d: %d packets became %d in %d calls, %d bytes too many", seed, len(sent), len(written), len(c.all), total)
		}
	}
}
