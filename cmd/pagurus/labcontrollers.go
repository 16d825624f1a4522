package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"pagurus/act/daemon"
	"pagurus/cmd/roles"
	"pagurus/fleet"
	"pagurus/serve/wire"
)

// This file has a lab's controllers, if it has several. They are on one address, with ports of their own.

const (
	controllersFlag   = "controllers"
	mostControllers   = 5
	labPeer           = 7481 // the first one's port for the others
	controllersApart  = 2    // between the ports of two controllers
	controllerWord    = "controller"
	labSocketsPattern = "controller-*.sock*" // beside the first one's socket, with their locks
)

func (l lab) several() bool { return l.Controllers > 1 }

// checkControllers says what is wrong with the number of controllers.
func (l lab) checkControllers() error {
	switch {
	case l.Controllers < 1 || l.Controllers > mostControllers:
		return fmt.Errorf("a lab has 1 to %d controllers, not %d; three survive the loss of one", mostControllers, l.Controllers)
	case l.several() && l.Machines != nil:
		return errors.New("a lab of machines has one controller: leave out --" + controllersFlag)
	}
	return nil
}

// controllerName is what controller n is called in the lab.
func controllerName(n int) string {
	if n == 1 {
		return controllerWord
	}
	return fmt.Sprint(controllerWord, n)
}

func (l lab) port(base uint16, n int) string {
	return netip.AddrPortFrom(l.family().Controller(), base+uint16(controllersApart*(n-1))).String()
}

// controllerState is the state folder of controller n.
func controllerState(n int) string {
	if n == 1 {
		return labState
	}
	return filepath.Join(labState, controllerName(n))
}

// controllerN is controller n of the lab. Users of this machine reach it by its socket, agents
// over the bridge.
func (l lab) controllerN(n int) daemon.Daemon {
	run, socket := labRun, wire.DefaultSocket
	if n > 1 {
		run, socket = filepath.Join(labRun, controllerName(n)), filepath.Join(filepath.Dir(wire.DefaultSocket), fmt.Sprintf("controller-%d.sock", n))
	}
	d := daemon.Daemon{
		Name:    "the lab's " + controllerName(n),
		PIDFile: filepath.Join(labRun, controllerName(n)+".pid"),
		LogFile: filepath.Join(labLogs, controllerName(n)+".log"),
		Command: []string{beside(roles.ControllerProgram), roles.NoConfig, "--state", controllerState(n), "--run", run, "--images", roles.Images,
			"--socket", socket,
			"--listen", l.port(labListen, n), "--purpose", labPurpose, "--" + fleet.EncryptionFlag, string(cmp.Or(l.Encryption, fleet.AutoEncryption))},
	}
	if l.several() {
		d.Command = append(d.Command, "--"+roles.PeerFlag, l.port(labPeer, n), "--"+roles.PeerNameFlag, controllerName(n))
	}
	return d
}

// controllers are all controllers but the first.
func (l lab) otherControllers() (out []daemon.Daemon) {
	for n := 2; n <= l.Controllers; n++ {
		out = append(out, l.controllerN(n))
	}
	return out
}

// seatControllers has the other controllers join the first one, and starts them.
func (l lab) seatControllers(ctx context.Context) error {
	for n := 2; n <= l.Controllers; n++ {
		_, unseated := os.Stat(filepath.Join(controllerState(n), roles.SeatFile))
		if _, err := os.Stat(filepath.Join(controllerState(n), roles.RemovedFile)); err == nil || unseated != nil {
			if err := l.seat(ctx, n); err != nil {
				return err
			}
		}
		d := l.controllerN(n)
		if err := d.Start(); err != nil {
			return err
		}
		if err := until(ctx, controllerName(n)+" takes part", d, func() bool { return l.takesPart(ctx, controllerName(n)) }); err != nil {
			return err
		}
	}
	return nil
}

// seat has controller n join by a token, as one of another machine does.
func (l lab) seat(ctx context.Context, n int) error {
	client, err := wire.Dial(wire.Config{Address: labSocket})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	answer, err := client.Ask(ctx, fleet.Request{Verb: fleet.AddToken, Token: &fleet.JoinToken{
		Role: fleet.ControllerRole, Uses: 1, Expires: time.Now().Add(labUpLimit),
	}})
	if err != nil {
		return fmt.Errorf("make a join token: %w", err)
	}
	seat := roles.Seat{Name: controllerName(n), Peer: l.port(labPeer, n)}
	if err := joinControllers(ctx, l.port(labListen, 1), answer.Token, controllerState(n), seat); err != nil {
		return fmt.Errorf("%s joins: %w", seat.Name, err)
	}
	return nil
}

// begun reports whether the first controller answers; others may answer on its socket's behalf.
func (l lab) begun(ctx context.Context) bool {
	return connected(ctx, labSocket) != nil && (!l.several() || l.takesPart(ctx, controllerName(1)))
}

// takesPart reports whether a controller leads, or could.
func (l lab) takesPart(ctx context.Context, name string) bool {
	client, err := wire.Dial(wire.Config{Address: labSocket})
	if err != nil {
		return false
	}
	defer func() { _ = client.Close() }()
	list, err := client.Heads(ctx)
	if err != nil {
		return false
	}
	for _, h := range list {
		if h.Name == name {
			return h.Up
		}
	}
	return false
}

// removeSockets removes the sockets of the other controllers.
func removeSockets() error {
	found, err := filepath.Glob(filepath.Join(filepath.Dir(wire.DefaultSocket), labSocketsPattern))
	for _, path := range found {
		err = errors.Join(err, removeFile(path))
	}
	return err
}
