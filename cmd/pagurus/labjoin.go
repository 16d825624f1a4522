package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"pagurus/act/machine"
	"pagurus/fleet"
	"pagurus/internal/pause"
	"pagurus/serve/wire"
	"pagurus/show/cli"
)

// enlist has every host whose agent runs here join, as hosts on other machines do. Those that have joined keep
// their key, so that doing it again changes nothing.
func (l lab) enlist(ctx context.Context) error {
	here, err := machine.ID()
	if err != nil {
		return err
	}
	client, err := wire.Dial(wire.Config{Address: labSocket})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	answer, err := client.Ask(ctx, fleet.Request{Verb: fleet.AddToken, Token: &fleet.JoinToken{
		Role: fleet.HostRole, Uses: 2 * len(l.agents()), Expires: time.Now().Add(labUpLimit), SameID: true,
	}})
	if err != nil {
		return fmt.Errorf("make a join token: %w", err)
	}
	for _, n := range l.agents() {
		folder := filepath.Join(labState, string(hostName(n)), cli.HostCredentials)
		join := func() error {
			_, err := wire.Enrol(ctx, l.endpoint(), answer.Token, folder, wire.Joining{Host: l.member(n), Machine: here})
			return err
		}
		err := join()
		// One of several controllers passes a call to the one that leads, which may just have changed.
		for try := 0; try < 5 && errors.Is(err, wire.ErrNoController) && pause.For(ctx, time.Second) == nil; try++ {
			err = join()
		}
		if err != nil {
			return fmt.Errorf("%s joins: %w", l.member(n), err)
		}
	}
	return nil
}
