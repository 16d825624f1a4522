package main

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"pagurus/cmd/roles"
	"pagurus/fleet"
)

// A host that may not encrypt says so, and listens nowhere in clear.
func TestHostThatMayNotEncrypt(t *testing.T) {
	var sockets netip.Addr
	e, err := openEncryption(roles.Agent{RunDir: t.TempDir(), StateDir: t.TempDir(), Encryption: fleet.NoEncryption, WireGuardPort: 1}, slog.New(slog.DiscardHandler), func(_, at netip.Addr) { sockets = at })
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	err = e.Encrypt(context.Background(), &fleet.WireGuard{Address: fleet.WireGuardAddr(3), MTU: fleet.WireGuardMTU})
	if err == nil || !strings.Contains(err.Error(), "runs with --encryption none") {
		t.Errorf("it says: %v", err)
	}
	if f := e.facts(); !strings.Contains(f.Trouble, "runs with --encryption none") || f.By != "" || f.Key == "" {
		t.Errorf("its facts are %+v", f)
	}
	if want := fleet.WireGuardAddr(3).WithZone(e.device.Name()); sockets != want {
		t.Errorf("guests are received at %s", sockets)
	}
	e.choice = fleet.AutoEncryption
	if err := e.Encrypt(context.Background(), &fleet.WireGuard{}); err == nil || sockets != nowhere.WithZone(e.device.Name()) {
		t.Errorf("a host without an address inside: %v, and guests are received at %s", err, sockets)
	}
	if err := e.Encrypt(context.Background(), nil); err != nil || sockets.IsValid() {
		t.Errorf("where nothing is encrypted: %v, at %s", err, sockets)
	}
}
