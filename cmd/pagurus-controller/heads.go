package main

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"pagurus/act/etcd"
	"pagurus/cmd/roles"
	"pagurus/internal/note"
	"pagurus/internal/pause"
	"pagurus/serve/controller"
	"pagurus/serve/identity"
	"pagurus/serve/wire"
)

// electionName is what controllers are candidates for.
const electionName = controller.Election

// knownEvery is how often a controller looks who the others are.
const knownEvery = 2 * time.Second

// seatOf says how this controller takes part in several; its Listen is empty if it is alone.
func seatOf(f roles.Controller) (p etcd.Peer, err error) {
	var seat roles.Seat
	if err := note.Load(filepath.Join(f.StateDir, roles.SeatFile), &seat); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return p, fmt.Errorf("reading how this controller joined the others: %w", err)
	}
	p.Advertise = cmp.Or(f.Peer, seat.Peer)
	if p.Advertise == "" {
		return etcd.Peer{}, nil
	}
	here, _ := os.Hostname()
	p.Name, p.Join = cmp.Or(f.PeerName, seat.Name, here), seat.Store
	p.Listen = p.Advertise
	at, _, err := net.SplitHostPort(p.Advertise)
	if err != nil {
		return p, roles.RefusedPeer(p.Advertise)
	}
	host, port, err := net.SplitHostPort(f.Listen)
	if err != nil {
		return p, errors.New("a controller among several has to be reached by agents and the others: give --listen ADDRESS:PORT")
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = at
	}
	p.Serves = net.JoinHostPort(host, port)
	p.Files = etcd.PeerFiles{
		Certificate: filepath.Join(f.StateDir, identity.PeerFile), Key: filepath.Join(f.StateDir, identity.PeerKeyFile),
		Authority: filepath.Join(f.StateDir, identity.AuthorityFile), ServerName: identity.ServerName,
	}
	return p, nil
}

// certify keeps a controller's own certificate valid until ctx ends.
func certify(ctx context.Context, f roles.Controller, name string, a *identity.Authority, log *slog.Logger) error {
	if err := a.SavePeer(f.StateDir, name, time.Now()); err != nil {
		return err
	}
	go func() {
		for pause.For(ctx, identity.Lifetime/4) == nil {
			if err := a.SavePeer(f.StateDir, name, time.Now()); err != nil {
				log.Warn("this controller's certificate is not renewed yet", "cause", err)
			}
		}
	}()
	return nil
}

// heads are the controllers of a store with several members.
type heads struct {
	store     *etcd.Store
	peer      etcd.Peer
	authority *identity.Authority
	leads     <-chan struct{}          // closed when this one does
	crowded   func() map[string]string // which others have no room for copies, and why
	known     atomic.Pointer[[]string]
	machines  atomic.Pointer[[]string]
	others    atomic.Pointer[[]controller.Other]
	log       *slog.Logger
}

// passing is how this controller passes requests to the one that leads.
func (h *heads) passing() *wire.Passing {
	host, _, _ := net.SplitHostPort(h.peer.Serves)
	return &wire.Passing{
		Calling: h.authority.Calling(h.peer.Name), IsController: func(c *x509.Certificate) bool { return h.authority.IsController(c, time.Now()) }, Serves: host,
		Known: h.addresses, Machines: func() []string { return loaded(&h.machines) },
		Leads: func(ctx context.Context) (string, bool) {
			if h.leading() {
				return "", true
			}
			all, err := h.store.Candidates(ctx, electionName)
			if err != nil || len(all) == 0 || all[0].Member == h.store.Self() { // or it begins to lead
				return "", false
			}
			return all[0].Serves, false
		},
	}
}

// leading reports whether this controller leads.
func (h *heads) leading() bool {
	select {
	case <-h.leads:
		return true
	default:
		return false
	}
}

// watch follows who the others are, until ctx ends.
func (h *heads) watch(ctx context.Context) {
	clients := map[string]*wire.Client{}
	for {
		if members, err := h.store.Members(ctx); err == nil {
			var known, machines []string
			others := []controller.Other{}
			for _, m := range members {
				if m.Machine != "" {
					machines = append(machines, m.Machine)
				}
				if m.Serves == "" {
					continue
				}
				known = append(known, m.Serves)
				if m.ID == h.store.Self() {
					continue
				}
				if clients[m.Serves] == nil {
					clients[m.Serves] = wire.CallController(m.Serves, h.authority.Calling(h.peer.Name))
				}
				others = append(others, controller.Other{Name: m.Name, Client: clients[m.Serves], Counts: !m.Learner})
			}
			slices.Sort(known)
			h.known.Store(&known)
			h.machines.Store(&machines)
			h.others.Store(&others)
		}
		if pause.For(ctx, knownEvery) != nil {
			return
		}
	}
}

// List gives all controllers.
func (h *heads) List(ctx context.Context) ([]wire.Head, error) {
	members, err := h.store.Members(ctx)
	if err != nil {
		return nil, err
	}
	candidates, err := h.store.Candidates(ctx, electionName)
	if err != nil {
		return nil, err
	}
	full := h.crowded()
	out := make([]wire.Head, 0, len(members))
	for _, m := range members {
		at := slices.IndexFunc(candidates, func(c etcd.Candidate) bool { return c.Member == m.ID })
		out = append(out, wire.Head{Name: m.Name, Address: m.Serves, Peer: m.Peer, Leads: at == 0, Up: at >= 0, Joining: m.Learner, Trouble: full[m.Name]})
	}
	return out, nil
}

// Admit lets one in.
func (h *heads) Admit(ctx context.Context, name, peer string) (string, error) {
	store, err := h.store.Admit(ctx, name, peer)
	if err != nil {
		return "", &wire.Error{Status: http.StatusUnprocessableEntity, Reason: err.Error()}
	}
	h.log.Info("a controller joins", "name", name, "peer", peer)
	return store, nil
}

// Remove removes one.
func (h *heads) Remove(ctx context.Context, name string) error {
	members, err := h.store.Members(ctx)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(members, func(m etcd.Member) bool { return m.Name == name || m.Name == "" && m.Peer == name })
	switch {
	case at < 0:
		return &wire.Error{Status: http.StatusUnprocessableEntity, Reason: fmt.Sprintf("there is no controller %s: `pagurus controller ls` lists them", name)}
	case members[at].ID == h.store.Self():
		return &wire.Error{Status: http.StatusUnprocessableEntity, Reason: fmt.Sprintf("controller %s leads: end it, and remove it when another leads", name)}
	}
	if err := h.store.Remove(ctx, members[at].ID); err != nil {
		return &wire.Error{Status: http.StatusUnprocessableEntity, Reason: err.Error()}
	}
	h.log.Info("removed a controller", "name", name)
	return nil
}

// list gives the other controllers.
func (h *heads) list() []controller.Other { return loaded(&h.others) }

// addresses are where all controllers are called.
func (h *heads) addresses() []string { return loaded(&h.known) }

// loaded is the list that is there; nil: none is yet.
func loaded[T any](list *atomic.Pointer[[]T]) []T {
	if all := list.Load(); all != nil {
		return *all
	}
	return nil
}
