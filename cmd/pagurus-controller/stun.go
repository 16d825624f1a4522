package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/pion/stun/v3"
	"golang.org/x/time/rate"
)

// bindAgain is how long after a failure the port is tried again.
const bindAgain = 10 * time.Second

// tellHosts serves STUN if the controller has an address, until ctx ends. Hosts that share a network do without.
func tellHosts(ctx context.Context, at string, log *slog.Logger) {
	if at == "" {
		return
	}
	for said := ""; ; {
		err := serveSTUN(ctx, at)
		if ctx.Err() != nil {
			return
		}
		if err != nil && err.Error() != said {
			said = err.Error()
			log.Warn("hosts behind NAT are not told how others see them; it is tried again", "cause", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(bindAgain):
		}
	}
}

// serveSTUN tells hosts how their packets look from here (RFC 8489), at the UDP port of the address that agents call. It
// answers everybody with no more bytes than it got, and not often, so that nobody is reached by what it says to feigned addresses.
func serveSTUN(ctx context.Context, at string) error {
	var config net.ListenConfig
	conn, err := config.ListenPacket(ctx, "udp", at)
	if err != nil {
		return fmt.Errorf("telling hosts behind NAT how they are seen: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	asking := newAsking()
	b := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFrom(b)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil || !asking.allow(from, time.Now()) {
			continue
		}
		if answer := seenFrom(b[:n], from); answer != nil {
			_, _ = conn.WriteTo(answer, from) // it is asked again
		}
	}
}

// How many questions a second are read, of all and of one network, and how many at once. A host asks three times a minute.
const (
	askedByAll  = 2000
	askedByOne  = 20
	askedAtOnce = 200
	mostAskers  = 4096
	ownNetwork4 = 24
	ownNetwork6 = 48
)

// asking bounds what is read.
type asking struct {
	all *rate.Limiter
	of  map[netip.Prefix]*rate.Limiter
}

func newAsking() *asking {
	return &asking{rate.NewLimiter(askedByAll, askedByAll), map[netip.Prefix]*rate.Limiter{}}
}

// allow reports whether a packet is read. Networks that feign many addresses use up their own share first.
func (a *asking) allow(from net.Addr, now time.Time) bool {
	at, ok := from.(*net.UDPAddr)
	if !ok {
		return false
	}
	addr, bits := at.AddrPort().Addr().Unmap(), ownNetwork6
	if addr.Is4() {
		bits = ownNetwork4
	}
	network, err := addr.Prefix(bits)
	if err != nil {
		return false
	}
	one := a.of[network]
	if one == nil {
		if len(a.of) >= mostAskers { // what is forgotten costs little: all together are bounded
			clear(a.of)
		}
		one = rate.NewLimiter(askedByOne, askedAtOnce)
		a.of[network] = one
	}
	return one.AllowN(now, 1) && a.all.AllowN(now, 1)
}

// seenFrom is the answer to a packet; nil: none.
func seenFrom(packet []byte, from net.Addr) []byte {
	at, ok := from.(*net.UDPAddr)
	if !ok || !stun.IsMessage(packet) {
		return nil
	}
	m := &stun.Message{Raw: append([]byte(nil), packet...)}
	if m.Decode() != nil || m.Type != stun.BindingRequest || stun.Fingerprint.Check(m) != nil {
		return nil
	}
	ip := at.IP
	if v4 := ip.To4(); v4 != nil {
		ip = v4
	}
	answer, err := stun.Build(stun.NewTransactionIDSetter(m.TransactionID), stun.BindingSuccess, &stun.XORMappedAddress{IP: ip, Port: at.Port}, stun.Fingerprint)
	if err != nil || len(answer.Raw) > len(packet) {
		return nil
	}
	return answer.Raw
}
