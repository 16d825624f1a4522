package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/pion/stun/v3"
)

// tellHosts serves STUN if the controller has an address. Hosts that share a network do without.
func tellHosts(ctx context.Context, at string, log *slog.Logger) {
	if at == "" {
		return
	}
	if err := serveSTUN(ctx, at); err != nil {
		log.Warn("hosts behind NAT are not told how others see them", "cause", err)
	}
}

// serveSTUN tells hosts how their packets look from here (RFC 8489), at the UDP port of the address that agents call. It
// answers everybody with less than twice the bytes that it got, and remembers nobody.
func serveSTUN(ctx context.Context, at string) error {
	var config net.ListenConfig
	conn, err := config.ListenPacket(ctx, "udp", at)
	if err != nil {
		return fmt.Errorf("telling hosts behind NAT how they are seen: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	b := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFrom(b)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			continue
		}
		if answer := seenFrom(b[:n], from); answer != nil {
			_, _ = conn.WriteTo(answer, from) // it is asked again
		}
	}
}

// seenFrom is the answer to a packet; nil: none.
func seenFrom(packet []byte, from net.Addr) []byte {
	at, ok := from.(*net.UDPAddr)
	if !ok || !stun.IsMessage(packet) {
		return nil
	}
	m := &stun.Message{Raw: append([]byte(nil), packet...)}
	if m.Decode() != nil || m.Type != stun.BindingRequest {
		return nil
	}
	ip := at.IP
	if v4 := ip.To4(); v4 != nil {
		ip = v4
	}
	answer, err := stun.Build(stun.NewTransactionIDSetter(m.TransactionID), stun.BindingSuccess, &stun.XORMappedAddress{IP: ip, Port: at.Port}, stun.Fingerprint)
	if err != nil {
		return nil
	}
	return answer.Raw
}
