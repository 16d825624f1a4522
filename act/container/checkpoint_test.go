package container_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pagurus/act/cgroup"
	"pagurus/act/container"
	agenthost "pagurus/act/host"
	"pagurus/fleet"
	"pagurus/internal/testkit"
	"pagurus/serve/agent/drivertest"
)

// all calls f for every guest at the same time, as agents of different hosts do.
func (j *job) all(what string, f func(g int) error) {
	j.t.Helper()
	var calls sync.WaitGroup
	for g := range guests {
		calls.Go(func() {
			if err := f(g); err != nil {
				j.t.Errorf("%s guest %d: %v", what, g, err)
			}
		})
	}
	calls.Wait()
	if j.t.Failed() {
		j.t.FailNow()
	}
}

// save makes a checkpoint of all guests and returns their folders, and how long the job was
// suspended: the guest that was cut first, until it continued, when all were cut.
func (j *job) save() (folders [guests]string, stop time.Duration) {
	t := j.t
	t.Helper()
	ctx := t.Context()
	for g := range guests {
		folders[g] = t.TempDir()
	}
	at := func(g int) (*container.Driver, fleet.GuestID) { return j.drivers[j.at[g]], j.tasks[g].Guest.ID }
	j.all("arm", func(g int) error { d, id := at(g); return d.Arm(ctx, id, folders[g]) })
	begun := time.Now()
	j.all("cut", func(g int) error { d, id := at(g); return d.Cut(ctx, id) })
	cut := time.Since(begun)
	var mu sync.Mutex
	j.all("continue", func(g int) error { d, id := at(g); return d.Continue(ctx, id) })
	whole := time.Since(begun)
	j.all("saved", func(g int) error {
		d, id := at(g)
		s, err := d.Saved(ctx, id)
		mu.Lock()
		defer mu.Unlock()
		stop = max(stop, s.Stop)
		t.Logf("guest %d: %d KiB, suspended for %s", g, s.Bytes>>10, s.Stop.Round(time.Millisecond))
		return err
	})
	t.Logf("the job was suspended for %s; all calls of Cut took %s, and those of Continue until %s", stop.Round(time.Millisecond), cut.Round(time.Millisecond), whole.Round(time.Millisecond))
	return folders, stop
}

// TestCheckpointMPI: a job of four ranks in two guests goes on after its checkpoints. Ended and
// restored from the last of them, on other hosts, it ends as it should.
func TestCheckpointMPI(t *testing.T) {
	for _, image := range []string{"openmpi", "mpich"} {
		t.Run(image, func(t *testing.T) {
			j := newJob(t, image, 2)
			j.compile()
			var o outcome
			wait := testkit.Meanwhile(t, func() {
				o = j.do(0, 3*time.Minute, fleet.Program{Args: []string{"./witness", "150", "16", "1000", "moved"}, MPI: true, Ranks: 4, Trace: true}, "")
			})
			j.ranksTalk()
			var stops []time.Duration
			var folders [guests]string
			for range 5 {
				var stop time.Duration
				folders, stop = j.save()
				stops = append(stops, stop)
				time.Sleep(500 * time.Millisecond)
			}
			slices.Sort(stops)
			t.Logf("the median of %d stops is %s: %s", len(stops), stops[len(stops)/2].Round(time.Millisecond), stops)
			j.restart(folders, 0)
			time.Sleep(time.Second)
			j.moved()
			begun := time.Now()
			wait()
			t.Logf("it ended %s after it was told to", time.Since(begun).Round(time.Millisecond))
			t.Logf("%v\n%s%s", o.exit, o.stdout, o.stderr)
			if o.exit.Code != 0 || !strings.Contains(o.stdout, "OK") {
				t.Errorf("the program did not end as it should")
			}
		})
	}
}

// ranksTalk waits until two ranks of each guest have begun.
func (j *job) ranksTalk() {
	j.t.Helper()
	testkit.Until(j.t, time.Minute, "the ranks talk", func() bool {
		time.Sleep(100 * time.Millisecond)
		for _, in := range j.inside {
			if traces, err := in.Trace(j.t.Context(), fleet.TraceQuery{}); err != nil || len(traces) < 2 {
				return false
			}
		}
		return true
	})
}

// TestRestoredLate: guests that are resumed long after they were restored, one after the other, talk
// at once, although their kernels have tried in vain to send meanwhile.
func TestRestoredLate(t *testing.T) {
	j := newJob(t, "openmpi", 2)
	j.compile()
	var o outcome
	wait := testkit.Meanwhile(t, func() {
		o = j.do(0, 3*time.Minute, fleet.Program{Args: []string{"./witness", "150", "16", "0", "moved"}, MPI: true, Ranks: 4, Trace: true}, "")
	})
	j.ranksTalk()
	const late = 5 * time.Second
	folders, _ := j.save()
	j.moved()
	j.restart(folders, late)
	begun := time.Now()
	wait()
	took := time.Since(begun)
	t.Logf("ended %s after they were resumed: %+v", took, o)
	if o.exit.Code != 0 || !strings.Contains(o.stdout, "OK") || took > late {
		t.Errorf("the program did not end as it should, in %s", took)
	}
}

// restart ends all guests and restores each on the other host, where they wait before they are
// resumed, one after the other.
func (j *job) restart(folders [guests]string, late time.Duration) {
	t := j.t
	t.Helper()
	ctx := t.Context()
	j.all("stop", func(g int) error { return j.drivers[j.at[g]].Stop(ctx, j.tasks[g].Guest.ID) })
	for g := range guests {
		j.tasks[g].Guest.Gen++
		j.mu.Lock()
		j.at[g] = 1 - j.at[g]
		j.mu.Unlock()
		j.lead(t, g, j.at[g])
	}
	begun := time.Now()
	j.all("restore", func(g int) error { return j.drivers[j.at[g]].Restore(ctx, j.tasks[g], folders[g]) })
	j.all("restore again", func(g int) error { return j.drivers[j.at[g]].Restore(ctx, j.tasks[g], folders[g]) })
	j.all("inspect", func(g int) error {
		all, err := j.drivers[j.at[g]].Inspect(ctx)
		if facts := all[j.tasks[g].Guest.ID]; err == nil && (facts.Run != fleet.Suspended || facts.Gen != j.tasks[g].Guest.Gen) {
			err = fmt.Errorf("the facts are %+v", facts)
		}
		return err
	})
	time.Sleep(late)
	j.all("resume", func(g int) error {
		time.Sleep(time.Duration(g) * late / 10)
		return j.drivers[j.at[g]].Resume(ctx, j.tasks[g].Guest.ID)
	})
	t.Logf("restored after %s", time.Since(begun).Round(time.Millisecond))
}

// TestCheckpointAgentKilled kills the agent at points of a checkpoint. The guest runs on as soon
// as another agent is there, nothing of the checkpoint is left after Disarm, and the next one
// is good. So is a guest whose agent was killed when it restored it.
func TestCheckpointAgentKilled(t *testing.T) {
	w := newWorld(t)
	tk := task("j1g0")
	defer w.sweep(t, tk.Guest.ID)
	d := w.open(t, 0)
	defer func() { d.Close() }()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(d.Start(t.Context(), tk))
	drivertest.Healthy(t, d, tk.Guest.ID)
	for _, point := range []string{
		"container.arm.after-passes", "container.switch.after-freeze", "container.cut.after-dump", "container.saved.before-write", "container.saved.before-about",
	} {
		folder := t.TempDir()
		must(d.Close())
		s := tk
		s.Listen = folder
		if code := w.apart(t, 0, savingVerb, s, point+"=kill"); code != stepKilled {
			t.Fatalf("%s: it exited with %d", point, code)
		}
		d = w.open(t, 0)
		_, err := d.Saved(t.Context(), tk.Guest.ID)
		t.Logf("%s: %v", point, err)
		if err == nil {
			t.Errorf("%s: what an agent did not write is said to be there", point)
		}
		drivertest.Healthy(t, d, tk.Guest.ID)
		must(d.Disarm(t.Context(), tk.Guest.ID))
		if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
			t.Errorf("%s: left in the folder: %v, %v", point, left, err)
		}
	}
	folder := t.TempDir()
	must(saveOne(t.Context(), d, tk.Guest.ID, folder))
	must(d.Stop(t.Context(), tk.Guest.ID))
	for _, point := range []string{"container.receive.after-cut", "container.start.after-spawn", "container.restore.before-arrived", "container.restore.after-arrived", "container.restore.after-build"} {
		s := tk
		s.Listen = folder
		if code := w.apart(t, 1, restoringVerb, s, point+"=kill"); code != stepKilled {
			t.Fatalf("%s: it exited with %d", point, code)
		}
		other := w.open(t, 1)
		must(other.Restore(t.Context(), tk, folder))
		must(other.Resume(t.Context(), tk.Guest.ID))
		drivertest.Healthy(t, other, tk.Guest.ID)
		must(other.Stop(t.Context(), tk.Guest.ID))
		must(other.Close())
	}
}

// TestCutExpires: a guest that nobody tells to continue after its cut runs on by itself.
func TestCutExpires(t *testing.T) {
	defer container.HoldCuts(300 * time.Millisecond)()
	w := newWorld(t)
	tk := task("j1g0")
	defer w.sweep(t, tk.Guest.ID)
	d := w.open(t, 0)
	defer d.Close()
	if err := d.Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	drivertest.Healthy(t, d, tk.Guest.ID)
	folder := t.TempDir()
	if err := errors.Join(d.Arm(t.Context(), tk.Guest.ID, folder), d.Cut(t.Context(), tk.Guest.ID)); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool {
		all, err := d.Inspect(t.Context())
		return err == nil && all[tk.Guest.ID].Run == fleet.Running
	})
	drivertest.Healthy(t, d, tk.Guest.ID)
	if _, err := d.Saved(t.Context(), tk.Guest.ID); err == nil || !strings.Contains(err.Error(), "no order to go on") {
		t.Errorf("what ran on before it was told to is said to be saved: %v", err)
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		t.Errorf("left in the folder: %v, %v", left, err)
	}
	if err := saveOne(t.Context(), d, tk.Guest.ID, folder); err != nil {
		t.Error(err)
	}
}

// Verbs of a step apart; Listen is the checkpoint's folder.
const (
	savingVerb    = fleet.Verb("make a checkpoint")
	restoringVerb = fleet.Verb("restore from a checkpoint")
)

// saveOne makes a checkpoint of one guest.
func saveOne(ctx context.Context, d *container.Driver, id fleet.GuestID, folder string) error {
	err := d.Arm(ctx, id, folder)
	if err == nil {
		err = d.Cut(ctx, id)
	}
	if err == nil {
		err = d.Continue(ctx, id)
	}
	if err == nil {
		_, err = d.Saved(ctx, id)
	}
	return err
}

// TestCheckpointFiles: what a program appends to the job's files after the checkpoint is cut off
// when its guest is restored. What it wrote in place is said, and what was replaced or has
// become shorter is refused.
func TestCheckpointFiles(t *testing.T) {
	j := newJobOf(t, "openmpi", 1, jobUser)
	var o outcome
	wait := testkit.Meanwhile(t, func() { // the shell may still say that what it waits for was killed, when its guest is stopped
		o = j.do(0, 2*time.Minute, sh(`printf 'abcdef' >middle; exec 2>/dev/null 3>>appended 4<>middle 5>written
			i=0; until [ -e go ]; do echo $i >&3; echo $i >&5; i=$((i+1)); sleep 0.01; done
			exec 3>&- 5>&-; seq 0 $((i-1)) | cmp - appended && seq 0 $((i-1)) | cmp - written && echo whole`), "")
	})
	path := func(name string) string { return filepath.Join(j.files, name) }
	until(t, func() bool { info, err := os.Stat(path("appended")); return err == nil && info.Size() > 20 })
	ctx, id, d := t.Context(), j.tasks[0].Guest.ID, j.drivers[0]
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	folder := t.TempDir()
	must(saveOne(ctx, d, id, folder))
	text, err := os.ReadFile(filepath.Join(folder, "about"))
	must(err)
	if said := string(text); !strings.Contains(said, "middle is written before its end") || strings.Contains(said, "appended is written before") {
		t.Errorf("the checkpoint says %s", said)
	}
	time.Sleep(500 * time.Millisecond)
	must(d.Stop(ctx, id))
	whole, err := os.ReadFile(path("appended"))
	must(err)
	refused := func(why string) {
		t.Helper()
		err := j.drivers[1].Restore(ctx, j.tasks[0], folder)
		if t.Logf("%v", err); err == nil || !strings.Contains(err.Error(), why) {
			t.Fatalf("it is not refused because a file %s: %v", why, err)
		}
	}
	must(os.Truncate(path("appended"), 10))
	refused("what is missing cannot be had")
	must(os.WriteFile(path("appended"), whole, 0o644))
	must(os.Rename(path("written"), path("other")))
	must(os.WriteFile(path("written"), whole, 0o644))
	must(os.Chown(path("written"), jobUser, jobUser+1))
	refused("another file")
	must(os.Remove(path("written")))
	must(os.Symlink("other", path("written")))
	refused("written")
	must(os.Rename(path("other"), path("written")))
	j.mu.Lock()
	j.at[0] = 1
	j.mu.Unlock()
	j.lead(t, 0, 1)
	must(j.drivers[1].Restore(ctx, j.tasks[0], folder))
	cut, err := os.ReadFile(path("appended"))
	must(err)
	if len(cut) >= len(whole) || len(cut) == 0 {
		t.Errorf("of %d bytes %d are left", len(whole), len(cut))
	}
	must(j.drivers[1].Resume(ctx, id))
	time.Sleep(200 * time.Millisecond)
	must(os.WriteFile(path("go"), nil, 0o644))
	wait()
	if o.stdout != "whole\n" || o.exit.Code != 0 {
		t.Errorf("it says %+v", o)
	}
}

// TestRestoreRefused: a guest is not restored as another, or where it lacks something.
func TestRestoreRefused(t *testing.T) {
	j := newJobOf(t, "openmpi", 1, jobUser)
	folder := t.TempDir()
	if err := saveOne(t.Context(), j.drivers[0], j.tasks[0].Guest.ID, folder); err != nil {
		t.Fatal(err)
	}
	if err := j.drivers[0].Stop(t.Context(), j.tasks[0].Guest.ID); err != nil {
		t.Fatal(err)
	}
	for why, change := range map[string]func(*fleet.Task){
		"MiB of memory":  func(tk *fleet.Task) { tk.Guest.Need.MemoryBytes = 64 << 20 },
		"whose address":  func(tk *fleet.Task) { tk.Guest.Index = 1 },
		"does not have":  func(tk *fleet.Task) { tk.Job.Spec.Export = "" },
		"have /work dir": func(tk *fleet.Task) { tk.Job.Spec.Export = "/elsewhere" },
	} {
		tk := j.tasks[0]
		change(&tk)
		err := j.drivers[0].Restore(t.Context(), tk, folder)
		if t.Logf("%v", err); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", why, err)
		}
		if left := j.left(t, 0, tk.Guest.ID); len(left) > 0 {
			t.Errorf("%s: left behind: %s", why, left)
		}
	}
	if err := j.drivers[0].Restore(t.Context(), j.tasks[0], folder); err != nil {
		t.Error(err)
	}
}

// TestCutWithoutAgent: a guest whose agent was killed, or hangs, while the guest is cut runs on although no other agent
// comes; what its host had held of its frames is let through. What ran on by itself is no checkpoint.
func TestCutWithoutAgent(t *testing.T) {
	w := newWorld(t)
	tk := task("j1g0")
	defer w.sweep(t, tk.Guest.ID)
	d := w.open(t, 0)
	if err := d.Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	drivertest.Healthy(t, d, tk.Guest.ID)
	groups, err := cgroup.Open(w.hosts[0].Group, 0)
	if err != nil {
		t.Fatal(err)
	}
	folder, err := groups.Freezer(tk.Guest.ID)
	if err != nil {
		t.Fatal(err)
	}
	runs := func() bool { frozen, err := agenthost.Freezer(folder).Frozen(); return err == nil && !frozen }
	for _, point := range []string{"container.switch.after-freeze", "container.cut.after-dump"} {
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		s := tk
		s.Listen = t.TempDir()
		if code := w.apart(t, 0, savingVerb, s, point+"=kill"); code != stepKilled {
			t.Fatalf("%s: it exited with %d", point, code)
		}
		began := time.Now()
		until(t, runs)
		held := func() bool {
			return strings.Contains(w.hosts[0].net.Run("tc", "filter", "show", "dev", subnet.TapName(0), "egress"), "pref")
		}
		until(t, func() bool { return !held() })
		t.Logf("%s: it ran on %s after its agent was gone", point, time.Since(began).Round(time.Millisecond))
		d = w.reopen(t, 0)
		drivertest.Healthy(t, d, tk.Guest.ID)
		if err := d.Disarm(t.Context(), tk.Guest.ID); err != nil {
			t.Error(err)
		}
	}
	defer func() { d.Close() }()

	defer container.HoldByGuards(100 * time.Millisecond)()
	into := t.TempDir()
	err = errors.Join(d.Arm(t.Context(), tk.Guest.ID, into), d.Cut(t.Context(), tk.Guest.ID))
	if err == nil {
		until(t, runs)
		err = d.Continue(t.Context(), tk.Guest.ID)
	}
	if err == nil || !strings.Contains(err.Error(), "ran on by itself") {
		t.Errorf("a guest whose agent was late is said to have been suspended all the time: %v", err)
	}
	drivertest.Healthy(t, d, tk.Guest.ID)
	if left, err := os.ReadDir(into); err != nil || len(left) > 0 {
		t.Errorf("left in the folder: %v, %v", left, err)
	}
}
