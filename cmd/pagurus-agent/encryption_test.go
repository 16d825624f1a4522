package main

import (
	"context"
	"log/slog"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	machine "pagurus/act/host"
	"pagurus/cmd/roles"
	"pagurus/fleet"
	"pagurus/internal/note"
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

// A relay that runs ends when its host's agent is started again with --relay off.
func TestAHostThatRelaysNoMore(t *testing.T) {
	run := t.TempDir()
	relay := exec.Command("sleep", "100")
	if err := relay.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = relay.Wait(); close(ended) }()
	t.Cleanup(func() { _ = relay.Process.Kill(); <-ended })
	is, err := machine.Find(relay.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := note.Replace(filepath.Join(run, "relay.process"), is); err != nil {
		t.Fatal(err)
	}
	for _, choice := range []fleet.Relaying{fleet.RelayOn, fleet.RelayOff} {
		e, err := openEncryption(roles.Agent{RunDir: run, StateDir: t.TempDir(), WireGuardPort: 1, RelayPort: 7470, Relay: choice}, slog.New(slog.DiscardHandler), func(_, _ netip.Addr) {})
		if err != nil {
			t.Fatal(err)
		}
		if is.Lives() != (choice == fleet.RelayOn) {
			t.Errorf("with --relay %s the relay lives: %v", choice, is.Lives())
		}
		if err := e.close(); err != nil {
			t.Fatal(err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(run, "relay*")); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}
