package main

import (
	"net"
	"testing"
	"time"

	"github.com/pion/stun/v3"
)

// Who asks is told how it is seen, with no more bytes than it sent.
func TestSeenFrom(t *testing.T) {
	long := stun.NewSoftware("as long as the answer, or longer")
	for _, at := range []*net.UDPAddr{{IP: net.IPv4(203, 0, 113, 1), Port: 4711}, {IP: net.ParseIP("2001:db8::1"), Port: 4711}} {
		asked := stun.MustBuild(stun.TransactionID, stun.BindingRequest, long, stun.Fingerprint).Raw
		m := &stun.Message{Raw: seenFrom(asked, at)}
		var is stun.XORMappedAddress
		if m.Decode() != nil || is.GetFrom(m) != nil || !is.IP.Equal(at.IP) || is.Port != at.Port || len(m.Raw) > len(asked) {
			t.Errorf("%v is told %v with %d bytes for %d", at, is, len(m.Raw), len(asked))
		}
		for name, packet := range map[string][]byte{
			"short":                stun.MustBuild(stun.TransactionID, stun.BindingRequest, stun.Fingerprint).Raw,
			"without its checksum": stun.MustBuild(stun.TransactionID, stun.BindingRequest, long, long).Raw,
			"an answer":            stun.MustBuild(stun.TransactionID, stun.BindingSuccess, long, stun.Fingerprint).Raw,
			"junk":                 make([]byte, 100),
		} {
			if got := seenFrom(packet, at); got != nil {
				t.Errorf("%s: %d bytes are answered with %d", name, len(packet), len(got))
			}
		}
	}
}

// One network that asks all the time leaves others their turn.
func TestOneNetworkDoesNotAskForAll(t *testing.T) {
	a, now := newAsking(), time.Unix(1e9, 0)
	read := 0
	for i := range 10 * askedAtOnce {
		if a.allow(&net.UDPAddr{IP: net.IPv4(203, 0, 113, byte(i)), Port: i}, now) {
			read++
		}
	}
	if read != askedAtOnce {
		t.Errorf("%d of one network were read", read)
	}
	if !a.allow(&net.UDPAddr{IP: net.IPv4(198, 51, 100, 1), Port: 1}, now) {
		t.Error("another network is not heard")
	}
	for i := range 20000 {
		if a.allow(&net.UDPAddr{IP: net.IPv4(10, byte(i>>8), byte(i), 1), Port: 1}, now) {
			read++
		}
	}
	if read >= askedByAll || len(a.of) > mostAskers {
		t.Errorf("%d were read, and %d networks are remembered", read, len(a.of))
	}
}
