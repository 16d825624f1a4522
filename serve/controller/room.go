package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/decide/access"
	"pagurus/decide/quota"
	"pagurus/fleet"
	"pagurus/serve/wire"
)

// waitsFor is how long a refusal counts as a wait: agents try again within a second or two.
const waitsFor = 10 * time.Second

// room counts what the spool keeps, by job and by user, and refuses what is too much. Package
// quota decides.
type room struct {
	dir     string // of the spool
	reserve int64  // bytes that stay free on its disk, for others
	limits  fleet.OutputLimits
	least   time.Duration // the age of an ended job from which it may go to make room

	mu    sync.Mutex
	jobs  map[fleet.JobID]*keeping
	users map[uint32]int64 // bytes, without zeros
	all   int64
}

// keeping is what is kept of a job.
type keeping struct {
	uid    uint32
	bytes  int64
	needs  int64     // what was refused last
	waits  string    // why; empty: nothing is refused
	waited time.Time // when it was refused

	lacks   string    // why most controllers do not have it; empty: they have, or are slow
	lacksAt time.Time // when that was seen
}

func newRoom(dir string) *room {
	return &room{dir: dir, least: quota.LeastAge, jobs: map[fleet.JobID]*keeping{}, users: map[uint32]int64{}}
}

// own says whose a job is, before anything of it is kept. bytes is what an earlier controller left.
func (r *room) own(job fleet.JobID, uid uint32, bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.jobs[job] == nil {
		r.jobs[job] = &keeping{uid: uid}
		r.count(r.jobs[job], bytes)
	}
}

// count changes what is kept of a job; the caller holds the lock.
func (r *room) count(k *keeping, by int64) {
	k.bytes += by
	r.all += by
	if r.users[k.uid] += by; r.users[k.uid] <= 0 {
		delete(r.users, k.uid)
	}
}

// free is what the disk has beyond the reserve.
func (r *room) free() (int64, error) {
	free, err := freeIn(r.dir)
	return free - r.reserve, err
}

// freeIn is how many bytes the disk of a folder has.
func freeIn(dir string) (int64, error) {
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		return 0, fmt.Errorf("checking the space left in %s: %w", dir, err)
	}
	return int64(disk.Bavail) * disk.Bsize, nil
}

// takeRoom makes room for bytes of a job, or says why there is none.
func (r *room) takeRoom(job fleet.JobID, bytes int64) error {
	free, err := r.free()
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.jobs[job]
	if k == nil {
		return fmt.Errorf("nobody is known whose job %s is", job)
	}
	bound := quota.Check(r.limits, quota.Kept{Mine: r.users[k.uid], All: r.all, Users: len(r.users), Free: free}, bytes)
	if bound == quota.None {
		r.count(k, bytes)
		k.needs, k.waits = 0, ""
		return nil
	}
	return r.refuse(k, bytes, bound)
}

// refuse notes that a job has to wait; the caller holds the lock.
func (r *room) refuse(k *keeping, bytes int64, why quota.Bound) error {
	k.needs, k.waits, k.waited = bytes, why.Says(r.limits, k.uid, people), time.Now()
	return &wire.Error{Status: http.StatusInsufficientStorage, Reason: k.waits + "; the program waits until then"}
}

// giveBack returns what was taken for bytes that could not be written.
func (r *room) giveBack(job fleet.JobID, bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k := r.jobs[job]; k != nil { // else it was forgotten meanwhile
		r.count(k, -bytes)
	}
}

// explained says why bytes of a job were not written; nil: they were.
func (r *room) explained(job fleet.JobID, bytes int64, err error) error {
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("writing output: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.jobs[job]
	if k == nil {
		k = &keeping{}
	}
	return r.refuse(k, bytes, quota.Disk)
}

// rest notes that a job waits for nothing, since it has ended.
func (r *room) rest(job fleet.JobID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k := r.jobs[job]; k != nil {
		k.needs, k.waits, k.lacks = 0, "", ""
	}
}

// lacksCopies notes why most controllers do not get what a job has written; empty: they have it.
func (r *room) lacksCopies(job fleet.JobID, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k := r.jobs[job]; k != nil {
		k.lacks, k.lacksAt = why, time.Now()
	}
}

// drop forgets a job that has nothing kept any more.
func (r *room) drop(job fleet.JobID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k := r.jobs[job]; k != nil {
		r.count(k, -k.bytes)
		delete(r.jobs, job)
	}
}

// crowded says which jobs wait, and why; nil: none does. A refusal that was not repeated counts no more.
func (r *room) crowded(now time.Time) map[fleet.JobID]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out map[fleet.JobID]string
	for id, k := range r.jobs {
		why := k.waits
		if why == "" || now.Sub(k.waited) > waitsFor {
			why = k.lacks
			if why == "" || now.Sub(k.lacksAt) > waitsFor {
				continue
			}
		}
		if out == nil {
			out = map[fleet.JobID]string{}
		}
		out[id] = why
	}
	return out
}

// crowding chooses the ended jobs that make room for what waits of the same user. What would find room by now waits no more:
// its agent tries again soon. So nothing goes twice for one wait.
func (r *room) crowding(jobs map[fleet.JobID]fleet.Job, now time.Time, free int64) (out []fleet.JobID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	granted := map[uint32]int64{} // to others of the user who wait
	for _, id := range slices.Sorted(maps.Keys(r.jobs)) {
		k := r.jobs[id]
		if k.waits == "" || now.Sub(k.waited) > waitsFor {
			continue
		}
		needs := k.needs + granted[k.uid]
		kept := quota.Kept{Mine: r.users[k.uid], All: r.all, Users: len(r.users), Free: free}
		if quota.Check(r.limits, kept, needs) == quota.None {
			granted[k.uid] = needs
			k.needs, k.waits = 0, ""
			continue
		}
		goes := quota.MakeRoom(r.limits, kept, needs, r.dispensable(k.uid, jobs, now))
		if len(goes) == 0 {
			continue
		}
		granted[k.uid] = needs
		for _, id := range goes {
			if !slices.Contains(out, id) {
				out = append(out, id)
			}
		}
	}
	slices.Sort(out)
	return out
}

// dispensable are a user's ended jobs that may go; the caller holds the lock.
func (r *room) dispensable(uid uint32, jobs map[fleet.JobID]fleet.Job, now time.Time) (out []quota.Ended) {
	for id, k := range r.jobs {
		if j := jobs[id]; k.uid == uid && j.State == fleet.JobEnded && !j.Requeue && now.Sub(j.Ended) >= r.least {
			out = append(out, quota.Ended{Job: id, At: j.Ended, Bytes: k.bytes})
		}
	}
	return out
}

// list is what is kept, of everybody.
func (r *room) list(s fleet.Snapshot, free int64) fleet.Output {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := fleet.Output{Limits: r.limits, Bytes: r.all, Free: max(free, 0), Users: []fleet.UserOutput{}}
	if l := r.limits.All; l > 0 {
		o.Free = min(o.Free, max(l-r.all, 0))
	}
	by := map[uint32]*fleet.UserOutput{}
	for id, k := range r.jobs {
		if k.bytes == 0 && k.waits == "" {
			continue
		}
		u := by[k.uid]
		if u == nil {
			u = &fleet.UserOutput{UID: k.uid, Bytes: r.users[k.uid]}
			by[k.uid] = u
		}
		if k.waits != "" && s.At.Sub(k.waited) <= waitsFor {
			u.Waits = k.waits
		}
		u.Jobs = append(u.Jobs, fleet.JobOutput{Job: id, Bytes: k.bytes, Ended: s.Jobs[id].Ended})
	}
	for _, known := range s.Users {
		if u := by[known.UID]; u != nil && (u.User == "" || known.ID < u.User) {
			u.User = known.ID
		}
	}
	for _, u := range by {
		slices.SortFunc(u.Jobs, func(a, b fleet.JobOutput) int {
			return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Job, b.Job))
		})
		o.Users = append(o.Users, *u)
	}
	slices.SortFunc(o.Users, func(a, b fleet.UserOutput) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.UID, b.UID))
	})
	return o
}

// people writes bytes for people.
func people(n int64) string {
	const units = "KMGT"
	unit, size := "bytes", float64(n)
	for i := 0; size >= 1024 && i < len(units); i++ {
		size, unit = size/1024, units[i:i+1]+"iB"
	}
	return fmt.Sprintf("%.4g %s", size, unit)
}

// left is how much an earlier controller left of a job's streams.
func (s *spool) left(job fleet.JobID) (bytes int64, err error) {
	for _, name := range []string{fleet.Stdin, fleet.Stdout, fleet.Stderr} {
		info, err := os.Stat(filepath.Join(s.dir, string(job), name))
		switch {
		case os.IsNotExist(err):
		case err != nil:
			return 0, fmt.Errorf("counting what is kept: %w", err)
		default:
			bytes += min(info.Size(), s.most(name))
		}
	}
	return bytes, nil
}

// Output says how much is kept of programs' output, and of whom.
func (c *Controller) Output(ctx context.Context, by fleet.Caller) (fleet.Output, error) {
	s, err := c.Snapshot(ctx)
	if err != nil {
		return fleet.Output{}, err
	}
	free, err := c.spool.room.free()
	if err != nil {
		return fleet.Output{}, err
	}
	s.At = now()
	o := c.spool.room.list(s, free)
	o.Checkpoints = checkpointsKept(s, c.Planner.Keeps)
	if o.Images, err = c.imagesKept(s); err != nil {
		return fleet.Output{}, err
	}
	o.Growth = growthUsed(s, c.Planner.GrowEach)
	o.Changes = c.changes.made(userNames(s), s.At)
	return access.VisibleOutput(o, by), nil
}

// growthUsed is by how many guests everybody's jobs have grown.
func growthUsed(s fleet.Snapshot, each int) fleet.GrowthUsed {
	all, users := quota.GrownOf(maps.Values(s.Jobs))
	out, names := fleet.GrowthUsed{Each: each, Guests: all, Users: []fleet.UserGrowth{}}, userNames(s)
	for uid, n := range users {
		out.Users = append(out.Users, fleet.UserGrowth{UID: uid, User: names[uid], Guests: n})
	}
	slices.SortFunc(out.Users, func(a, b fleet.UserGrowth) int {
		return cmp.Or(cmp.Compare(b.Guests, a.Guests), cmp.Compare(a.UID, b.UID))
	})
	return out
}

// checkpointsKept is what vaults keep of checkpoints, of everybody.
func checkpointsKept(s fleet.Snapshot, l fleet.CheckpointLimits) fleet.CheckpointsKept {
	all := map[fleet.JobID][]fleet.Checkpoint{}
	for _, c := range s.Checkpoints {
		all[c.Job] = append(all[c.Job], c)
	}
	use := quota.UseOf(all, func(id fleet.JobID) (uint32, bool) {
		j, known := s.Jobs[id]
		return j.Spec.UID, known
	}, nil)
	out := fleet.CheckpointsKept{Limits: l, Bytes: use.All, Users: []fleet.UserCheckpoints{}}
	names := userNames(s)
	for uid, bytes := range use.Bytes {
		out.Users = append(out.Users, fleet.UserCheckpoints{UID: uid, User: names[uid], Count: use.Count[uid], Bytes: bytes})
	}
	slices.SortFunc(out.Users, func(a, b fleet.UserCheckpoints) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.UID, b.UID))
	})
	return out
}

// userNames are the users of numbers; of several the first.
func userNames(s fleet.Snapshot) map[uint32]fleet.UserID {
	names := map[uint32]fleet.UserID{}
	for _, u := range s.Users {
		if is, named := names[u.UID]; !named || u.ID < is {
			names[u.UID] = u.ID
		}
	}
	return names
}

// imagesKept is what images take here, of everybody.
func (c *Controller) imagesKept(s fleet.Snapshot) (fleet.ImagesKept, error) {
	out := fleet.ImagesKept{Limits: c.ImageLimits, Users: []fleet.UserImages{}}
	if c.Config.Images == nil {
		return out, nil
	}
	all, err := c.Config.Images.List()
	if err != nil {
		return out, fmt.Errorf("counting images: %w", err)
	}
	use, names := quota.ImagesOf(all), userNames(s)
	out.Bytes = use.All
	for uid, bytes := range use.Bytes {
		out.Users = append(out.Users, fleet.UserImages{UID: uid, User: names[uid], Names: use.Names[uid], Bytes: bytes})
	}
	slices.SortFunc(out.Users, func(a, b fleet.UserImages) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.UID, b.UID))
	})
	return out, nil
}

// makeRoom removes ended jobs of users whose programs wait, if the administrator wants that.
func (c *Controller) makeRoom(ctx context.Context) {
	if !c.Limits.Oldest {
		return
	}
	free, err := c.spool.room.free()
	if err != nil {
		return // who writes is told why
	}
	goes := c.spool.room.crowding(c.snap().Jobs, now(), free)
	if len(goes) == 0 {
		return
	}
	if _, err := c.step(ctx, fleet.Observation{At: now(), Crowding: goes}); c.noteStoreError(err) && err == nil {
		c.Log.Info("removed the oldest ended jobs of users who have reached a limit of output", "jobs", goes)
	}
}
