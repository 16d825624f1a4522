package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/internal/note"
	"pagurus/internal/pause"
)

// A guest in memory is one word in a file. Calls of the driver are noted as of other verbs.

func (d *memoryDriver) Arm(ctx context.Context, g fleet.GuestID, folder string) error {
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		return fmt.Errorf("the folder has %d files: %v", len(left), err)
	}
	d.mu.Lock()
	d.folder = folder
	d.mu.Unlock()
	return d.call(ctx, "arm", g)
}

func (d *memoryDriver) Cut(ctx context.Context, g fleet.GuestID) error {
	if err := d.call(ctx, "cut", g); err != nil {
		return err
	}
	d.put(g, fleet.Suspended)
	return nil
}

func (d *memoryDriver) Continue(ctx context.Context, g fleet.GuestID) error {
	if err := d.call(ctx, "continue", g); err != nil {
		return err
	}
	d.put(g, fleet.Running)
	return nil
}

func (d *memoryDriver) Saved(ctx context.Context, g fleet.GuestID) (fleet.Saved, error) {
	if err := d.call(ctx, "saved", g); err != nil {
		return fleet.Saved{}, err
	}
	d.mu.Lock()
	folder := d.folder
	d.mu.Unlock()
	return fleet.Saved{Bytes: 6, Stop: 12 * time.Millisecond}, os.WriteFile(filepath.Join(folder, "memory"), []byte("memory"), 0o600)
}

func (d *memoryDriver) Disarm(ctx context.Context, g fleet.GuestID) error {
	if err := d.call(ctx, "disarm", g); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if is := d.guests[g]; is != nil && is.run == fleet.Suspended {
		is.run = fleet.Running
	}
	return nil
}

func (d *memoryDriver) Restore(ctx context.Context, t fleet.Task, folder string) error {
	if err := d.call(ctx, "restore", t.Guest.ID); err != nil {
		return err
	}
	if text, err := os.ReadFile(filepath.Join(folder, "memory")); err != nil || string(text) != "memory" {
		return fmt.Errorf("it is %q: %v", text, err)
	}
	d.put(t.Guest.ID, fleet.Suspended)
	return nil
}

// memoryVault keeps parts of one file each. Chunks have a test of their own, with the real ones.
type memoryVault struct {
	mu    sync.Mutex
	parts map[fleet.PartName]string
	files map[fleet.PartName]string // what the agent noted of the job's files
	errs  []error                   // of the next calls
	slow  time.Duration             // of each Save and Load
}

func newMemoryVault() *memoryVault {
	return &memoryVault{parts: map[fleet.PartName]string{}, files: map[fleet.PartName]string{}}
}

func (v *memoryVault) fail(errs ...error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.errs = errs
}

func (v *memoryVault) nextError() (err error) {
	if len(v.errs) > 0 {
		err, v.errs = v.errs[0], v.errs[1:]
	}
	return err
}

func (v *memoryVault) Own(int64) Chunks { return nil }

func (v *memoryVault) Save(ctx context.Context, folder string, p fleet.PartName, _ Chunks) (fleet.KeptState, error) {
	if err := v.wait(ctx); err != nil {
		return fleet.KeptState{}, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.nextError(); err != nil {
		return fleet.KeptState{NewBytes: 1}, err
	}
	text, err := os.ReadFile(filepath.Join(folder, "memory"))
	v.parts[p] = string(text)
	if noted, err := os.ReadFile(filepath.Join(folder, cutFilesName)); err == nil {
		v.files[p] = string(noted)
	}
	return fleet.KeptState{Manifest: "m1", Bytes: int64(len(text)), NewBytes: 2}, err
}

// wait takes as long as a slow disk, or a slow server.
func (v *memoryVault) wait(ctx context.Context) error {
	v.mu.Lock()
	slow := v.slow
	v.mu.Unlock()
	return pause.For(ctx, slow)
}

func (v *memoryVault) slowed(by time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.slow = by
}

func (v *memoryVault) Load(ctx context.Context, want fleet.KeptPart, _ Chunks, folder string) error {
	if err := v.wait(ctx); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.nextError(); err != nil {
		return err
	}
	text, is := v.parts[want.PartName]
	if !is || want.Manifest != "m1" {
		return fleet.ErrNotKept
	}
	if noted := v.files[want.PartName]; noted != "" {
		if err := os.WriteFile(filepath.Join(folder, cutFilesName), []byte(noted), 0o600); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(folder, "memory"), []byte(text), 0o600)
}

func (v *memoryVault) Remove(c fleet.CheckpointID) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	for p := range v.parts {
		if p.Checkpoint == c {
			delete(v.parts, p)
		}
	}
	return v.nextError()
}

// clean: nothing is staged.
func (r *rig) clean() {
	r.t.Helper()
	if left, err := os.ReadDir(filepath.Join(r.dir, "staging")); err == nil && len(left) > 0 {
		r.t.Errorf("staged is still %v", left)
	}
}

func (r *rig) runs(want fleet.RunState) {
	r.t.Helper()
	if g := r.d.guest("j1g0"); g == nil || g.run != want {
		r.t.Errorf("the guest is %+v, not %s", g, want)
	}
}

func TestACheckpointFromArmToRestore(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 1))
		r.send(task(fleet.Watch, 1))
		r.do(task(fleet.Arm, 1))
		r.do(task(fleet.Cut, 1))
		time.Sleep(time.Second)
		r.send(task(fleet.Watch, 1)) // a new controller asks again, and the guest must stay as it is
		time.Sleep(2 * time.Second)
		r.runs(fleet.Suspended)
		r.do(task(fleet.Continue, 1))
		r.runs(fleet.Running)
		save := task(fleet.Save, 1)
		rep := r.do(save)
		if want := (fleet.KeptState{Manifest: "m1", Bytes: 6, NewBytes: 2, Stop: 12 * time.Millisecond}); rep.Kept == nil || *rep.Kept != want {
			t.Errorf("kept %+v", rep.Kept)
		}
		r.clean()
		if again := r.do(save); again.Kept == nil || *again.Kept != *rep.Kept {
			t.Errorf("again: %+v", again)
		}
		r.do(task(fleet.Stop, 1))
		r.do(task(fleet.Restore, 2))
		r.runs(fleet.Suspended)
		r.clean()
		activate := task(fleet.Activate, 2)
		activate.Order.Migration = ""
		r.do(activate)
		r.runs(fleet.Running)
		at := task(fleet.Drop, 0)
		at.Order.Peer, at.Order.Gen, at.Guest = "", 0, fleet.Guest{} // the vault knows no guest
		for range 2 {
			r.do(at)
		}
		if len(r.vault.parts) > 0 {
			t.Errorf("the vault has %v", r.vault.parts)
		}
		r.runs(fleet.Running)
	})
}

// Without Continue the guest runs on, and nothing of the cut counts.
func TestACutIsVoidAfterAWhile(t *testing.T) {
	for _, how := range []string{"away", "restarted", "set back", "stuck"} {
		t.Run(how, func(t *testing.T) {
			in(t, func(t *testing.T, r *rig) {
				r.do(task(fleet.Start, 1))
				r.do(task(fleet.Arm, 1))
				r.do(task(fleet.Cut, 1))
				fails := 0
				switch how {
				case "restarted":
					time.Sleep(fleet.CutHold / 2)
					r.stop()
					r.start()
					r.runs(fleet.Suspended)
				case "set back": // the clock, while no agent runs
					r.stop()
					path := filepath.Join(r.a.stagingOf("j1g0"), stagedFile)
					var s staged
					if err := note.Load(path, &s); err != nil {
						t.Fatal(err)
					}
					s.CutAt = s.CutAt.Add(10 * time.Hour)
					if err := note.Replace(path, s); err != nil {
						t.Fatal(err)
					}
					r.start()
				case "stuck":
					r.hook(func(c string) error {
						if fails++; c == "disarm j1g0" && fails < 4 {
							return errors.New("QEMU does not answer")
						}
						return nil
					})
				}
				time.Sleep(fleet.CutHold + 2*time.Second)
				r.runs(fleet.Running)
				resume := task(fleet.Continue, 1)
				r.send(resume)
				if rep := r.expect(resume.Order, fleet.Failed); !strings.Contains(rep.Cause, "void") {
					t.Errorf("cause %q", rep.Cause)
				}
				save := task(fleet.Save, 1)
				r.send(save)
				r.expect(save.Order, fleet.Failed)
				r.do(task(fleet.Drop, 1))
				r.clean()
				r.runs(fleet.Running)
				if r.d.count("continue j1g0") != 0 || len(r.vault.parts) != 0 {
					t.Errorf("calls %q", r.d.calls)
				}
			})
		})
	}
}

// Whatever fails, the guest runs and nothing is staged.
func TestAFailedCheckpoint(t *testing.T) {
	for _, at := range []fleet.Verb{fleet.Arm, fleet.Cut, fleet.Continue, fleet.Save} {
		t.Run(string(at), func(t *testing.T) {
			in(t, func(t *testing.T, r *rig) {
				r.do(task(fleet.Start, 1))
				fails := string(at) + " j1g0"
				if at == fleet.Save {
					fails = "saved j1g0"
				}
				r.hook(func(c string) error {
					if c == fails {
						return errors.New("it is too late")
					}
					return nil
				})
				for _, v := range []fleet.Verb{fleet.Arm, fleet.Cut, fleet.Continue, fleet.Save} {
					o := task(v, 1)
					r.send(o)
					if v == at {
						if rep := r.expect(o.Order, fleet.Failed); !strings.Contains(rep.Cause, "too late") {
							t.Errorf("cause %q", rep.Cause)
						}
						break
					}
					r.expect(o.Order, fleet.Done)
				}
				r.clean()
				r.runs(fleet.Running)
				r.do(task(fleet.Drop, 1))
				next := task(fleet.Arm, 1)
				next.Order.Checkpoint = "j1c2"
				if at != fleet.Arm {
					r.do(next)
				}
			})
		})
	}
}

// A network that breaks is tried again; a full vault is not. What an earlier agent has begun to save the next one saves.
func TestSavingInTrouble(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 1))
		for _, v := range []fleet.Verb{fleet.Arm, fleet.Cut, fleet.Continue} {
			r.do(task(v, 1))
		}
		broken := errors.New("connection reset")
		r.vault.fail(broken, broken, broken, broken, broken, broken)
		save := task(fleet.Save, 1)
		r.send(save)
		r.expect(save.Order, fleet.Unknown)
		r.stop()
		r.start()
		r.vault.fail(broken, broken)
		save.Order.Attempt = 1
		if rep := r.do(save); rep.Kept.NewBytes != 4 || rep.Kept.Stop != 12*time.Millisecond {
			t.Errorf("kept %+v", rep.Kept)
		}
		if n := r.d.count("saved j1g0"); n != 1 {
			t.Errorf("the driver was asked %d times", n)
		}
		r.clean()
		for _, v := range []fleet.Verb{fleet.Arm, fleet.Cut, fleet.Continue, fleet.Save} {
			o := task(v, 1)
			if o.Order.Checkpoint = "j1c2"; v == fleet.Save {
				r.vault.fail(fmt.Errorf("%w: the disk is full", fleet.ErrNoRoom))
				r.send(o)
				r.expect(o.Order, fleet.Failed)
				continue
			}
			r.do(o)
		}
		r.clean()
		r.runs(fleet.Running)
	})
}

// A vault that is too slow makes no order stand for ever, suspends no guest, and loses nothing: the next try goes on.
func TestSlowVault(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 1))
		for _, v := range []fleet.Verb{fleet.Arm, fleet.Cut, fleet.Continue} {
			r.do(task(v, 1))
		}
		r.vault.slowed(100 * time.Hour)
		save := task(fleet.Save, 1)
		r.send(save)
		time.Sleep(fleet.Save.Limit("", 0))
		r.runs(fleet.Running)
		r.expect(save.Order, fleet.Unknown)
		r.vault.slowed(time.Minute)
		save.Order.Attempt = 1
		r.do(save)
		if n := r.d.count("saved j1g0"); n != 1 {
			t.Errorf("the driver was asked %d times", n)
		}
		r.clean()
		r.do(task(fleet.Stop, 1))
		r.vault.slowed(100 * time.Hour)
		restore := task(fleet.Restore, 2)
		r.send(restore)
		time.Sleep(fleet.Restore.Limit("", 0))
		r.expect(restore.Order, fleet.Unknown) // it may be whole: here again, or elsewhere
		r.vault.slowed(time.Minute)
		restore.Order.Attempt = 1
		r.do(restore)
		r.clean()
		r.runs(fleet.Suspended)
	})
}

// A guest that is stopped meanwhile leaves nothing, and an order about another checkpoint does nothing.
func TestEndsDuringACheckpoint(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 1))
		r.do(task(fleet.Arm, 1))
		other := task(fleet.Drop, 1)
		other.Order.Checkpoint = "j1c7"
		r.do(other)
		for _, v := range []fleet.Verb{fleet.Cut, fleet.Continue, fleet.Save} {
			o := task(v, 1)
			o.Order.Checkpoint = "j1c7"
			r.send(o)
			r.expect(o.Order, fleet.Failed)
		}
		r.do(task(fleet.Cut, 1))
		r.do(task(fleet.Stop, 1))
		r.clean()
		if r.d.guest("j1g0") != nil {
			t.Error("the guest is still here")
		}
	})
}

func TestRestoreThatFails(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		whys := map[string]error{"is damaged": fmt.Errorf("%w: chunk 1", fleet.ErrDamaged), "has no such": fleet.ErrNotKept}
		for i, what := range []string{"is damaged", "has no such"} { // in order: an earlier attempt is answered as the later one
			r.vault.fail(whys[what])
			o := task(fleet.Restore, 1)
			o.Order.Attempt = 10 + i
			r.send(o)
			if rep := r.expect(o.Order, fleet.Failed); !strings.Contains(rep.Cause, what) {
				t.Errorf("cause %q", rep.Cause)
			}
		}
		r.clean()
		if r.d.count("restore j1g0") != 0 {
			t.Errorf("calls %q", r.d.calls)
		}
		for _, id := range []fleet.CheckpointID{"", "../../etc", "j1"} {
			for _, v := range []fleet.Verb{fleet.Arm, fleet.Drop, fleet.Restore} {
				o := task(v, 1)
				o.Order.Checkpoint = id
				r.send(o)
				r.expect(o.Order, fleet.Failed)
			}
		}
	})
}
