package controller

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/serve/wire"
)

// waits says why a write was refused; empty: it was not.
func waits(t *testing.T, err error) string {
	t.Helper()
	if err == nil {
		return ""
	}
	e := (*wire.Error)(nil)
	if !errors.As(err, &e) || e.Status != http.StatusInsufficientStorage {
		t.Fatalf("got %v", err)
	}
	return e.Reason
}

// A user's programs wait at the user's limit, and nobody else's do. They go on when something of
// the user's is removed, also after a controller's restart.
func TestOneUserFillsTheirOwn(t *testing.T) {
	dir := t.TempDir()
	s := newSpool(dir)
	s.room.limits = fleet.OutputLimits{Each: 100}
	open := func(job fleet.JobID, uid uint32, name string) *stream {
		t.Helper()
		s.know(job, uid, 0)
		st, err := s.stream(job, name)
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	write := func(st *stream, n int) string {
		t.Helper()
		_, err := st.write(st.size, []byte(strings.Repeat("x", n)), false)
		return waits(t, err)
	}
	one, two, other := open("j1", 7, fleet.Stdout), open("j2", 7, fleet.Stderr), open("j3", 8, fleet.Stdout)
	if why := write(one, 60) + write(two, 40) + write(other, 100); why != "" {
		t.Fatal(why)
	}
	why := write(two, 1)
	if !strings.Contains(why, "uid 7 has reached the 100 bytes that each user may have") || !strings.Contains(why, "`pagurus job rm`") {
		t.Errorf("it waits because %q", why)
	}
	if in := open("j1", 7, fleet.Stdin); write(in, 1) == "" {
		t.Error("input is not counted")
	}
	crowded := s.room.crowded(time.Now())
	if len(crowded) != 2 || crowded["j1"] == "" || crowded["j2"] == "" || s.room.crowded(time.Now().Add(2*waitsFor)) != nil {
		t.Errorf("these wait: %v", crowded)
	}
	again := newSpool(dir)
	again.room.limits = s.room.limits
	jobs := map[fleet.JobID]fleet.Job{"j1": {ID: "j1", State: fleet.JobEnded, Spec: fleet.JobSpec{UID: 7}}, "j2": {ID: "j2", Spec: fleet.JobSpec{UID: 7}}, "j3": {ID: "j3", Spec: fleet.JobSpec{UID: 8}}}
	if err := again.open(jobs); err != nil {
		t.Fatal(err)
	}
	s = again
	two = open("j2", 7, fleet.Stderr)
	if _, err := two.write(40, []byte("y"), false); waits(t, err) == "" {
		t.Error("a restarted controller has not counted")
	}
	if err := s.forget("j1"); err != nil {
		t.Fatal(err)
	}
	if _, err := two.write(40, []byte(strings.Repeat("y", 60)), false); err != nil {
		t.Errorf("after a job was removed: %v", err)
	}
	if s.room.crowded(time.Now()) != nil || s.room.all != 200 || s.room.users[7] != 100 {
		t.Errorf("kept: %d, of 7 %d, %v", s.room.all, s.room.users[7], s.room.crowded(time.Now()))
	}
	if err := errors.Join(s.forget("j2"), s.forget("j3")); err != nil || s.room.all != 0 || len(s.room.users)+len(s.room.jobs) != 0 {
		t.Errorf("after all were removed %d are counted: %v, %v", s.room.all, s.room.users, err)
	}
}

// What is dropped beyond a stream's length takes no room, and what could not be written is not
// counted.
func TestOnlyWhatIsKeptCounts(t *testing.T) {
	s := newSpool(t.TempDir())
	s.kept, s.room.limits = 10, fleet.OutputLimits{Each: 100}
	st := streamOf(t, s, fleet.Stdout)
	wrote(t, st, 0, strings.Repeat("x", 1000), false)
	if s.room.users[1] != 10 {
		t.Errorf("counted are %d", s.room.users[1])
	}
	s.know("j2", 1, 0)
	broken, err := s.stream("j2", fleet.Stderr)
	if err == nil {
		broken.known = true // else it would be looked for in vain
		err = os.WriteFile(filepath.Join(s.dir, "j2"), nil, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := broken.write(0, []byte("hello"), false); err == nil || s.room.users[1] != 10 {
		t.Errorf("counted are %d, %v", s.room.users[1], err)
	}
}

// The oldest ended jobs of who waits make room, only theirs, only what is needed, and for each wait once.
func TestCrowding(t *testing.T) {
	r := newRoom(t.TempDir())
	r.limits = fleet.OutputLimits{Each: 100}
	const plenty = 1 << 40
	jobs := map[fleet.JobID]fleet.Job{}
	begun := time.Now().Add(-time.Hour)
	for i, id := range []fleet.JobID{"j1", "j2", "j3", "j4", "j5"} {
		jobs[id] = fleet.Job{ID: id, State: fleet.JobEnded, Ended: begun.Add(time.Duration(i) * time.Second)}
		r.own(id, uint32(1+i%2), 40) // j1, j3 and j5 are of 1
	}
	running := jobs["j5"]
	running.State = fleet.JobRunning
	jobs["j5"] = running
	tick := func(free int64, want ...fleet.JobID) {
		t.Helper()
		got := r.crowding(jobs, time.Now(), free)
		if !slices.Equal(got, want) {
			t.Errorf("%v go, should be %v", got, want)
		}
		for _, id := range got {
			r.drop(id)
			delete(jobs, id)
		}
	}
	wait := func(job fleet.JobID, bytes int64) {
		t.Helper()
		if waits(t, r.takeRoom(job, bytes)) == "" {
			t.Fatal("there is room")
		}
	}
	tick(plenty)
	wait("j5", 10)
	tick(-1000)        // others have filled the disk: removing j1 makes no room
	tick(plenty, "j1") // 20 over the limit, and 10
	for range 5 {
		tick(plenty) // its agent has not come again yet
	}
	if said := r.crowded(time.Now()); said != nil {
		t.Errorf("there is room, and it is said that these wait: %v", said)
	}
	wait("j5", 61) // more than there will be
	young := jobs["j3"]
	was := young.Ended
	young.Ended = time.Now().Add(-time.Minute)
	jobs["j3"] = young
	wait("j5", 50)
	tick(plenty) // its user may not have read it yet
	young.Ended = was
	jobs["j3"] = young
	tick(plenty, "j3")
	tick(plenty)
	if err := r.takeRoom("j5", 50); err != nil {
		t.Error(err)
	}
	r.own("j6", 2, 0)
	r.own("j7", 2, 0)
	wait("j6", 21) // one of two ended jobs is enough for both
	wait("j7", 21)
	tick(plenty, "j2")
	tick(plenty)
}

// limited is a controller with limits of output, and a host.
func limited(t *testing.T, limits fleet.OutputLimits) *rig {
	r := newRig(t)
	r.stop()
	r.limits = limits
	r.start()
	r.attach("host1")
	return r
}

// prints writes output of a job as an agent does.
func (r *rig) prints(job fleet.JobID, offset int64, bytes int) error {
	_, err := r.client.WriteStream(r.ctx, wire.Place{Job: job, Stream: fleet.Stdout, Offset: offset}, []byte(strings.Repeat("x", bytes)), false)
	return err
}

// over ends a job.
func (r *rig) over(job fleet.JobID) {
	r.t.Helper()
	grace := time.Duration(0)
	if _, err := r.client.Ask(r.ctx, fleet.Request{Verb: fleet.Cancel, Job: job, Grace: &grace}); err != nil {
		r.t.Fatal(err)
	}
	r.until("the job to end", jobEnded(job))
}

// All of it through the controller: a program whose user is at the limit waits, explain and
// the list of jobs say so, and once an ended job was removed it goes on.
func TestOutputWaitsForRoom(t *testing.T) {
	r := limited(t, fleet.OutputLimits{Each: 100})
	first, second := r.submit(1), r.submit(1)
	r.until("both to run", func(s fleet.Snapshot) bool { return running(first)(s) && running(second)(s) })
	if err := errors.Join(r.prints(first, 0, 60), r.prints(second, 0, 40)); err != nil {
		t.Fatal(err)
	}
	if waits(t, r.prints(second, 40, 1)) == "" {
		t.Fatal("there was room")
	}
	r.until("the wait to be seen", func(s fleet.Snapshot) bool { return s.Crowded[second] != "" && s.Crowded[first] == "" })
	said, err := r.client.Explain(r.ctx, wire.About{Job: second})
	if err != nil || !strings.Contains(strings.Join(said, " "), "Its program waits, because its output finds no room: the output of uid") {
		t.Errorf("it explains %q, %v", said, err)
	}
	o, err := r.client.Output(r.ctx)
	if err != nil || o.Bytes != 100 || len(o.Users) != 1 || o.Users[0].Waits == "" || len(o.Users[0].Jobs) != 2 || o.Users[0].Jobs[0].Job != first || o.Free <= 0 {
		t.Errorf("kept: %+v, %v", o, err)
	}
	stranger, err := r.ctl.Output(r.ctx, fleet.Caller{UID: 12345})
	if err != nil || len(stranger.Users) != 0 || stranger.Bytes != 100 || stranger.Growth.Users == nil {
		t.Errorf("a stranger sees %+v, %v", stranger, err)
	}
	remove := fleet.Request{Verb: fleet.RemoveJob, Job: first}
	_, err = r.client.Ask(r.ctx, remove)
	r.refused(err, http.StatusUnprocessableEntity, "pagurus cancel")
	r.over(first)
	if _, err := r.client.Ask(r.ctx, remove); err != nil {
		t.Fatal(err)
	}
	if err := r.prints(second, 40, 60); err != nil {
		t.Errorf("after room was made: %v", err)
	}
	r.until("nothing to wait", func(s fleet.Snapshot) bool { return len(s.Crowded) == 0 })
}

// The same where the administrator has the oldest ended output removed.
func TestOldestOutputGoes(t *testing.T) {
	r := limited(t, fleet.OutputLimits{Each: 100, Oldest: true})
	r.ctl.spool.room.mu.Lock()
	r.ctl.spool.room.least = 0
	r.ctl.spool.room.mu.Unlock()
	first, later, second := r.submit(1), r.submit(1), r.submit(1)
	r.until("all to run", func(s fleet.Snapshot) bool { return running(first)(s) && running(later)(s) && running(second)(s) })
	if err := errors.Join(r.prints(first, 0, 50), r.prints(later, 0, 50)); err != nil {
		t.Fatal(err)
	}
	if waits(t, r.prints(second, 0, 10)) == "" {
		t.Fatal("there was room")
	}
	r.until("the wait to be seen", func(s fleet.Snapshot) bool { return s.Crowded[second] != "" })
	if _, there := r.now().Jobs[first]; !there {
		t.Fatal("a job went that runs")
	}
	r.over(first)
	r.over(later)
	for r.prints(second, 0, 10) != nil {
		select {
		case <-r.ctx.Done():
			t.Fatal("it waits for ever")
		case <-time.After(100 * time.Millisecond):
		}
	}
	if _, there := r.now().Jobs[first]; there {
		t.Error("the oldest ended job is there")
	}
	time.Sleep(3 * tickEvery)
	if _, there := r.now().Jobs[later]; !there {
		t.Error("one more job went than was needed")
	}
}

// A store that makes a change and does not answer: the output of a job that it has removed goes, and who reads that of one
// that has ended sees the end.
func TestSpoolFollowsChangesWithoutAnAnswer(t *testing.T) {
	r := limited(t, fleet.OutputLimits{})
	first, second := r.submit(1), r.submit(1)
	r.until("both to run", func(s fleet.Snapshot) bool { return running(first)(s) && running(second)(s) })
	if err := errors.Join(r.prints(first, 0, 50), r.prints(second, 0, 50)); err != nil {
		t.Fatal(err)
	}
	r.over(first)
	r.store.silent.Store(true)
	if _, err := r.client.Ask(r.ctx, fleet.Request{Verb: fleet.RemoveJob, Job: first}); err == nil {
		t.Error("it was answered")
	}
	r.until("the job to be gone", func(s fleet.Snapshot) bool { _, there := s.Jobs[first]; return !there })
	if _, err := os.Stat(filepath.Join(r.dir, "spool", string(first))); !errors.Is(err, os.ErrNotExist) {
		t.Error("its output is there")
	}
	if o, err := r.client.Output(r.ctx); err != nil || o.Bytes != 50 {
		t.Errorf("kept: %+v, %v", o, err)
	}
	// The job ends in the store alone.
	for err := fleet.ErrConflict; errors.Is(err, fleet.ErrConflict); { // of a Tick of the controller
		snap, broken := r.store.Load(r.ctx)
		if broken != nil {
			t.Fatal(broken)
		}
		j := snap.Jobs[second]
		j.State, j.Result, j.Ended = fleet.JobEnded, fleet.JobFinished, now()
		if _, err = r.store.Store.Commit(r.ctx, snap.Revision, fleet.Changeset{Jobs: []fleet.Job{j}}); err != nil && !errors.Is(err, fleet.ErrConflict) {
			t.Fatal(err)
		}
	}
	_, _ = r.client.Ask(r.ctx, fleet.Request{Verb: fleet.Drain, Host: "host1"}) // finds out
	r.until("the job to end", jobEnded(second))
	st, err := r.ctl.spool.stream(second, fleet.Stdout)
	if err != nil {
		t.Fatal(err)
	}
	if _, over, err := st.read(ended, 0); err != nil || !over {
		t.Errorf("its output has not ended: %v", err)
	}
}
