package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"pagurus/fleet"
	"pagurus/internal/pause"
	"pagurus/serve/identity"
)

// Chunks is where parts of checkpoints are put, and from where they come: this host's vault, or another's.
type Chunks interface {
	// Missing says which chunks have to be put for a part. The others stay until the part is finished.
	Missing(context.Context, fleet.PartName, []fleet.Digest) ([]fleet.Digest, error)
	// PutChunk puts a compressed chunk. It is tested before it is kept. After an error it is not there,
	// unless it was.
	PutChunk(context.Context, fleet.PartName, fleet.Digest, []byte) error
	// PutManifest finishes a part, whose chunks have been put. After an error it is as it was.
	PutManifest(context.Context, fleet.PartName, []byte) error
	// Manifest gives the manifest of a finished part.
	Manifest(context.Context, fleet.PartName) ([]byte, error)
	// Chunk gives a compressed chunk of a finished part.
	Chunk(context.Context, fleet.PartName, fleet.Digest) ([]byte, error)
}

// Vault keeps states of guests in a folder of this host, and knows how files become chunks.
type Vault interface {
	// Own are the chunks of this host. A part that is put may be most bytes long; 0 is no limit.
	Own(most int64) Chunks
	// Back is Own for a part that comes back under another checkpoint's name: its manifest has to be this one.
	Back(manifest fleet.Digest, most int64) Chunks
	// Save puts the files of a folder as a part. After an error the part may be there unfinished.
	Save(ctx context.Context, folder string, p fleet.PartName, to Chunks) (fleet.KeptState, error)
	// Load writes the files of a part into an empty folder, and tests everything. After an error the folder is
	// empty.
	Load(ctx context.Context, want fleet.KeptPart, from Chunks, folder string) error
	// Remove removes what this host has of a checkpoint, finished or not. An absent one is not an error. After an
	// error call again.
	Remove(fleet.CheckpointID) error
	// Holds are the checkpoints that have something here.
	Holds() []fleet.CheckpointID
}

// Vaults are the checkpoints of a host: its own vault, and how other hosts' are reached.
type Vaults struct {
	Staging     string                // folder for guests' states on their way, for root alone
	Asked       string                // file with what the controller said of the vault; empty: nobody asks
	Own         Vault                 // nil: no checkpoints here
	Listener    net.Listener          // for other hosts, plain TCP; nil: they do not reach it
	Credentials *identity.Credentials // nil: this host has not joined, so it reaches no other
	Toward      Toward                // nil: other hosts' addresses are good as they are
	Inside      func() netip.Addr     // where other hosts call this one; of a link, where the cluster encrypts: then nobody comes in elsewhere; nil: from everywhere
	Files       JobFiles              // for guests that mount them; nil: they are not as they were when a job goes on

	patience time.Duration // with what another host sends or reads, of tests; 0: vaultBody
}

// Toward is where another host listens, as this host calls it: what the other calls its link to WireGuard means nothing here.
type Toward func(netip.AddrPort) (netip.AddrPort, error)

// errNoVault: why a host without one refuses.
var errNoVault = errors.New("this agent keeps no checkpoints: its vault could not be opened")

// vaultTries are for a grant that comes a little later than the order, and for a network that breaks.
const (
	vaultTries = 6
	vaultPause = 500 * time.Millisecond // doubled after each try
)

// chunksOf reaches the vault of an order. close has to be called.
func (a *Agent) chunksOf(d *fleet.Deposit) (_ Chunks, close func(), err error) {
	switch {
	case a.Vaults.Own == nil:
		return nil, nil, errNoVault
	case d == nil || d.Vault == "":
		return nil, nil, errors.New("the order names no vault")
	case d.Vault == a.Host:
		return a.Vaults.Own.Own(0), func() {}, nil
	case a.Vaults.Credentials == nil:
		return nil, nil, fmt.Errorf("host %s has not joined with a token, so it cannot prove to %s who it is", a.Host, d.Vault)
	case d.Address == "":
		return nil, nil, fmt.Errorf("it is not known where the vault of %s is reached", d.Vault)
	}
	c := a.newVaultClient(d.Vault, d.Address)
	return c, c.close, nil
}

// deposit puts a guest's files into the vault of its order. What has arrived is not sent again by the next try.
func (a *Agent) deposit(ctx context.Context, w *taskRun, folder string) (kept fleet.KeptState, err error) {
	to, done, err := a.chunksOf(w.task.Deposit)
	if err != nil {
		return kept, err
	}
	defer done()
	fresh := int64(0)
	err = persist(ctx, func() error {
		kept, err = a.Vaults.Own.Save(ctx, folder, partOf(w.task), to)
		fresh += kept.NewBytes // of a failed try too
		return err
	})
	if kept.NewBytes = fresh; err == nil && w.task.Deposit.Vault == a.Host {
		a.noteKept(w.task.Order.Checkpoint)
	}
	if err != nil {
		return kept, fmt.Errorf("putting guest %s into the vault of %s: %w", w.slot.guest, w.task.Deposit.Vault, err)
	}
	return kept, nil
}

// withdraw gets a guest's files out of the vault of its order.
func (a *Agent) withdraw(ctx context.Context, w *taskRun, folder string) error {
	from, done, err := a.chunksOf(w.task.Deposit)
	if err != nil {
		return err
	}
	defer done()
	want := fleet.KeptPart{PartName: partOf(w.task), Manifest: w.task.Deposit.Manifest, MostBytes: fleet.MostKept(w.task.Job.Spec.Need)}
	err = persist(ctx, func() error { return a.Vaults.Own.Load(ctx, want, from, folder) })
	if err != nil {
		return fmt.Errorf("getting guest %s out of the vault of %s: %w", w.slot.guest, w.task.Deposit.Vault, err)
	}
	return nil
}

// persist tries again, unless that cannot help.
func persist(ctx context.Context, do func() error) (err error) {
	for try := range vaultTries {
		if err = do(); err == nil || ctx.Err() != nil || errors.Is(err, fleet.ErrNoRoom) || errors.Is(err, fleet.ErrDamaged) || errors.Is(err, fleet.ErrNotKept) {
			return err
		}
		_ = pause.For(ctx, vaultPause<<try)
	}
	return err
}

func partOf(t fleet.Task) fleet.PartName {
	return fleet.PartName{Checkpoint: t.Order.Checkpoint, Guest: t.Guest.ID}
}

// dropKept removes what this host's vault has of a checkpoint. It has no guest here, so it needs none of what other
// orders do.
func (a *Agent) dropKept(o fleet.Order) {
	a.runs.Go(func() {
		r := fleet.Report{Order: o, Outcome: fleet.Done}
		if a.Vaults.Own != nil {
			if err := a.Vaults.Own.Remove(o.Checkpoint); err != nil {
				a.Log.Warn("a checkpoint stays in the vault", "checkpoint", o.Checkpoint, "cause", err)
				r.Outcome, r.Cause = fleet.Unknown, plain(err.Error())
			}
		}
		a.Log.Info("checkpoint dropped from the vault", "checkpoint", o.Checkpoint, "cause", r.Cause)
		a.post(r)
	})
}

// granted is what a host may do with a part in this host's vault now.
func (a *Agent) granted(host fleet.HostID, p fleet.PartName, write bool) (fleet.VaultGrant, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.wanted == nil {
		return fleet.VaultGrant{}, false
	}
	for _, g := range a.wanted.VaultGrants {
		if g.Host == host && g.Checkpoint == p.Checkpoint && g.Guest == p.Guest && g.Write == write {
			return g, true
		}
	}
	return fleet.VaultGrant{}, false
}
