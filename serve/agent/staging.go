// This file keeps what the agent knows of a guest's checkpoint under way: in memory, and in the guest's staging folder
// for the host's next agent. It must not know how a driver writes a guest.
//
//	STAGING/GUEST/checkpoint.json
//	STAGING/GUEST/files/           of Arm until Save
//	STAGING/GUEST/restored/        of Restore

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/internal/note"
	"pagurus/internal/pause"
)

// stage is how far a guest's checkpoint is on its host.
type stage string

const (
	armed     stage = "armed"
	isCut     stage = "cut" // or about to be
	continued stage = "continued"
	voided    stage = "void"     // its time was over before all were cut; the guest is to run
	released  stage = "released" // void, and the guest runs
)

// staged is a guest's checkpoint under way.
type staged struct {
	Checkpoint fleet.CheckpointID `json:"checkpoint"`
	Kind       fleet.Kind         `json:"kind"`
	Stage      stage              `json:"stage"`
	CutAt      time.Time          `json:"cut_at,omitzero"`
	Saved      *fleet.Saved       `json:"saved,omitempty"` // nil: the driver has not said yet that all is written
	Files      *CutFiles          `json:"files,omitempty"` // nil: none are noted here

	opened OpenedFiles      // from Arm until Continue
	open   *fleet.OpenFiles // what the guest told before its cut
	told   time.Time        // when it did
}

const (
	stagedFile     = "checkpoint.json"
	stagedFiles    = "files"
	restoredFolder = "restored"
)

func (a *Agent) stagingOf(g fleet.GuestID) string { return filepath.Join(a.Vaults.Staging, string(g)) }

func (a *Agent) filesOf(g fleet.GuestID) string { return filepath.Join(a.stagingOf(g), stagedFiles) }

// findStaged takes over what an earlier agent had under way. A guest that is cut runs on when its time is over.
func (a *Agent) findStaged() {
	if a.Vaults.Staging == "" {
		return
	}
	entries, err := os.ReadDir(a.Vaults.Staging)
	if err != nil {
		return // nothing was ever staged
	}
	for _, e := range entries {
		g := fleet.GuestID(e.Name())
		var s staged
		if !guestName.MatchString(string(g)) || note.Load(filepath.Join(a.stagingOf(g), stagedFile), &s) != nil {
			_ = os.RemoveAll(filepath.Join(a.Vaults.Staging, e.Name())) // a later order makes it again
			continue
		}
		slot, err := a.slotOf(g)
		if err != nil {
			a.trouble("the checkpoint of guest "+string(g), err)
			continue
		}
		a.mu.Lock()
		slot.staged = &s
		a.mu.Unlock()
		if s.Stage == isCut || s.Stage == voided {
			a.guardCut(slot, &s)
		}
	}
}

// noteStage records how far a checkpoint is, if it is still the slot's and at from. It reports whether it was.
func (a *Agent) noteStage(slot *guestSlot, s *staged, from, to stage) (was bool, err error) {
	a.mu.Lock()
	if was = slot.staged == s && s.Stage == from; was {
		s.Stage = to
	}
	now := *s
	a.mu.Unlock()
	if !was {
		return false, nil
	}
	return true, a.writeStaged(slot.guest, now)
}

func (a *Agent) writeStaged(g fleet.GuestID, s staged) error {
	if err := note.Replace(filepath.Join(a.stagingOf(g), stagedFile), s); err != nil {
		return fmt.Errorf("noting the checkpoint of guest %s: %w", g, err)
	}
	return nil
}

// stagedOf is the checkpoint of an order, if it is under way here.
func (a *Agent) stagedOf(w *taskRun) (*staged, stage, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := w.slot.staged
	if s == nil || s.Checkpoint != w.task.Order.Checkpoint {
		return nil, "", fmt.Errorf("host %s has nothing of checkpoint %s of guest %s", a.Host, w.task.Order.Checkpoint, w.slot.guest)
	}
	return s, s.Stage, nil
}

// cutGuard is how often it is looked after whether a cut guest has to run on.
const cutGuard = 200 * time.Millisecond

// guardCut has a guest run on whose Continue does not come: the controller may be away, and the others of the job may
// never be cut. The cut is void then.
func (a *Agent) guardCut(slot *guestSlot, s *staged) {
	t := fleet.Task{Order: fleet.Order{Verb: letRunVerb, Host: a.Host, Guest: slot.guest, Checkpoint: s.Checkpoint}, Guest: fleet.Guest{ID: slot.guest, Kind: s.Kind}}
	a.runs.Go(func() {
		for a.ctx.Err() == nil && a.guarded(slot, s, t) {
			_ = pause.For(a.ctx, cutGuard)
		}
	})
}

// guarded begins what lets a cut guest run, when it is time. false: nothing more has to be done.
func (a *Agent) guarded(slot *guestSlot, s *staged, t fleet.Task) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if slot.staged != s || s.Stage != isCut && s.Stage != voided {
		return false
	}
	held := time.Since(s.CutAt) // negative: an earlier agent cut it, and the clock was set back since
	if s.Stage == isCut && (held < 0 || held >= fleet.CutHold) {
		s.Stage = voided // from here on Continue fails
		a.Log.Warn("no order came after the cut; the guest runs on, and its checkpoint is void", "guest", slot.guest, "checkpoint", s.Checkpoint)
		a.beginLocked(slot, &taskRun{task: t, silent: true}) // also in the place of a Cut that hangs
	} else if s.Stage == voided && (slot.last == nil || slot.last.over()) {
		a.beginLocked(slot, &taskRun{task: t, silent: true})
	}
	return true
}

// letRun lets a guest run whose cut is void.
func (a *Agent) letRun(ctx context.Context, w *taskRun) (fleet.Report, error) {
	a.mu.Lock()
	s := w.slot.staged
	a.mu.Unlock()
	d, can := w.driver.(Checkpointer)
	if s == nil || !can {
		return fleet.Report{}, nil
	}
	err := d.Disarm(ctx, w.slot.guest)
	if a.trouble("letting guest "+string(w.slot.guest)+" run on after its cut", err); err != nil {
		return fleet.Report{}, err
	}
	_, err = a.noteStage(w.slot, s, voided, released)
	return fleet.Report{}, err
}

// cutNow reports whether a guest is suspended for a checkpoint, so that nothing else lets it run.
func (s *guestSlot) cutNow() bool {
	return s.staged != nil && (s.staged.Stage == isCut || s.staged.Stage == voided)
}

// unstage ends what is under way of a guest's checkpoint: it runs, and its staging folder is gone. After an error call
// again.
func (a *Agent) unstage(ctx context.Context, w *taskRun) error {
	d, can := w.driver.(Checkpointer)
	if !can || a.Vaults.Staging == "" {
		return nil
	}
	if err := d.Disarm(ctx, w.slot.guest); err != nil {
		return fmt.Errorf("letting guest %s run on without its checkpoint: %w", w.slot.guest, err)
	}
	a.mu.Lock()
	w.slot.staged.closeFiles()
	w.slot.staged = nil
	a.mu.Unlock()
	if err := os.RemoveAll(a.stagingOf(w.slot.guest)); err != nil {
		return fmt.Errorf("emptying the staging folder of guest %s: %w", w.slot.guest, err)
	}
	return nil
}

// abandonStaged is unstage for a guest that ends, if a checkpoint is under way.
func (a *Agent) abandonStaged(ctx context.Context, w *taskRun) error {
	a.mu.Lock()
	under := w.slot.staged != nil
	a.mu.Unlock()
	if !under {
		return nil
	}
	return a.unstage(ctx, w)
}

// clearStagingLocked removes the staging folder of a guest that is gone. The folder loses its name at once: the guest may come back
// while it is emptied, and then has one of its own. What stays is removed when the next agent begins.
func (a *Agent) clearStagingLocked(g fleet.GuestID) {
	if a.Vaults.Staging == "" {
		return
	}
	a.cleared++
	gone := filepath.Join(a.Vaults.Staging, fmt.Sprintf(".gone-%d-%s", a.cleared, g))
	if os.Rename(a.stagingOf(g), gone) == nil { // else it has none
		a.runs.Go(func() { _ = os.RemoveAll(gone) })
	}
}

// stagingReserve is what writing guests' states leaves free on the disk of the agent's state: its own notes are there.
const stagingReserve = 64 << 20

// roomToStage says why the disk has no room to write a guest's state; nil: it has. Nothing else may have to wait for a checkpoint.
func (a *Agent) roomToStage(g fleet.GuestID) error {
	a.mu.Lock()
	needs := a.present[g].facts.ResidentBytes
	a.mu.Unlock()
	var disk unix.Statfs_t
	if unix.Statfs(a.Vaults.Staging, &disk) != nil && unix.Statfs(filepath.Dir(a.Vaults.Staging), &disk) != nil { // nothing was ever staged
		return nil // writing says what is wrong
	}
	free := int64(disk.Bavail) * disk.Bsize
	if lacks := needs + stagingReserve - free; lacks > 0 {
		return fmt.Errorf("the disk of %s on %s is full, but for %d MiB that are kept free for others, and the state of guest %s may need %d MiB: make room for %d MiB there", a.Vaults.Staging, a.Host, int64(stagingReserve)>>20, g, needs>>20, lacks>>20+1)
	}
	return nil
}

// makeFolder makes an empty folder for root alone.
func makeFolder(path string) error {
	return errors.Join(os.RemoveAll(path), os.MkdirAll(path, 0o700))
}
