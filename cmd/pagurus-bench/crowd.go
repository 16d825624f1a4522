package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"pagurus/act/machine"
	"pagurus/bench"
	"pagurus/bench/drive"
	"pagurus/fleet"
	"pagurus/serve/wire"
)

// A crowd is a cluster's many idle hosts. Each has a certificate and a TLS connection of
// its own, and reports its facts as often as an agent does. Only what an agent does
// besides is missing.
const (
	crowdSize    = 2000
	crowdReports = time.Second
	crowdAtOnce  = 16 // hosts that join at once
	crowdLimit   = 10 * time.Minute
	crowdWindow  = 10 * time.Second // of one measurement
)

// crowdLab has one real host, whose facts the crowd repeats.
func crowdLab() []string { return []string{"--hosts", "1"} }

// crowd measures the controller while the crowd reports.
func (b *experiments) crowd(ctx context.Context) (err error) {
	s, err := b.Snapshot(ctx)
	if err != nil {
		return err
	}
	status, err := b.Type(ctx, "lab", "status", "--json")
	if err != nil {
		return err
	}
	controller, address, err := partOf([]byte(status), "controller")
	if err != nil {
		return err
	}
	token, err := b.Type(ctx, "token", "create", "--role", "host", "--uses", fmt.Sprint(crowdSize))
	if err != nil {
		return err
	}
	crowd, stop := context.WithCancel(ctx)
	reporting, sessions := errgroup.WithContext(crowd)
	defer func() {
		stop()
		if e := reporting.Wait(); !errors.Is(e, context.Canceled) {
			err = errors.Join(err, e)
		}
	}()
	var reports atomic.Int64
	joining, joins := errgroup.WithContext(ctx)
	joining.SetLimit(crowdAtOnce)
	for n := range crowdSize {
		joining.Go(func() error {
			joins, cancel := context.WithTimeout(joins, crowdLimit)
			defer cancel()
			attached, err := b.crowdHost(joins, n, s.Hosts["host1"].Facts, address, strings.TrimSpace(token))
			if err != nil {
				return fmt.Errorf("host %d of the crowd: %w", n, err)
			}
			reporting.Go(func() error { return attached.report(sessions, &reports) })
			return nil
		})
	}
	if err := joining.Wait(); err != nil {
		return err
	}
	if err := b.crowdLook(sessions, controller, &reports); err != nil {
		return errors.Join(err, context.Cause(sessions))
	}
	return b.crowdFigures()
}

// crowdLook samples what the controller takes.
func (b *experiments) crowdLook(ctx context.Context, controller int, reports *atomic.Int64) error {
	return b.InTurn(ctx, nil, bench.Arm{Name: "crowd", Measure: func(ctx context.Context) (map[string]float64, error) {
		before, err1 := cpuTime(statOf(controller))
		told, begun := reports.Load(), time.Now()
		if err := drive.Pause(ctx, crowdWindow); err != nil {
			return nil, err
		}
		after, err2 := cpuTime(statOf(controller))
		took := time.Since(begun).Seconds()
		told = reports.Load() - told
		mib, err3 := largest(controller)
		asked := time.Now()
		_, err4 := b.Type(ctx, "hosts", "--json")
		return map[string]float64{
			"controller_cpu_percent": 100 * (after - before).Seconds() / took, "controller_mib": mib,
			"reports_per_s": float64(told) / took, "hosts_s": time.Since(asked).Seconds(),
		}, errors.Join(err1, err2, err3, err4)
	}})
}

func (b *experiments) crowdFigures() error {
	for _, f := range []struct {
		name  string
		limit float64
	}{{"controller_cpu_percent", 60}, {"controller_mib", 900}, {"hosts_s", 0.5}} {
		if err := b.Mean(fmt.Sprintf("%s, %d agents that report over TLS", f.name, crowdSize), "crowd_"+f.name, f.limit); err != nil {
			return err
		}
	}
	return nil
}

// crowdMember is one host's session.
type crowdMember struct {
	session *wire.AgentSession
	facts   fleet.Facts
}

// crowdHost joins by the token, as `pagurus join` does, and attaches.
func (b *experiments) crowdHost(ctx context.Context, n int, facts fleet.Facts, address, token string) (crowdMember, error) {
	id := fleet.HostID(fmt.Sprintf("crowd%d", n))
	folder := filepath.Join(b.Dir, string(id))
	facts.Machine = crowdMachine(n)
	facts.Guests, facts.WireGuard = nil, nil // its key is the real host's
	facts.Address = machine.Towards(address) // a host is believed its own address only
	if _, err := wire.Enrol(ctx, address, token, folder, wire.Joining{Host: id, Machine: facts.Machine}); err != nil {
		return crowdMember{}, err
	}
	client, err := wire.Dial(wire.Config{Address: address, Credentials: folder})
	if err != nil {
		return crowdMember{}, err
	}
	s, err := client.Attach(ctx, wire.Hello{Host: id, Facts: facts})
	return crowdMember{s, facts}, err
}

// report sends facts until the end of ctx.
func (m crowdMember) report(ctx context.Context, reports *atomic.Int64) error {
	defer m.session.Close()
	go func() { // what is wanted there is read, and there is nothing to do
		for _, err := m.session.Receive(ctx); err == nil; _, err = m.session.Receive(ctx) {
		}
	}()
	tick := time.NewTicker(crowdReports)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			if err := m.session.Send(ctx, wire.Up{Facts: &m.facts}); err != nil {
				return err
			}
			reports.Add(1)
		}
	}
}
