package sim

import (
	"math/rand/v2"
	"slices"
	"time"

	"pagurus/fleet"
)

// job is a modelled parallel program. All its ranks step together: it runs at the pace of
// the slowest, and stops while one is suspended.
type job struct {
	Work
	id      fleet.JobID // of the latest attempt
	serial  int
	guests  []*guest
	started bool
	over    bool // its program has ended
	own     bool // a scenario submitted it

	incarnation int                                  // the last that was seen
	cuts        map[fleet.CheckpointID]time.Duration // how much of Work.Time was done at them

	done    time.Duration // of Work.Time
	pace    float64
	since   time.Duration // when done was computed
	version int32
	run     fleet.Order // the standing order, as last sent
	begun   time.Duration
	changed []fleet.Changed // see changes
	more    []*guest        // by which it has grown since it began
	grows   string          // its last growth, as it was seen
}

// guest is a modelled guest: where its memory is and where it runs.
type guest struct {
	id        fleet.GuestID
	job       *job
	at        *machine          // has all of it and may run it; nil: none yet
	up        bool              // neither suspended nor gone for a move
	suspended bool              // by its host, for the owner
	taking    fleet.MigrationID // the migration that the target last prepared for
	to        *machine          // its target
	whole     bool              // complete there, too
	old       *machine          // has the rest of its memory after a move
	copying   *copying
	gen       uint64 // the newest generation that a host has seen
	gone      bool   // it was stopped
	cutting   cutting
	ended     bool // with the power or the lease of its host
}

func (g *guest) runs() bool { return g.at != nil && g.up && !g.suspended }

// alter changes where a guest is and whether it runs, with all consequences.
func (w *world) alter(g *guest, change func()) {
	was, ran := g.at, g.runs()
	if ran {
		w.mark(was)
		was.running--
		was.cpus -= g.job.CPUs
	}
	change()
	if g.at != was {
		if was != nil {
			was.guests = slices.DeleteFunc(was.guests, func(o *guest) bool { return o == g })
			w.seeGuest(was, g, false)
		}
		if g.at != nil {
			g.at.guests = append(g.at.guests, g)
			w.seeGuest(g.at, g, true)
		}
	}
	if g.runs() {
		w.mark(g.at)
		g.at.running++
		g.at.cpus += g.job.CPUs
	}
	if was != nil {
		w.repaceAll(was)
	}
	if g.at != nil && g.at != was {
		w.repaceAll(g.at)
	}
	w.repace(g.job)
}

// changes is the profile of a job's guests as agents report it.
func (j *job) changes() []fleet.Changed {
	if j.changed == nil {
		for _, d := range []time.Duration{100 * time.Millisecond, time.Second, 4 * time.Second} {
			j.changed = append(j.changed, fleet.Changed{Within: d, Bytes: int64(dirtied(j.Work, d.Seconds(), 1))})
		}
	}
	return j.changed
}

// suspend suspends or resumes a guest.
func (w *world) suspend(g *guest, still bool) {
	if g.suspended == still {
		return
	}
	if still {
		w.say("%s is suspended on %s", g.id, g.at.id)
	} else {
		w.say("%s goes on", g.id)
	}
	w.alter(g, func() { g.suspended = still })
	if w.Policy.Moves() {
		w.seeGuest(g.at, g, true) // a suspended guest uses no CPU
	}
}

const (
	// starved is the minimum CPU share of a guest beside its owner: even the lowest class
	// gets some.
	starved = 0.02
	// copied is a guest's pace while it is copied.
	copied = 0.9
)

// pace is a guest's speed, at most 1. Until the host has noticed the owner, the two share
// equally; then the guest gets what the owner leaves.
func (g *guest) pace() float64 {
	if !g.runs() {
		return 0
	}
	m, free := g.at, float64(g.at.CPUs)
	if m.present && m.state.There() {
		free -= m.load
	} else if m.present {
		free -= m.load / 2
	}
	pace := max(min(1, free/float64(max(m.cpus, 1))), starved)
	if g.copying != nil {
		pace *= copied
	}
	return pace
}

func (w *world) repaceAll(m *machine) {
	for _, g := range m.guests {
		w.repace(g.job)
	}
}

// repace updates a job's progress, and computes its further pace.
func (w *world) repace(j *job) {
	w.progress(j)
	pace := 0.0
	if j.started && !j.over {
		pace = 1
		for _, g := range j.guests {
			if pace = min(pace, g.pace()); pace == 0 {
				break
			}
		}
	}
	if pace == j.pace {
		return
	}
	j.pace = pace
	j.version++
	if pace > 0 {
		left := time.Duration(float64(j.Time-j.done)/pace) + 1
		w.after(left, event{kind: ends, job: j, version: j.version})
	}
}

func (w *world) progress(j *job) {
	took := w.now - j.since
	j.since = w.now
	if !j.started || j.over {
		return
	}
	j.done = min(j.Time, j.done+time.Duration(float64(took)*j.pace))
	if j.pace == 0 {
		w.out.Stalled += took.Seconds()
	}
}

// hours is work in rank-hours.
func (j *job) hours(d time.Duration) float64 { return d.Hours() * float64(j.Ranks) }

// wipe removes a guest whose job is over from its hosts, as agents do with unwanted
// guests.
func (w *world) wipe(g *guest) {
	g.gone = true
	w.halt(g)
	for _, m := range []*machine{g.at, g.to, g.old} {
		if m != nil {
			w.occupy(m, -1)
		}
	}
	g.to, g.old = nil, nil
	if g.at != nil {
		w.alter(g, func() { g.at, g.up = nil, false })
	}
}

// end ends a job's program.
func (w *world) end(j *job, version int32) {
	if version != j.version || j.over {
		return
	}
	w.progress(j)
	if j.over = true; j.done < j.Time-time.Millisecond {
		w.breach("%s ends after %s of %s", j.id, j.done, j.Time)
	}
	w.out.Finished++
	w.out.UsefulHours += j.hours(j.Time)
	w.out.turnaround = append(w.out.turnaround, w.now-j.begun)
	j.pace, j.version = 0, j.version+1
	w.exited(j)
}

// exited answers the standing run order.
func (w *world) exited(j *job) {
	if j.run.Verb != "" {
		w.reply(10*time.Millisecond, j.run, fleet.Report{Exit: &fleet.Exit{}}, nil)
	}
}

// enqueue adds a job to the waiting ones. Durations vary by up to half, so that jobs do
// not all end together.
func (w *world) enqueue(of Work) {
	w.serial++
	chance := rand.New(rand.NewPCG(w.Seed, uint64(w.serial)|1<<40))
	of.Time = time.Duration(float64(of.Time) * (0.5 + chance.Float64()))
	w.waiting = append(w.waiting, &job{Work: of, serial: w.serial, begun: w.now})
}

// submitEvery is the interval of searching for room.
const submitEvery = 30 * time.Second

// submit places waiting jobs in order while there is room.
func (w *world) submit() {
	for len(w.waiting) > 0 {
		j := w.waiting[0]
		if w.tight && !w.fits(j) {
			break
		}
		w.submitting = j
		_, err := w.handleEvent(fleet.Request{At: w.at(), By: admin, Verb: fleet.Submit, Now: true, Image: modelled(), Spec: w.spec(j)})
		if err != nil {
			w.submitting = nil
			w.say("a job has to wait: %v", err)
			w.tight = true
			break
		}
		w.waiting = w.waiting[1:]
	}
	if len(w.waiting) > 0 && !w.busy {
		w.busy = true
		w.after(submitEvery, event{kind: submits})
	}
}

// leaves handles a job that is over.
func (w *world) leaves(j *job) {
	delete(w.jobs, j.id)
	for _, g := range j.all() {
		w.wipe(g)
		delete(w.guests, g.id)
	}
	switch {
	case j.own:
		if !j.over {
			w.out.WastedHours += j.hours(j.done)
		}
	case j.over:
		if w.Work.Jobs > 0 {
			w.enqueue(w.Work)
		}
	default:
		w.progress(j)
		w.out.WastedHours += j.hours(j.done)
		w.out.Again++
		w.waiting = append([]*job{{Work: j.Work, serial: j.serial, begun: j.begun}}, w.waiting...)
	}
	j.started, j.version = false, j.version+1
	if !w.busy {
		w.busy = true
		w.after(0, event{kind: submits})
	}
}
