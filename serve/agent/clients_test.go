package agent

import (
	"context"
	"log/slog"
	"testing"

	"pagurus/fleet"
)

// memoryClients notes how many networks had been made or removed at each call.
type memoryClients struct {
	overlay *memoryNetwork
	at      []int
	jobs    [][]fleet.Network
}

func (c *memoryClients) KeepClients(_ context.Context, n []fleet.Network) error {
	c.at, c.jobs = append(c.at, c.overlay.count()), append(c.jobs, n)
	return nil
}

// Files are unmounted before their network goes: without it, unmounting would wait for a
// server that cannot answer.
func TestFilesAreUnmountedBeforeTheirNetworkGoes(t *testing.T) {
	overlay := &memoryNetwork{}
	clients := &memoryClients{overlay: overlay}
	a := New(Config{
		Host: "host1", Run: t.TempDir(), Overlay: overlay, Shares: &memoryNetwork{}, Clients: clients, Images: memoryImages{}, Controller: newController(),
		Facts: func() fleet.Facts { return fleet.Facts{} }, Log: slog.New(slog.DiscardHandler),
	})
	a.ctx = t.Context()
	with := []fleet.Network{{Job: "j1", Subnet: 1, Mount: &fleet.Mount{Addr: fleet.ClientAddr(1), MAC: fleet.ClientMAC(1)}}}
	for _, networks := range [][]fleet.Network{with, nil} {
		a.mu.Lock()
		a.wanted = &fleet.Wanted{Cluster: "c", Networks: networks}
		a.mu.Unlock()
		a.match(t.Context())
	}
	a.runs.Wait()
	if len(clients.at) != 2 || clients.at[0] != 0 || clients.at[1] != 1 || len(clients.jobs[0]) != 1 || len(clients.jobs[1]) != 0 {
		t.Errorf("clients were told %v after so many changes of the networks: %v", clients.jobs, clients.at)
	}
}
