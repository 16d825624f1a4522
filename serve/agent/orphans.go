package agent

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"pagurus/fleet"
	"pagurus/internal/note"
	"pagurus/internal/pause"
)

// This file removes from this host's vault what the cluster has forgotten: a host that was forgotten and came back, or was
// away when a checkpoint was removed, would have it for ever. The agent asks about all that is there. It drops only what the
// same incarnation of the store has known before, and has then not known for a day: a store that is empty, or was put back from a
// backup, may not know what it should.

const (
	firstAsk    = 5 * time.Minute // after the start, when the controller has settled
	askEvery    = time.Hour
	orphanAge   = 24 * time.Hour
	orphanTimes = 12 // in a row: a clock may be set
	askedMost   = 20_000
)

// vaultNotes are what the controller has said of the vault, in a file of the agent's.
type vaultNotes struct {
	mu sync.Mutex

	Incarnation string                              `json:"incarnation"`
	Known       map[fleet.CheckpointID]bool         `json:"known"`   // to this incarnation, at some time
	Missing     map[fleet.CheckpointID]missingSince `json:"missing"` // of Known: it does not know them any more
}

// missingSince is since when, and how often, a checkpoint was not known.
type missingSince struct {
	Since time.Time `json:"since"`
	Times int       `json:"times"`
}

// heard applies an answer about what the vault has, and returns what is to be dropped.
func (k *vaultNotes) heard(held []fleet.CheckpointID, of fleet.VaultAnswer, now time.Time) (drop []fleet.CheckpointID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if of.Incarnation == "" {
		return nil
	}
	if k.Incarnation != of.Incarnation {
		k.Incarnation, k.Known, k.Missing = of.Incarnation, nil, nil
	}
	unknown := map[fleet.CheckpointID]bool{}
	for _, id := range of.Unknown {
		unknown[id] = true
	}
	known, missing := map[fleet.CheckpointID]bool{}, map[fleet.CheckpointID]missingSince{}
	for _, id := range held {
		if !unknown[id] {
			known[id] = true
			continue
		}
		if !k.Known[id] { // of another incarnation, perhaps: not this one's to drop
			continue
		}
		m := k.Missing[id]
		if m.Times == 0 || now.Before(m.Since) {
			m = missingSince{Since: now}
		}
		m.Times++
		known[id], missing[id] = true, m
		if m.Times >= orphanTimes && now.Sub(m.Since) >= orphanAge {
			drop = append(drop, id)
		}
	}
	k.Known, k.Missing = known, missing
	slices.Sort(drop)
	return drop
}

// keeps notes that the vault has got something of a checkpoint, by an order of the controller.
func (k *vaultNotes) keeps(id fleet.CheckpointID) (fresh bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.Incarnation == "" || k.Known[id] {
		return false
	}
	if k.Known == nil {
		k.Known = map[fleet.CheckpointID]bool{}
	}
	k.Known[id] = true
	return true
}

func (k *vaultNotes) save(path string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := note.Replace(path, k); err != nil {
		return fmt.Errorf("noting what the controller says of the vault: %w", err)
	}
	return nil
}

// noteKept has the vault drop a checkpoint once the cluster has forgotten it.
func (a *Agent) noteKept(id fleet.CheckpointID) {
	if a.Vaults.Asked != "" && a.vaultNotes.keeps(id) {
		a.trouble("the vault's notes", a.vaultNotes.save(a.Vaults.Asked))
	}
}

// askAboutVault asks now and then, until ctx ends.
func (a *Agent) askAboutVault(ctx context.Context) {
	if a.Vaults.Own == nil || a.Vaults.Asked == "" {
		return
	}
	_ = note.Load(a.Vaults.Asked, &a.vaultNotes) // none, or a broken one: time counts from now on
	for wait := firstAsk; pause.For(ctx, wait) == nil; wait = askEvery {
		a.trouble("what the vault has that nobody knows", a.dropOrphans(ctx, time.Now()))
	}
}

// dropOrphans asks once, and removes what may go.
func (a *Agent) dropOrphans(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, partLimit)
	defer cancel()
	held := a.Vaults.Own.Holds()
	held = held[:min(len(held), askedMost)]
	if len(held) == 0 {
		return nil
	}
	answer, err := a.Controller.Unknown(ctx, held)
	if err != nil {
		return nil // it is away, or older: it is asked again
	}
	cluster, err := a.cluster()
	if err != nil || cluster == "" || answer.Cluster != cluster {
		return err
	}
	drop := a.vaultNotes.heard(held, answer, now)
	if err := a.vaultNotes.save(a.Vaults.Asked); err != nil {
		return err
	}
	for _, id := range drop {
		a.Log.Warn("the cluster has not known a checkpoint in this vault for a day; it is removed", "checkpoint", id)
		if err := a.Vaults.Own.Remove(id); err != nil {
			return err
		}
	}
	return nil
}
