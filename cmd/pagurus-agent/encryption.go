package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"pagurus/act/container/shim"
	"pagurus/act/siterelay"
	"pagurus/act/wireguard"
	"pagurus/cmd/roles"
	"pagurus/fleet"
)

// encryption has everything that reaches other hosts' guests go through the WireGuard device.
type encryption struct {
	choice    fleet.Encryption // of this host
	state     string           // folder
	device    *wireguard.Device
	readdress func(tunnels, sockets netip.Addr)
	paths     *paths           // nil: none to other networks
	relay     *siterelay.Relay // nil: this host does not relay
	log       *slog.Logger

	mu      sync.Mutex // guards the fields below, and is held only for a moment
	wanted  bool
	trouble string // why the host does not encrypt, though it should
	relayed []fleet.RelayPair
}

func openEncryption(f roles.Agent, log *slog.Logger, readdress func(tunnels, sockets netip.Addr)) (*encryption, error) {
	run, err := filepath.Abs(f.RunDir)
	if err != nil {
		return nil, err
	}
	program := ""
	if shim.Check() == nil {
		program = shim.Daemon()
	}
	device, err := wireguard.Open(wireguard.Config{Run: run, State: f.StateDir, Port: f.WireGuardPort, Program: program})
	if err != nil {
		return nil, err
	}
	e := &encryption{choice: f.Encryption, state: f.StateDir, device: device, readdress: readdress, log: log}
	relay, err := siterelay.Open(siterelay.Config{Run: run, Program: program, FirstPort: f.RelayPort, BytesPerSecond: f.RelayBandwidth, Secrets: e.relaySecrets})
	switch {
	case err != nil:
		return e, err
	case f.Relay == fleet.RelayOff: // it may have been on
		return e, relay.Remove()
	}
	e.relay = relay
	return e, nil
}

// relaySecrets are those that this host has with another as its relay.
func (e *encryption) relaySecrets(key string) (siterelay.Secrets, error) {
	asks, asked, err := e.device.RelaySecrets(key)
	return siterelay.Secrets{In: hex.EncodeToString(asks), Out: hex.EncodeToString(asked)}, err
}

// relayEvery is how often it is looked after whether the relay runs.
const relayEvery = 5 * time.Second

// nowhere is an address that no host has.
var nowhere = netip.MustParseAddr("fe80::")

// Encrypt satisfies agent.Encryption.
func (e *encryption) Encrypt(ctx context.Context, w *fleet.WireGuard) error {
	e.mu.Lock()
	e.wanted = w != nil
	e.mu.Unlock()
	err := e.encrypt(ctx, w)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.trouble = ""
	if err != nil {
		e.trouble = err.Error()
	}
	return err
}

func (e *encryption) encrypt(ctx context.Context, w *fleet.WireGuard) error {
	if w == nil {
		e.readdress(netip.Addr{}, netip.Addr{})
		e.lead(nil)
		return e.device.Remove()
	}
	own := *w
	if !own.Address.IsValid() { // the host has no number, and Apply says so
		own.Address = nowhere
	}
	// Without a device of this name nothing can listen there or go there, in clear least of all.
	e.readdress(e.device.Local(own), e.device.Numbered(own))
	if err := e.refusal(); err != nil {
		return err
	}
	own.Address = w.Address
	own.KernelOnly = w.KernelOnly || e.choice == fleet.WireGuardOnly
	if err := e.device.Apply(ctx, own); err != nil {
		return err
	}
	e.readdress(e.device.Local(own), e.device.Numbered(own)) // it may be another link now
	e.lead(&own)
	return nil
}

// seek begins to look for peers in other networks. server is the controller, which says how it sees the device's port.
func (e *encryption) seek(own func() netip.Addr, server string, log *slog.Logger) (err error) {
	at := func() netip.AddrPort { return netip.AddrPortFrom(own(), e.device.End().Port) }
	if e.paths, err = openPaths(e.device, at, server, log); err != nil {
		return err
	}
	if e.relay != nil {
		e.paths.also(relayEvery, e.keepRelay)
	}
	return nil
}

// lead has the peers in other networks looked for, and relays for others. This host's own traffic does not wait for
// that, nor fail by it: what is wrong with one peer must not keep jobs from their networks.
func (e *encryption) lead(w *fleet.WireGuard) {
	if e.relay != nil {
		var pairs []fleet.RelayPair
		if w != nil {
			pairs = w.Relays
		}
		e.mu.Lock()
		e.relayed = pairs
		e.mu.Unlock()
		e.keepRelay()
	}
	if e.paths == nil {
		return
	}
	if err := e.paths.want(w); err != nil {
		e.log.Warn("not all peers in other networks are looked for", "cause", err)
	}
}

// refusal says that this host may not encrypt; nil: it may.
func (e *encryption) refusal() error {
	if e.choice != fleet.NoEncryption {
		return nil
	}
	return fmt.Errorf("the cluster encrypts traffic between hosts, and this host's agent runs with --%[1]s %[2]s: start it without that, or the controller with --%[1]s %[2]s", fleet.EncryptionFlag, fleet.NoEncryption)
}

// Holds satisfies agent.Encryption.
func (e *encryption) Holds() bool { return !e.on() || e.device.Protection() != "" }

// on reports whether traffic should be encrypted now.
func (e *encryption) on() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.wanted
}

func (e *encryption) facts() *fleet.WireGuardFacts {
	f := &fleet.WireGuardFacts{WireGuardEnd: e.device.End(), By: e.device.Protection()}
	if e.paths != nil {
		e.paths.report(f)
	}
	if e.relay != nil && e.on() {
		f.Relays, f.Relayed = true, e.relay.Ports()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	f.Trouble = e.trouble
	if err := e.refusal(); err != nil {
		f.Trouble = err.Error()
	}
	return f
}

// keepRelay has the relay do what is wanted now.
func (e *encryption) keepRelay() {
	e.mu.Lock()
	pairs := e.relayed
	e.mu.Unlock()
	if err := e.relay.Apply(pairs, time.Now()); err != nil {
		e.log.Warn("this host does not relay as it should", "cause", err)
	}
}

// sweep removes the device, the relay and the key.
func (e *encryption) sweep() error {
	var err error
	if e.relay != nil {
		err = e.relay.Remove()
	}
	if err := errors.Join(err, e.device.Remove()); err != nil {
		return err
	}
	return wireguard.Forget(e.state)
}

func (e *encryption) close() error {
	var err error
	if e.paths != nil {
		err = e.paths.close()
	}
	return errors.Join(err, e.device.Close())
}
