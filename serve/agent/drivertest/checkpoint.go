package drivertest

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/serve/agent"
)

// checkpoints are the cases of a driver that can write a running guest to files.
var checkpoints = []trying{
	{"checkpoint", checkpoint}, {"checkpoint-reopened", checkpointReopened}, {"checkpoint-undone", checkpointUndone},
	{"checkpoint-refused", checkpointRefused}, {"checkpoint-and-move", checkpointAndMove}, {"checkpoint-guest-dies", checkpointGuestDies},
	{"checkpoint-disk-full", checkpointDiskFull}, {"restore-damaged", restoreDamaged},
}

// checkpointer gives a host's driver with checkpoints.
func (r *trial) checkpointer(host int) agent.Checkpointer {
	r.Helper()
	d, can := r.hosts[host].(agent.Checkpointer)
	if !can {
		r.Fatal("the driver makes no checkpoints")
	}
	return d
}

// saved makes a checkpoint of the guest at host 0 in a new folder. between is called between the steps.
func (r *trial) saved(between func()) (folder string, saved fleet.Saved) {
	r.Helper()
	folder = r.TempDir()
	r.must("arm", r.checkpointer(0).Arm(r.ctx, r.id, folder))
	between()
	r.must("cut", r.checkpointer(0).Cut(r.ctx, r.id))
	between()
	r.must("continue", r.checkpointer(0).Continue(r.ctx, r.id))
	between()
	saved, err := r.checkpointer(0).Saved(r.ctx, r.id)
	r.must("saved", err)
	return folder, saved
}

// restored makes the guest on host 1 from a folder, and lets it run.
func (r *trial) restored(folder string, between func()) {
	r.Helper()
	r.task.Order.Migration = ""
	r.must("restore", r.checkpointer(1).Restore(r.ctx, r.task, folder))
	between()
	if facts := r.state(1, fleet.Suspended); facts.Gen != r.task.Guest.Gen {
		r.Errorf("it is restored in generation %d, not %d", facts.Gen, r.task.Guest.Gen)
	}
	r.must("restore again", r.checkpointer(1).Restore(r.ctx, r.task, folder))
	r.state(1, fleet.Suspended)
	between()
	r.must("resume", r.hosts[1].Resume(r.ctx, r.id))
	between()
	r.state(1, fleet.Running)
	r.must("resume again", r.hosts[1].Resume(r.ctx, r.id))
	r.must("restore what runs", r.checkpointer(1).Restore(r.ctx, r.task, folder))
	r.state(1, fleet.Running)
}

// checkpoint: every step twice, of a guest that is busy. It goes on undisturbed, and is on another host as it was.
func checkpoint(r *trial) {
	r.boot(0)
	r.ask(0, wildly)
	before := r.healthy(0, report{})
	d, folder := r.checkpointer(0), r.TempDir()
	r.twice("arm", func() error { return d.Arm(r.ctx, r.id, folder) })
	r.state(0, fleet.Running)
	r.twice("cut", func() error { return d.Cut(r.ctx, r.id) })
	r.state(0, fleet.Suspended)
	r.twice("continue", func() error { return d.Continue(r.ctx, r.id) })
	r.state(0, fleet.Running)
	first, err := d.Saved(r.ctx, r.id)
	r.must("saved", err)
	again, err := d.Saved(r.ctx, r.id)
	r.must("saved again", err)
	if first != again || first.Bytes < 1<<20 || first.Stop <= 0 || first.Stop > caseLimit {
		r.Errorf("it saved %+v and then %+v", first, again)
	}
	r.Logf("%d MiB, stopped for %s", first.Bytes>>20, first.Stop)
	r.must("continue what runs", d.Continue(r.ctx, r.id))
	r.private(folder)
	r.round(0, before)
	r.must("end the first", r.hosts[0].Stop(r.ctx, r.id))
	r.restored(folder, func() {})
	now := r.round(1, before)
	// What was restored is like any other guest, and its files are good for more than one.
	r.must("end the second", r.hosts[1].Stop(r.ctx, r.id))
	r.restored(folder, func() {})
	r.round(1, before)
	r.Logf("went on at step %d, and is at %d", before.steps, now.steps)
}

// private checks that only root reads what was written.
func (r *trial) private(folder string) {
	r.Helper()
	err := filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == folder {
			return err
		}
		info, err := e.Info()
		if err == nil && info.Mode()&0o077 != 0 {
			r.Errorf("%s is open to others: %s", path, info.Mode())
		}
		return err
	})
	r.must("look at the files", err)
}

// checkpointReopened: both agents die between any two calls. A driver that cannot know then whether all was written
// says so, and the guest runs.
func checkpointReopened(r *trial) {
	before := r.boot(0)
	reopen := func() { r.reopen(0); r.reopen(1) }
	folder := r.TempDir()
	r.must("arm", r.checkpointer(0).Arm(r.ctx, r.id, folder))
	reopen()
	r.must("arm again", r.checkpointer(0).Arm(r.ctx, r.id, folder))
	reopen()
	r.must("cut", r.checkpointer(0).Cut(r.ctx, r.id))
	reopen()
	r.must("continue", r.checkpointer(0).Continue(r.ctx, r.id))
	r.state(0, fleet.Running)
	reopen()
	r.must("continue again", r.checkpointer(0).Continue(r.ctx, r.id))
	r.state(0, fleet.Running)
	if saved, err := r.checkpointer(0).Saved(r.ctx, r.id); err == nil {
		reopen()
		again, err := r.checkpointer(0).Saved(r.ctx, r.id)
		r.must("saved again", err)
		if again != saved {
			r.Errorf("it saved %+v and then %+v", saved, again)
		}
	} else {
		r.refuses("saved by an agent that died since", err)
		r.Logf("after the agent's death it is void: %v", err)
		r.state(0, fleet.Running)
		r.twice("disarm", func() error { return r.checkpointer(0).Disarm(r.ctx, r.id) })
		folder, _ = r.saved(func() {})
	}
	r.round(0, before)
	reopen()
	r.must("disarm", r.checkpointer(0).Disarm(r.ctx, r.id))
	r.must("end the first", r.hosts[0].Stop(r.ctx, r.id))
	r.restored(folder, reopen)
	r.round(1, before)
}

// checkpointUndone: at every step there is a way back, also for the next agent, and then a checkpoint can be made.
func checkpointUndone(r *trial) {
	before := r.boot(0)
	steps := []struct {
		name string
		take func(d agent.Checkpointer, folder string) error
	}{
		{"arm", func(d agent.Checkpointer, folder string) error { return d.Arm(r.ctx, r.id, folder) }},
		{"cut", func(d agent.Checkpointer, _ string) error { return d.Cut(r.ctx, r.id) }},
		{"continue", func(d agent.Checkpointer, _ string) error { return d.Continue(r.ctx, r.id) }},
		{"saved", func(d agent.Checkpointer, _ string) error { _, err := d.Saved(r.ctx, r.id); return err }},
	}
	for n := range len(steps) + 1 {
		for _, reopened := range []bool{false, true} {
			folder := r.TempDir()
			for _, step := range steps[:n] {
				r.must(step.name, step.take(r.checkpointer(0), folder))
			}
			if reopened {
				r.reopen(0)
			}
			r.twice("disarm", func() error { return r.checkpointer(0).Disarm(r.ctx, r.id) })
			r.state(0, fleet.Running)
			r.refuses("cut of what is undone", r.checkpointer(0).Cut(r.ctx, r.id))
			r.refuses("continue of what is undone", r.checkpointer(0).Continue(r.ctx, r.id))
			_, err := r.checkpointer(0).Saved(r.ctx, r.id)
			r.refuses("saved of what is undone", err)
			r.state(0, fleet.Running)
		}
		before = r.round(0, before)
	}
	folder, _ := r.saved(func() {})
	r.must("end the first", r.hosts[0].Stop(r.ctx, r.id))
	r.restored(folder, func() {})
	r.round(1, before)
}

// checkpointRefused: senseless calls change nothing.
func checkpointRefused(r *trial) {
	d, folder := r.checkpointer(0), r.TempDir()
	absent := func(what string, err error) {
		if !errors.Is(err, agent.ErrAbsent) {
			r.Errorf("%s of a guest that is not here: %v", what, err)
		}
	}
	absent("arm", d.Arm(r.ctx, r.id, folder))
	absent("cut", d.Cut(r.ctx, r.id))
	absent("continue", d.Continue(r.ctx, r.id))
	_, err := d.Saved(r.ctx, r.id)
	absent("saved", err)
	r.must("disarm a guest that is not here", d.Disarm(r.ctx, r.id))
	before := r.boot(0)
	r.refuses("cut of what is not armed", d.Cut(r.ctx, r.id))
	r.refuses("continue of what is not armed", d.Continue(r.ctx, r.id))
	_, err = d.Saved(r.ctx, r.id)
	r.refuses("saved of what is not armed", err)
	for _, bad := range []string{"", "here", filepath.Join(folder, "missing")} {
		r.refuses("arm in folder "+bad, d.Arm(r.ctx, r.id, bad))
	}
	r.must("a file", os.WriteFile(filepath.Join(folder, "x"), []byte("x"), 0o600))
	r.refuses("arm in a folder that is not empty", d.Arm(r.ctx, r.id, folder))
	r.must("no file", os.Remove(filepath.Join(folder, "x")))
	other := r.TempDir()
	r.must("arm", d.Arm(r.ctx, r.id, folder))
	r.refuses("a second checkpoint", d.Arm(r.ctx, r.id, other))
	r.refuses("continue of what is not cut", d.Continue(r.ctx, r.id))
	r.state(0, fleet.Running)
	r.must("cut", d.Cut(r.ctx, r.id))
	r.refuses("a second checkpoint after the cut", d.Arm(r.ctx, r.id, other))
	r.state(0, fleet.Suspended)
	r.must("continue", d.Continue(r.ctx, r.id))
	_, err = d.Saved(r.ctx, r.id)
	r.must("saved", err)
	r.nothingIn(other)
	r.must("the next one", d.Arm(r.ctx, r.id, other))
	r.must("disarm", d.Disarm(r.ctx, r.id))
	r.refuses("restore of a guest that is here", d.Restore(r.ctx, r.task, folder))
	r.state(0, fleet.Running)
	r.round(0, before)
}

// nothingIn checks that a folder is empty.
func (r *trial) nothingIn(folder string) {
	r.Helper()
	entries, err := os.ReadDir(folder)
	r.must("look into the folder", err)
	for _, e := range entries {
		r.Errorf("left behind in the folder: %s", e.Name())
	}
}

// checkpointAndMove: one excludes the other, each works after the other, and what was restored moves.
func checkpointAndMove(r *trial) {
	before := r.boot(0)
	folder := r.TempDir()
	r.target(1)
	r.must("arm", r.checkpointer(0).Arm(r.ctx, r.id, folder))
	r.refuses("copy of a guest of which a checkpoint is made", r.hosts[0].Copy(r.ctx, r.task, func(fleet.Progress) {}))
	r.must("disarm", r.checkpointer(0).Disarm(r.ctx, r.id))
	r.must("discard", r.hosts[1].Stop(r.ctx, r.id))
	r.task.Order.Migration = "m2.x"
	r.target(1)
	r.refuses("arm of a guest that has not come", r.checkpointer(1).Arm(r.ctx, r.id, r.TempDir()))
	// So slow that it does not end.
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	begun, over := make(chan struct{}, 1), make(chan error, 1)
	slow := r.task
	slow.Limits = fleet.Limits{BytesPerSecond: 2 << 20}
	go func() {
		over <- r.hosts[0].Copy(ctx, slow, func(p fleet.Progress) {
			select {
			case begun <- struct{}{}:
			default:
			}
		})
	}()
	select {
	case <-begun:
	case err := <-over:
		r.Fatalf("the copy ended: %v", err)
	}
	folder = r.TempDir()
	r.refuses("arm of a guest that moves", r.checkpointer(0).Arm(r.ctx, r.id, folder))
	r.nothingIn(folder)
	cancel()
	<-over
	r.must("discard", r.hosts[1].Stop(r.ctx, r.id))
	before = r.round(0, before)
	folder, _ = r.saved(func() {})
	r.moves(0, 1, "m3.x", before)
	r.must("end the moved one", r.hosts[1].Stop(r.ctx, r.id))
	r.restored(folder, func() {})
	restored := r.round(1, report{})
	r.moves(1, 0, "m4.x", restored)
	again, _ := r.saved(func() {})
	r.must("end it", r.hosts[0].Stop(r.ctx, r.id))
	r.restored(again, func() {})
	r.round(1, restored)
}

// moves moves the guest.
func (r *trial) moves(from, to int, m fleet.MigrationID, before report) report {
	r.Helper()
	r.task.Order.Migration, r.task.Limits = m, fleet.Limits{}
	r.target(to)
	r.must("copy", r.hosts[from].Copy(r.ctx, r.task, func(fleet.Progress) {}))
	_, err := r.hosts[from].Switch(r.ctx, r.task, func(bool) {})
	r.must("switch", err)
	r.must("resume", r.hosts[to].Resume(r.ctx, r.id))
	r.must("retire", r.hosts[from].Stop(r.ctx, r.id))
	return r.round(to, before)
}

// checkpointGuestDies: what was not written to its end is no guest.
func checkpointGuestDies(r *trial) {
	r.boot(0)
	for n, step := range []func(d agent.Checkpointer) error{
		func(d agent.Checkpointer) error { return nil },
		func(d agent.Checkpointer) error { return d.Cut(r.ctx, r.id) },
	} {
		folder := r.TempDir()
		r.must("arm", r.checkpointer(0).Arm(r.ctx, r.id, folder))
		r.must("step", step(r.checkpointer(0)))
		r.killCut(0)
		_, err := r.checkpointer(0).Saved(r.ctx, r.id)
		r.refuses("saved of a guest that died", err)
		r.refuses("continue of a guest that died", r.checkpointer(0).Continue(r.ctx, r.id))
		r.twice("disarm", func() error { return r.checkpointer(0).Disarm(r.ctx, r.id) })
		r.state(0, fleet.Absent)
		r.notRestored("what was not saved", folder)
		if n == 0 {
			r.boot(0)
		}
	}
}

// killCut kills the guest's process. What is frozen ends only when its checkpoint does.
func (r *trial) killCut(host int) {
	r.Helper()
	ended := r.hosts[host].Ended(r.id)
	r.world.Kill(r.T, host, r.id)
	select {
	case <-ended:
	case <-time.After(askLimit):
		r.must("disarm", r.checkpointer(host).Disarm(r.ctx, r.id))
		r.over(ended)
	}
}

// notRestored checks that nothing is made on host 1 from a folder.
func (r *trial) notRestored(what, folder string) {
	r.Helper()
	err := r.checkpointer(1).Restore(r.ctx, r.task, folder)
	r.refuses("restore of "+what, err)
	r.Logf("restore of %s: %v", what, err)
	r.state(1, fleet.Absent)
	for _, left := range r.world.Left(r.T, 1, r.id) {
		r.Errorf("left behind by the restore of %s: %s", what, left)
	}
}

// fullBytes is room for less than any guest's memory.
const fullBytes = "size=4m"

// checkpointDiskFull: the guest does not notice, and the next checkpoint elsewhere is good.
func checkpointDiskFull(r *trial) {
	before := r.boot(0)
	full := r.TempDir()
	r.must("mount a small disk", unix.Mount("tmpfs", full, "tmpfs", 0, fullBytes))
	defer func() { r.must("unmount it", unix.Unmount(full, unix.MNT_DETACH)) }()
	err := r.checkpointer(0).Arm(r.ctx, r.id, full)
	if err == nil {
		err = r.checkpointer(0).Cut(r.ctx, r.id)
	}
	if err == nil {
		err = r.checkpointer(0).Continue(r.ctx, r.id)
	}
	if err == nil {
		_, err = r.checkpointer(0).Saved(r.ctx, r.id)
	}
	r.refuses("a checkpoint on a full disk", err)
	r.Logf("a full disk: %v", err)
	r.state(0, fleet.Running)
	before = r.round(0, before)
	r.twice("disarm", func() error { return r.checkpointer(0).Disarm(r.ctx, r.id) })
	r.notRestored("what did not fit", full)
	folder, _ := r.saved(func() {})
	r.must("end the first", r.hosts[0].Stop(r.ctx, r.id))
	r.restored(folder, func() {})
	r.round(1, before)
}

// restoreDamaged: nothing is made from files that are not as they were written.
func restoreDamaged(r *trial) {
	before := r.boot(0)
	folder, _ := r.saved(func() {})
	r.must("end the first", r.hosts[0].Stop(r.ctx, r.id))
	r.notRestored("an empty folder", r.TempDir())
	r.notRestored("a missing folder", filepath.Join(folder, "missing"))
	for _, path := range r.files(folder) {
		whole, err := os.ReadFile(path)
		r.must("read", err)
		for what, damaged := range map[string][]byte{
			"with a bit turned": turned(whole), "cut off": whole[:len(whole)/2], "emptied": {},
		} {
			r.must("damage", os.WriteFile(path, damaged, 0o600))
			r.notRestored(filepath.Base(path)+" "+what, folder)
		}
		r.must("remove", os.Remove(path))
		r.notRestored(filepath.Base(path)+" removed", folder)
		r.must("write", os.WriteFile(path, whole, 0o600))
	}
	r.restored(folder, func() {})
	r.round(1, before)
}

// mostDamaged is how many of a checkpoint's files are damaged in turn, the largest first.
const mostDamaged = 4

// files are the largest files of a checkpoint.
func (r *trial) files(folder string) (paths []string) {
	r.Helper()
	sizes := map[string]int64{}
	err := filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		info, err := e.Info()
		if err == nil && info.Size() > 0 {
			sizes[path] = info.Size()
		}
		return err
	})
	r.must("look at the files", err)
	paths = slices.SortedFunc(maps.Keys(sizes), func(a, b string) int { return cmp.Compare(sizes[b], sizes[a]) })
	return paths[:min(mostDamaged, len(paths))]
}

// turned is data with one bit turned in the middle.
func turned(data []byte) []byte {
	out := append([]byte(nil), data...)
	out[len(out)/2] ^= 1
	return out
}
