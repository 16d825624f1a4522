package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"pagurus/bench/drive"
	"pagurus/fleet"
	"pagurus/serve/wire"
)

// chaos is one run.
type chaos struct {
	seed   uint64
	faults int
	of     string     // the kind of run
	kind   fleet.Kind // of the guests
	whole  *whole     // in a run of hosts
	mechanism
	only    []kind
	limit   time.Duration // of the part with faults
	bounded bool          // by the user: fewer faults are not a failure
	hosts   int
	other   string // the folder of programs of another version; empty: none
	seconds int    // that a job computes
	memory  string // of a guest
	drive.Pagurus
	began time.Time

	services map[string]*service
	client   *wire.Client
	stop     context.CancelCauseFunc // ends the run after a finding

	mu         sync.Mutex
	last       fleet.Snapshot
	heard      time.Time     // when last came
	news       chan struct{} // closed and replaced with every snapshot
	checker    *checker
	injections []*injection
	disk       time.Time // until when a full disk may explain a controller's end
	full       string    // that controller
	draining   bool      // nothing new is started
	asked      int       // requests made, for their IDs

	links sync.Map // host links under a lasting fault: "kind host"
}

// naps gives the waits of a daemon that is started after a fault.
func (c *chaos) naps(number int) string { return naps(c.seed, number, c.kind) }

// wrongness ends a run that found something.
type wrongness struct{ what []string }

// Error lists the findings.
func (w wrongness) Error() string { return strings.Join(w.what, "\n") }

func (c *chaos) wrong(what ...string) {
	if len(what) > 0 {
		c.stop(wrongness{what})
	}
}

// run lets jobs compute and guests move in a running lab, injects the plan's faults, and
// waits until everything has ended. A wrongness as error means that the cluster is to blame.
func (c *chaos) run(outer context.Context) (err error) {
	ctx, stop := context.WithCancelCause(outer)
	defer stop(nil)
	c.stop = stop
	controllers := 1
	if c.whole != nil {
		controllers = wholeControllers
	}
	if c.services, err = services(c.hosts, controllers); err != nil {
		return err
	}
	for name, s := range c.services {
		if strings.HasPrefix(name, head) {
			s.always = c.clocks()
		}
	}
	snapshots, err := c.client.Watch(ctx)
	if err != nil {
		return err
	}
	var parts sync.WaitGroup
	for _, part := range []func(context.Context){
		func(context.Context) { c.followSnapshots(snapshots) }, c.checkEnds, c.watchProcesses, c.watchOver, c.renew, c.moveOn, c.progress, c.saveOften,
	} {
		parts.Go(func() { part(ctx) })
	}
	if c.whole == nil {
		err = c.injectAll(ctx)
	} else {
		err = c.injectWhole(ctx)
	}
	c.mu.Lock()
	c.draining = true
	c.mu.Unlock()
	if err == nil {
		err = c.awaitEnds(ctx)
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	stop(nil)
	parts.Wait()
	return err
}

// followSnapshots handles the controller's snapshots.
func (c *chaos) followSnapshots(snapshots <-chan fleet.Snapshot) {
	for s := range snapshots {
		c.mu.Lock()
		if c.whole != nil {
			c.whole.noteSilence(c.heard, time.Now())
		}
		c.last, c.heard = s, time.Now()
		close(c.news)
		c.news = make(chan struct{})
		for _, k := range c.injections {
			k.noteEnd(s)
		}
		c.checker.count(s)
		c.checker.survived(s)
		wrong := c.checker.checkSnapshot(s)
		c.mu.Unlock()
		c.wrong(wrong...)
	}
}

// silentLimit is the longest silence of the controller, which is killed and has its disk
// filled, but never for long.
const silentLimit = 90 * time.Second

// quiet counts how long the controller has not been heard. A machine so busy that this process
// does not run does not let the controller run, either: of each pause only a second counts.
type quiet struct {
	heard, looked time.Time
	so            time.Duration
}

// noteHeard gives how long the controller has been silent by now.
func (q *quiet) noteHeard(heard, now time.Time) time.Duration {
	if !heard.Equal(q.heard) {
		q.so = 0
	} else if !heard.IsZero() {
		q.so += min(now.Sub(q.looked), time.Second)
	}
	q.heard, q.looked = heard, now
	return q.so
}

// checkEnds judges ended jobs, and a silent controller.
func (c *chaos) checkEnds(ctx context.Context) {
	var q quiet
	for drive.Pause(ctx, 2*scanEvery) == nil {
		c.mu.Lock()
		silent := q.noteHeard(c.heard, time.Now())
		ended := c.checker.ended(c.last)
		c.mu.Unlock()
		if silent > silentLimit {
			c.wrong(fmt.Sprintf("the controller has not been heard from for %s", silentLimit))
		}
		for _, j := range ended {
			c.checkEndOf(ctx, j)
		}
	}
}

// snapshot gives the last snapshot, and a channel that the next one closes.
func (c *chaos) snapshot() (fleet.Snapshot, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last, c.news
}

// checkEndOf checks a job's output and end.
func (c *chaos) checkEndOf(ctx context.Context, j fleet.Job) {
	out, notes, err := c.Both(ctx, "logs", string(j.ID))
	if err != nil {
		return // the controller is away: the next snapshot repeats this
	}
	c.mu.Lock()
	verdict := c.checker.checkJob(j, out)
	c.mu.Unlock()
	if verdict != "" {
		if notes != "" {
			verdict += fmt.Sprintf(", and on its standard error %q", notes)
		}
		c.wrong(verdict)
	}
}

// scanEvery is between two scans of the processes.
const scanEvery = 100 * time.Millisecond

// watchProcesses watches the processes.
func (c *chaos) watchProcesses(ctx context.Context) {
	var last time.Time
	for drive.Pause(ctx, scanEvery) == nil {
		if now := time.Now(); c.whole != nil {
			c.mu.Lock()
			c.whole.stand(last, now)
			c.mu.Unlock()
			last = now
		}
		all, err := c.copies()
		if err != nil {
			continue // a process ended during the scan
		}
		times := map[int]time.Duration{}
		for _, p := range all {
			times[p.PID] = c.computed(p)
		}
		c.mu.Lock()
		wrong := c.checker.present(c.last, all, func(p copyOf) time.Duration { return times[p.PID] }, time.Now())
		c.mu.Unlock()
		c.wrong(wrong...)
	}
}

// watchOver restarts daemons that ended by themselves. None should, except the controller
// when its disk is full.
func (c *chaos) watchOver(ctx context.Context) {
	for drive.Pause(ctx, scanEvery) == nil {
		for name, s := range c.services {
			ended, err := s.revive(c.naps(0))
			if err != nil {
				c.wrong(err.Error())
			}
			c.mu.Lock()
			may := name == c.full && time.Now().Before(c.disk)
			c.mu.Unlock()
			may = may || c.whole != nil && strings.HasPrefix(name, head) && c.whole.mayEnd(ended)
			if ended != nil && !may {
				c.wrong("it was not killed, and " + ended.Error())
			}
		}
	}
}

// slots are the jobs that always run, by ranks and guests.
var slots = []struct{ ranks, guests, jobs int }{{1, 1, 1}, {2, 2, 2}}

// renew starts a job whenever one of a slot has ended.
func (c *chaos) renew(ctx context.Context) {
	for drive.Pause(ctx, 2*scanEvery) == nil {
		for _, slot := range slots {
			s, _ := c.snapshot()
			if c.over() || s.At.IsZero() || c.alive(s, slot.ranks, slot.guests) >= slot.jobs {
				continue
			}
			// A failure while the controller is away is tried again; a job that was started
			// all the same is in the next snapshot.
			command := []string{"run", "--detach", "--no-trace", "-n", fmt.Sprint(slot.ranks), "--guests", fmt.Sprint(slot.guests), "--cpus", "1",
				"--mem", c.memory, "--kind", string(c.kind), "--image", "openmpi", "--", "./witness", fmt.Sprint(c.seconds), "4", "4000"}
			if c.whole != nil {
				command = c.whole.command(c, slot.ranks, slot.guests)
			}
			_, _ = c.Type(ctx, command...)
			_ = drive.Pause(ctx, 5*scanEvery)
		}
	}
}

// alive counts the jobs of a slot. A job with a killed guest does not count: its end may
// take minutes, since the hosts that may have the guest are asked first.
func (c *chaos) alive(s fleet.Snapshot, ranks, guests int) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, j := range s.Jobs {
		by, _ := c.checker.expectedLossOf(j)
		if j.State != fleet.JobEnded && j.Spec.Ranks == ranks && j.Spec.Guests == guests && by == 0 {
			n++
		}
	}
	return n
}

func (c *chaos) over() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.draining
}

// How many moves are under way at once, and their shares.
const (
	movesAtOnce   = 3
	moveEvery     = 250 * time.Millisecond
	gangShare     = 0.75 // of moves of jobs with several guests
	drainShare    = 0.12
	boundShare    = 0.15 // moves with a limit of their own
	postCopyShare = 0.4  // post-copy moves, if possible
	slowShare     = 0.5  // of those, some with a bandwidth limit: post-copy then lasts long enough to be hit
	slowMove      = 20 << 20
	// mostStill is the longest pause between moves where jobs make checkpoints: a checkpoint begins only
	// when none of its job's guests is moving.
	mostStill = 12 * time.Second
)

// moveOn keeps guests moving.
func (c *chaos) moveOn(ctx context.Context) {
	r := rand.New(rand.NewPCG(c.seed, 1<<40))
	for drive.Pause(ctx, c.nextMove(r)) == nil {
		if c.over() {
			return
		}
		s, _ := c.snapshot()
		if underWay(s) >= movesAtOnce {
			continue
		}
		if r.Float64() < drainShare {
			host := fleet.HostID(fmt.Sprintf("host%d", 1+r.IntN(c.hosts)))
			_, _ = c.ask(ctx, fleet.Request{Verb: fleet.Drain, Host: host})
			_ = drive.Pause(ctx, time.Second+time.Duration(r.Int64N(int64(3*time.Second))))
			c.undrain(ctx, host)
			continue
		}
		if q, ok := c.someMove(r, s); ok {
			_, _ = c.ask(ctx, q) // refused for a good reason, or the controller is away
		}
	}
}

// nextMove is the pause before the next move.
func (c *chaos) nextMove(r *rand.Rand) time.Duration {
	if c.whole == nil {
		return moveEvery
	}
	return time.Duration(r.Int64N(int64(mostStill)))
}

// undrain undoes a drain, with any number of tries.
func (c *chaos) undrain(ctx context.Context, host fleet.HostID) {
	for {
		if _, err := c.ask(ctx, fleet.Request{Verb: fleet.Undrain, Host: host}); err == nil || drive.Pause(ctx, scanEvery) != nil {
			return
		}
	}
}

func underWay(s fleet.Snapshot) (n int) {
	for _, v := range s.Moves {
		if v.Ended.IsZero() {
			n++
		}
	}
	return n
}

// someMove chooses the next move.
func (c *chaos) someMove(r *rand.Rand, s fleet.Snapshot) (fleet.Request, bool) {
	var may []fleet.Guest
	for i := range 64 { // in a fixed order, so that only the seed decides
		for _, j := range sorted(s.Jobs) {
			g, ok := s.Guests[fleet.GuestID(fmt.Sprintf("%sg%d", j.ID, i))]
			if ok && g.State == fleet.GuestRunning && j.State == fleet.JobRunning {
				may = append(may, g)
			}
		}
	}
	if len(may) == 0 {
		return fleet.Request{}, false
	}
	q := fleet.Request{Verb: fleet.Migrate, Guest: may[r.IntN(len(may))].ID}
	if j := s.Jobs[s.Guests[q.Guest].Job]; j.Spec.Guests > 1 && r.Float64() < gangShare {
		q.Job, q.Guest = j.ID, ""
	}
	if r.Float64() < postCopyShare && postCopies(s, c.kind) {
		q.Limits.Mode = fleet.PostCopy
		if r.Float64() < slowShare {
			q.Limits.BytesPerSecond = slowMove
		}
	} else if r.Float64() < boundShare {
		switch r.IntN(3) {
		case 0:
			q.Limits.Mode = fleet.StopAndCopy
		case 1:
			q.Limits.Deadline = time.Duration(1+r.IntN(4)) * time.Second
		case 2:
			q.Limits.BytesPerSecond = slowMove
		}
	}
	return q, true
}

// askLimit is how long one request may take.
const askLimit = 10 * time.Second

// ask makes a request with an ID of its own.
func (c *chaos) ask(ctx context.Context, q fleet.Request) (fleet.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	if q.ID == "" {
		c.mu.Lock()
		c.asked++
		q.ID = fleet.RequestID(fmt.Sprintf("chaos-%d-%d", c.seed, c.asked))
		c.mu.Unlock()
	}
	return c.client.Ask(ctx, q)
}

// awaitEnds waits until every job and move has ended.
func (c *chaos) awaitEnds(ctx context.Context) error {
	for n := 1; n <= c.hosts; n++ {
		c.undrain(ctx, fleet.HostID(fmt.Sprintf("host%d", n)))
	}
	limit := expectedLossLimit + time.Duration(c.seconds)*time.Second
	for end := time.Now().Add(limit); time.Now().Before(end); {
		s, news := c.snapshot()
		if c.unchecked(s) == 0 && underWay(s) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-news:
		case <-time.After(time.Second):
		}
	}
	c.wrong(fmt.Sprintf("jobs or moves go on %s after the last fault: %s", limit, c.unfinished()))
	return context.Cause(ctx)
}

// unchecked counts the jobs that are not yet judged.
func (c *chaos) unchecked(s fleet.Snapshot) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range s.Jobs {
		if !c.checker.checked[id] {
			n++
		}
	}
	return n
}

// unfinished names the jobs and moves that go on.
func (c *chaos) unfinished() string {
	s, _ := c.snapshot()
	var out []string
	for _, j := range sorted(s.Jobs) {
		if j.State != fleet.JobEnded {
			out = append(out, fmt.Sprintf("%s is %s", j.ID, j.State))
		}
	}
	for _, v := range s.Moves {
		if v.Ended.IsZero() {
			out = append(out, fmt.Sprintf("%s: %s", v.ID, phasesOf(s, v)))
		}
	}
	return strings.Join(out, "; ")
}
