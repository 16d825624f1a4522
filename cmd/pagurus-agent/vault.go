package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	acthost "pagurus/act/host"
	"pagurus/act/vault"
	"pagurus/cmd/roles"
	"pagurus/fleet"
	"pagurus/internal/pause"
	"pagurus/serve/agent"
	"pagurus/serve/wire"
)

// Folders in the agent's state folder.
const (
	vaultFolder   = "vault"
	stagingFolder = "staging"
	askedFile     = "vault-asked.json"
)

const (
	// vaultPatience is how long the agent's start waits for a bucket: one that answers is open by then, and guests wait for the agent.
	vaultPatience = 5 * time.Second
	// vaultAgain is how often a vault is tried that could not be opened: a server comes back, a disk is mounted.
	vaultAgain = 20 * time.Second
)

// vaults are the checkpoints of this host.
type vaults struct {
	flags    roles.Agent
	log      *slog.Logger
	listener net.Listener
	served   bool   // by the agent: it has credentials to show
	deaf     string // why other hosts do not reach it; empty: they do
	end      context.CancelFunc

	mu      sync.Mutex // guards what follows
	own     *vault.Store
	trouble string // why there is none; empty: there is, or its owner wants none
	closed  bool
}

// openVaults opens the host's vault. That it cannot be opened is not an error: the host keeps no checkpoints until it can, and it
// is tried again. A bucket is not waited for.
func openVaults(f roles.Agent, log *slog.Logger) *vaults {
	ctx, end := context.WithCancel(context.Background())
	v := &vaults{flags: f, log: log, end: end}
	if f.NoVault() {
		return v
	}
	var err error
	if v.listener, err = net.Listen("tcp", ":"+strconv.Itoa(int(f.VaultPort))); err != nil {
		v.listener, v.deaf = nil, fmt.Sprintf("other hosts do not reach this host's vault: %v", err)
		log.Warn("other hosts do not reach the vault", "cause", err)
	}
	tried := make(chan struct{})
	go v.open(ctx, sync.OnceFunc(func() { close(tried) }), vaultAgain)
	if f.Bucket(f.Name) == nil {
		<-tried
		return v
	}
	select {
	case <-tried:
	case <-time.After(vaultPatience):
		v.opened(nil, fmt.Errorf("%s has not answered for %s, and is still asked", f.VaultDir, vaultPatience))
	}
	return v
}

// open opens the vault, and tries again as long as it cannot.
func (v *vaults) open(ctx context.Context, tried func(), again time.Duration) {
	f := v.flags
	at := vault.Config{Folder: cmp.Or(f.VaultDir, filepath.Join(f.StateDir, vaultFolder)), Bucket: f.Bucket(f.Name), Quota: f.VaultQuota}
	for {
		over := v.opened(vault.Open(at))
		tried()
		if over || pause.For(ctx, again) != nil {
			return
		}
	}
}

// opened takes the result of a try, and reports whether it was the last.
func (v *vaults) opened(s *vault.Store, err error) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.closed && err == nil:
		_ = s.Close() // nothing was put there
	case err == nil:
		if v.trouble != "" {
			v.log.Info("the vault is open")
		}
		v.own, v.trouble = s, ""
	case v.own == nil:
		why := fmt.Sprintf("this host keeps no checkpoints now: %v", err)
		if why != v.trouble {
			v.log.Warn("no vault here; it is tried again", "cause", err, "every", vaultAgain)
		}
		v.trouble = why
	}
	return v.closed || v.own != nil
}

// store is the vault, or why there is none now; neither: its owner wants none.
func (v *vaults) store() (*vault.Store, string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.own, v.trouble
}

// forAgent is what the agent gets of it.
func (v *vaults) forAgent(client *wire.Client, files agent.JobFiles, in *acthost.Address) agent.Vaults {
	out := agent.Vaults{Files: files, Toward: in.Toward, Inside: in.Here, Staging: filepath.Join(v.flags.StateDir, stagingFolder), Asked: filepath.Join(v.flags.StateDir, askedFile), Credentials: client.Credentials()}
	out.Own = vaultOf{v}
	if v.listener != nil && out.Credentials != nil {
		out.Listener, v.served = v.listener, true
	}
	return out
}

// facts are what other hosts may put here; nil: nothing. sockets is where other hosts reach this one, own the host's
// own address.
func (v *vaults) facts(sockets, own netip.Addr) *fleet.VaultFacts {
	s, _ := v.store()
	if s == nil {
		return nil
	}
	u, at := s.Usage(), sockets
	if !at.IsValid() {
		at = own
	}
	out := &fleet.VaultFacts{FreeBytes: u.Free, UsedBytes: u.Bytes, EachBytes: v.flags.VaultEach}
	if v.served {
		out.Listen = netip.AddrPortFrom(at, uint16(v.listener.Addr().(*net.TCPAddr).Port)).String()
	}
	return out
}

// troubles are for people.
func (v *vaults) troubles() (all []string) {
	s, why := v.store()
	if s != nil {
		why = s.Usage().Trouble
	}
	for _, trouble := range []string{why, v.deaf} {
		if trouble != "" {
			all = append(all, trouble)
		}
	}
	return all
}

func (v *vaults) close() error {
	v.end()
	if v.listener != nil {
		_ = v.listener.Close() // nobody is to call any more
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	s := v.own
	v.own, v.closed = nil, true
	if s == nil {
		return nil
	}
	return s.Close()
}

// errVaultOff: guests of such a host are kept by others.
var errVaultOff = errors.New("this host keeps no checkpoints: its owner has chosen vault = \"off\"")

// vaultOf is a host's vault as the agent knows it. While there is none it saves to, and loads from, other hosts only.
type vaultOf struct{ of *vaults }

// Own satisfies agent.Vault.
func (v vaultOf) Own(most int64) agent.Chunks {
	switch s, why := v.of.store(); {
	case s != nil:
		return s.Bounded(most)
	case why != "":
		return noChunks{errors.New(why)}
	}
	return nil
}

// Back satisfies agent.Vault.
func (v vaultOf) Back(manifest fleet.Digest, most int64) agent.Chunks {
	if s, _ := v.of.store(); s != nil {
		return s.Back(manifest, most)
	}
	return v.Own(most)
}

// Save satisfies agent.Vault.
func (v vaultOf) Save(ctx context.Context, folder string, p fleet.PartName, to agent.Chunks) (fleet.KeptState, error) {
	if to == nil {
		return fleet.KeptState{}, errVaultOff
	}
	put, err := vault.Save(ctx, folder, p, to)
	return fleet.KeptState{Manifest: put.Manifest, Bytes: put.Bytes, NewBytes: put.NewBytes}, err
}

// Load satisfies agent.Vault.
func (v vaultOf) Load(ctx context.Context, want fleet.KeptPart, from agent.Chunks, folder string) error {
	if from == nil {
		return errVaultOff
	}
	return vault.Load(ctx, want, from, folder)
}

// Holds satisfies agent.Vault.
func (v vaultOf) Holds() []fleet.CheckpointID {
	if s, _ := v.of.store(); s != nil {
		return s.Holds()
	}
	return nil
}

// Remove satisfies agent.Vault. A vault that cannot be opened may have the checkpoint.
func (v vaultOf) Remove(c fleet.CheckpointID) error {
	s, why := v.of.store()
	if s != nil {
		return s.Remove(c)
	}
	if why != "" {
		return errors.New(why)
	}
	return nil
}

// noChunks are those of a vault that cannot be opened.
type noChunks struct{ why error }

// Missing satisfies agent.Chunks.
func (n noChunks) Missing(context.Context, fleet.PartName, []fleet.Digest) ([]fleet.Digest, error) {
	return nil, n.why
}

// PutChunk satisfies agent.Chunks.
func (n noChunks) PutChunk(context.Context, fleet.PartName, fleet.Digest, []byte) error { return n.why }

// PutManifest satisfies agent.Chunks.
func (n noChunks) PutManifest(context.Context, fleet.PartName, []byte) error { return n.why }

// Manifest satisfies agent.Chunks.
func (n noChunks) Manifest(context.Context, fleet.PartName) ([]byte, error) { return nil, n.why }

// Chunk satisfies agent.Chunks.
func (n noChunks) Chunk(context.Context, fleet.PartName, fleet.Digest) ([]byte, error) {
	return nil, n.why
}
