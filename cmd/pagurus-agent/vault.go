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

	"pagurus/act/vault"
	"pagurus/cmd/roles"
	"pagurus/fleet"
	"pagurus/serve/agent"
	"pagurus/serve/wire"
)

// Folders in the agent's state folder.
const (
	vaultFolder   = "vault"
	stagingFolder = "staging"
	askedFile     = "vault-asked.json"
)

// vaults are the checkpoints of this host.
type vaults struct {
	flags    roles.Agent
	store    *vault.Store
	listener net.Listener
	served   bool   // by the agent: it has credentials to show
	trouble  string // why there is no store; empty: there is
}

// openVaults opens the host's vault. That it cannot be opened is not an error: the host keeps no checkpoints then.
func openVaults(f roles.Agent, log *slog.Logger) *vaults {
	v := &vaults{flags: f}
	if f.NoVault() {
		return v
	}
	var err error
	if v.store, err = vault.Open(vault.Config{Folder: cmp.Or(f.VaultDir, filepath.Join(f.StateDir, vaultFolder)), Bucket: f.Bucket(f.Name), Quota: f.VaultQuota}); err != nil {
		v.store, v.trouble = nil, fmt.Sprintf("no checkpoints here: %v", err)
		log.Warn("no checkpoints here", "cause", err)
		return v
	}
	if v.listener, err = net.Listen("tcp", ":"+strconv.Itoa(int(f.VaultPort))); err != nil {
		v.listener, v.trouble = nil, fmt.Sprintf("other hosts do not reach this host's vault: %v", err)
		log.Warn("other hosts do not reach the vault", "cause", err)
	}
	return v
}

// forAgent is what the agent gets of it.
func (v *vaults) forAgent(client *wire.Client, files agent.JobFiles) agent.Vaults {
	out := agent.Vaults{Files: files, Staging: filepath.Join(v.flags.StateDir, stagingFolder), Asked: filepath.Join(v.flags.StateDir, askedFile), Credentials: client.Credentials()}
	if v.store == nil && !v.flags.NoVault() {
		return out
	}
	out.Own = vaultOf{v.store}
	if v.listener != nil && out.Credentials != nil {
		out.Listener, v.served = v.listener, true
	}
	return out
}

// facts are what other hosts may put here; nil: nothing. sockets is where other hosts reach this one, own the host's
// own address.
func (v *vaults) facts(sockets, own netip.Addr) *fleet.VaultFacts {
	if v.store == nil {
		return nil
	}
	u, at := v.store.Usage(), sockets
	if !at.IsValid() {
		at = own
	}
	out := &fleet.VaultFacts{FreeBytes: u.Free, UsedBytes: u.Bytes}
	if v.served {
		out.Listen = netip.AddrPortFrom(at, uint16(v.listener.Addr().(*net.TCPAddr).Port)).String()
	}
	return out
}

// troubles are for people.
func (v *vaults) troubles() (all []string) {
	if v.trouble != "" {
		all = append(all, v.trouble)
	}
	if v.store != nil {
		if u := v.store.Usage(); u.Trouble != "" {
			all = append(all, u.Trouble)
		}
	}
	return all
}

// limit takes what a host without a vault cannot do from what its drivers can.
func (v *vaults) limit(able map[fleet.Kind]fleet.Abilities) {
	for kind, a := range able {
		if v.trouble != "" && v.store == nil && a.Checkpoint {
			a.Checkpoint, a.NoCheckpoint = false, v.trouble
			able[kind] = a
		}
	}
}

func (v *vaults) close() error {
	if v.listener != nil {
		_ = v.listener.Close() // nobody is to call any more
	}
	if v.store == nil {
		return nil
	}
	return v.store.Close()
}

// errVaultOff: guests of such a host are kept by others.
var errVaultOff = errors.New("this host keeps no checkpoints: its owner has chosen vault = \"off\"")

// vaultOf is a store as the agent knows it. Without one it saves to, and loads from, other hosts only.
type vaultOf struct{ store *vault.Store }

// Own satisfies agent.Vault.
func (v vaultOf) Own(most int64) agent.Chunks {
	if v.store == nil {
		return nil
	}
	return v.store.Bounded(most)
}

// Back satisfies agent.Vault.
func (v vaultOf) Back(manifest fleet.Digest, most int64) agent.Chunks {
	if v.store == nil {
		return nil
	}
	return v.store.Back(manifest, most)
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
	if v.store == nil {
		return nil
	}
	return v.store.Holds()
}

// Remove satisfies agent.Vault.
func (v vaultOf) Remove(c fleet.CheckpointID) error {
	if v.store == nil {
		return nil
	}
	return v.store.Remove(c)
}
