package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"pagurus/bench/drive"
	"pagurus/fleet"
)

// whole is a run in which everything may fail: hosts, controllers, their store and the links
// between them. Its jobs begin again, from checkpoints, when they lose a host. So each of them
// has to end with the output that follows from its arguments, whatever was lost.
type whole struct {
	rounds  int
	outputs map[int]string                        // that is right, by the number of ranks
	hit     map[fleet.HostID]time.Time            // until when a fault may explain the loss of a host's guests
	all     time.Time                             // until when one may explain the loss of any
	runs    map[fleet.JobID]int                   // the incarnations that were seen
	at      map[fleet.JobID]map[fleet.HostID]bool // where guests of that incarnation were
	from    map[fleet.JobID]bool                  // began once from a checkpoint
	back    []time.Time                           // when the store was rolled back
	made    map[fleet.CheckpointID]string         // every checkpoint that was kept or failed: empty, or why it failed
	kept    map[fleet.JobID]bool                  // had a checkpoint
	moves   map[fleet.MoveID]time.Time            // when each move was first seen, by a clock that is not set
	born    map[fleet.JobID]time.Time             // when each job was first seen
	killed  map[fleet.JobID]bool                  // a guest of it was killed alone, which its program may notice first
	store   sync.Mutex                            // held while a backup is made or restored
}

const (
	// wholeLease is of each host: the time of most faults is on both sides of it.
	wholeLease = 15 * time.Second
	// explains is how long after its end a fault may explain a loss: until the lease is over
	// and the controller, which may just have begun to lead, says so.
	explains = 90 * time.Second
	// wholeControllers survive the loss of one.
	wholeControllers = 3
	// roundTime is at least what one round of a job takes.
	roundTime = 8 * time.Millisecond
	// frozenLimit is a pause between two scans of the processes after which the whole machine
	// may have stood still for longer than a lease.
	frozenLimit = 5 * time.Second
)

func newWhole(seconds int) *whole {
	return &whole{
		rounds: int(time.Duration(seconds) * time.Second / roundTime), outputs: map[int]string{}, hit: map[fleet.HostID]time.Time{},
		runs: map[fleet.JobID]int{}, at: map[fleet.JobID]map[fleet.HostID]bool{}, from: map[fleet.JobID]bool{},
		made: map[fleet.CheckpointID]string{}, kept: map[fleet.JobID]bool{}, moves: map[fleet.MoveID]time.Time{}, born: map[fleet.JobID]time.Time{}, killed: map[fleet.JobID]bool{},
	}
}

// right is the output of a job with so many ranks.
func (w *whole) right(ranks int) string {
	if w.outputs[ranks] == "" {
		w.outputs[ranks] = chain(ranks, w.rounds)
	}
	return w.outputs[ranks]
}

// strike notes that a fault that lasts until then may cost guests of a host, or of all.
func (w *whole) strike(host fleet.HostID, until time.Time) {
	until = until.Add(explains)
	if host == "" {
		w.all = latest(w.all, until)
		return
	}
	w.hit[host] = latest(w.hit[host], until)
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// explained reports whether faults explain why a job lost a guest that was on one of these hosts.
func (w *whole) explained(hosts map[fleet.HostID]bool, at time.Time) bool {
	if at.Before(w.all) {
		return true
	}
	for host, until := range w.hit {
		if at.Before(until) && hosts[host] {
			return true
		}
	}
	return false
}

// known is for how long a move has been seen.
func (w *whole) known(id fleet.MoveID, at time.Time) time.Duration {
	if _, seen := w.moves[id]; !seen {
		w.moves[id] = at
	}
	return at.Sub(w.moves[id])
}

// noteHosts notes the hosts that have to do with each job's guests, since it last began.
func (w *whole) noteHosts(s fleet.Snapshot) {
	for _, g := range s.Guests {
		at := w.at[g.Job]
		if at == nil {
			at = map[fleet.HostID]bool{}
			w.at[g.Job] = at
		}
		at[g.Home] = true
		if m := s.Migrations[g.Migration]; g.Migration != "" {
			at[m.From], at[m.To] = true, true
		}
	}
}

// losses counts the jobs that begin again, and gives those for which no fault is the reason.
func (w *whole) losses(s fleet.Snapshot, t *tally, at time.Time) (wrong []string) {
	for _, j := range sorted(s.Jobs) {
		if _, known := w.born[j.ID]; !known {
			w.born[j.ID] = at
		}
		if j.Incarnation <= w.runs[j.ID] {
			continue
		}
		t.Again++
		if j.From != "" {
			t.FromCheckpoint++
			w.from[j.ID] = true
		}
		if !w.explained(w.at[j.ID], at) {
			t.Lost++
			wrong = append(wrong, fmt.Sprintf("job %s begins again, though no fault has hit a host of it, %v: %s", j.ID, slices.Sorted(maps.Keys(w.at[j.ID])), j.Reason))
		}
		w.runs[j.ID], w.at[j.ID] = j.Incarnation, map[fleet.HostID]bool{}
	}
	w.noteHosts(s)
	return wrong
}

// noteCheckpoints counts the checkpoints that were made, and those that failed. The controller forgets them after some time.
func (w *whole) noteCheckpoints(s fleet.Snapshot, t *tally) {
	for id, x := range s.Checkpoints {
		switch {
		case x.Phase == fleet.Kept || x.WasKept:
			w.made[id], w.kept[x.Job] = "", true
		case x.Phase.Ended():
			w.made[id] = cmp.Or(x.Cause, "it does not say why")
		}
	}
	t.Checkpoints, t.CheckpointsFailed = 0, 0
	for _, cause := range w.made {
		if cause == "" {
			t.Checkpoints++
		} else {
			t.CheckpointsFailed++
		}
	}
}

// rolledBack reports whether a job may have been given up because its store was rolled back.
func (w *whole) rolledBack(j fleet.Job) bool {
	return w.rollbacks(j) > 0 && strings.Contains(j.Cause, "restored from a backup")
}

// rollbacks is how often the store was rolled back since a job began.
func (w *whole) rollbacks(j fleet.Job) (n int) {
	for _, at := range w.back {
		if at.After(w.born[j.ID]) {
			n++
		}
	}
	return n
}

// again is how often a job may have begun again: a store that was rolled back may have forgotten the last time, of
// which the output tells.
func (w *whole) again(j fleet.Job) int {
	return max(j.Incarnation, w.runs[j.ID], j.Restarted) + w.rollbacks(j)
}

// judge compares a job's end with the one that it has to have. Empty: it is right.
func (w *whole) judge(j fleet.Job, output string, t *tally) string {
	want := w.right(j.Spec.Ranks)
	got, right := pieces(want, output, w.again(j))
	switch {
	case right && got == want && j.Result == fleet.JobFinished && j.Exit != nil && j.Exit.Code == 0:
		t.Jobs++
		if w.from[j.ID] {
			t.RightAfterCheckpoint++
		}
		if w.kept[j.ID] {
			t.RightWithCheckpoint++
		}
		return ""
	case !right:
		t.Wrong++
		return fmt.Sprintf("job %s, incarnation %d, computed something wrong: %s", j.ID, j.Incarnation, differs(want, output))
	case w.killed[j.ID] && !w.kept[j.ID] && j.Result == fleet.JobFinished && j.Exit != nil && j.Exit.Code != 0: // see docs/failures.md
		t.JobsDead++
		t.Killed++
		return ""
	case w.rolledBack(j):
		t.GivenUp++
		return ""
	case w.kept[j.ID]:
		t.BadWithCheckpoint++
	}
	t.Lost++
	code := "none"
	if j.Exit != nil {
		code = fmt.Sprint(j.Exit.Code)
	}
	return fmt.Sprintf("job %s did not come to a good end: it is %s, exit code %s, cause %q, incarnation %d, and it said %q", j.ID, j.Result, code, j.Cause, j.Incarnation, lastLine(output))
}

// pieces takes an output apart. A job that begins again at its beginning, since it had no
// checkpoint, goes on after what it had said before; one that begins at a checkpoint goes on with the
// line that follows there. So the output is beginnings of the right one, as many as it may have
// begun again, and then the last, which it returns.
func pieces(want, output string, again int) (last string, ok bool) {
	common := 0
	for common < min(len(want), len(output)) && want[common] == output[common] {
		common++
	}
	if common == len(output) {
		return output, true
	}
	if rest, more := strings.CutPrefix(output[common:], "\n"); more && common == len(want) && again > 0 {
		return pieces(want, rest, again-1) // it had said everything, but not ended
	}
	for n := common; n > 0 && again > 0; n-- {
		if last, ok := pieces(want, output[n:], again-1); ok {
			return last, true
		}
	}
	return "", false
}

// differs says where an output is not what it has to be.
func differs(want, got string) string {
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range b {
		if i >= len(a) || a[i] != b[i] {
			right := "no line"
			if i < len(a) {
				right = a[i]
			}
			return fmt.Sprintf("line %d of %d is %q in place of %q, after %q", i+1, len(b), b[i], right, lastLine(strings.Join(b[:i], "\n")))
		}
	}
	return fmt.Sprintf("it ends after line %d of %d, within it", len(b), len(a))
}

func lastLine(text string) string { return text[strings.LastIndexByte(text, '\n')+1:] }

// command is a job of the run, which begins again as often as it has to.
func (w *whole) command(c *chaos, ranks, guests int) []string {
	return []string{"run", "--detach", "--no-trace", "-n", fmt.Sprint(ranks), "--guests", fmt.Sprint(guests), "--cpus", "1", "--mem", c.memory,
		"--kind", string(c.kind), "--image", "openmpi", "--" + fleet.RestartsFlag, fmt.Sprint(fleet.MostRestarts),
		"--" + fleet.CheckpointFlag, fmt.Sprintf("every=%s,keep=2", fleet.LeastInterval), "--", "./chain", fmt.Sprint(w.rounds), fmt.Sprint((roundTime / 2).Microseconds())}
}

// wholeLab starts the lab, with disks for the second and third controller that can be filled.
// The first one's is where a backup is restored, which takes its folder away.
func (c *chaos) wholeLab(ctx context.Context) error {
	if err := c.Compile(ctx, "openmpi", "chain", chainSource, "mpicc", "-O2"); err != nil {
		return err
	}
	for n := 2; n <= wholeControllers; n++ {
		if err := stateOf(n).mount(); err != nil {
			return err
		}
	}
	return c.raise(ctx, "--controllers", fmt.Sprint(wholeControllers), "--lease", wholeLease.String(), "--"+fleet.EncryptionFlag, string(fleet.NoEncryption))
}

// stand notes when the whole machine has stood still, as by its owner's doing: then the leases
// of all hosts may be over.
func (w *whole) stand(last, now time.Time) {
	if !last.IsZero() && now.Sub(last) > frozenLimit {
		w.strike("", now)
	}
}

// noteSilence notes when no controller has led for nearly as long as a lease: then the leases of all
// hosts may be over.
func (w *whole) noteSilence(last, now time.Time) {
	if !last.IsZero() && now.Sub(last) > wholeLease-leastRenewal {
		w.strike("", now)
	}
}

// leastRenewal is how much of a lease may be over when the controller that renews it falls silent.
const leastRenewal = 3 * time.Second

// mayEnd reports whether a controller may end by itself so, to be started again as a service
// manager does: it finds too few others, its store does not answer as it is about to lead, or it cannot lead any more.
func (w *whole) mayEnd(ended error) bool {
	if ended == nil {
		return true
	}
	said := ended.Error()
	for strings.Contains(lastLine(said), endNoted) { // of the process before, too
		said = strings.TrimSuffix(said, "\n"+lastLine(said))
	}
	last := lastLine(said)
	return strings.Contains(last, "most of the controllers are away") || strings.Contains(last, "becoming the controller") && strings.Contains(last, "timed out")
}

// saveOften keeps a backup of some age for a rollback.
func (c *chaos) saveOften(ctx context.Context) {
	for c.whole != nil && !c.over() {
		c.whole.store.Lock()
		_, _ = c.Type(ctx, "backup", "--force", c.backup()) // while no controller leads there is an older one
		c.whole.store.Unlock()
		if drive.Pause(ctx, saveEvery) != nil {
			return
		}
	}
}

// wholeSummary prints all counts of a run of hosts.
func (c *chaos) wholeSummary(w io.Writer) {
	by := map[kind]int{}
	for _, k := range c.injections {
		by[k.Kind]++
	}
	for _, k := range wholeKinds() {
		if by[k] > 0 {
			fmt.Fprintf(w, "%-18s %5d\n", k, by[k])
		}
	}
	t := c.checker.tally
	fmt.Fprintf(w, "%d faults in %s, seed %d\n", len(c.injections), time.Since(c.began).Round(time.Second), c.seed)
	fmt.Fprintf(w, "migrations: %d finished, %d failed, %d cancelled, %d lost\n", t.Finished, t.Aborted, t.Cancelled, t.MovesLost)
	fmt.Fprintf(w, "jobs: %d came to their end with right results, %d wrong; they began again %d times, %d of these went on from a checkpoint; %d jobs that did ended right; %d were given up after a rollback, %d noticed first that a guest was killed\n",
		t.Jobs, t.Wrong, t.Again, t.FromCheckpoint, t.RightAfterCheckpoint, t.GivenUp, t.JobsDead)
	fmt.Fprintf(w, "checkpoints: %d kept, %d failed; of the jobs that had one %d ended with the right result, %d did not\n", t.Checkpoints, t.CheckpointsFailed, t.RightWithCheckpoint, t.BadWithCheckpoint)
	for _, cause := range slices.Sorted(maps.Values(c.whole.made)) {
		if cause != "" {
			fmt.Fprintf(w, "  %s\n", cause)
		}
	}
	fmt.Fprintf(w, "guests: %d started, %d lost without a fault, %d doubled\n", t.Started, t.Lost, t.Doubled)
}
