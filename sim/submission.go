package sim

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"pagurus/fleet"
)

// Submission is a job that a scenario submits at a time. It waits in the controller's queue, while
// the jobs of Work are kept back here until there is room.
type Submission struct {
	At       time.Duration
	Work     Work
	Limit    time.Duration // run --time; 0: none
	Restarts int
	On       []fleet.HostID
}

// readSubmissions reads one job a line: when, ranks, memory of each guest, how long it takes, its limit
// or "-", how often it may begin again, and optionally its only host.
func (c *Config) readSubmissions(text []byte) error {
	return lines(text, func(words []string) (err error) {
		if len(words) != 6 && len(words) != 7 {
			return errors.New("a job is when, ranks, memory, how long it takes, its limit or -, restarts, and maybe a host: 10s 4 1GiB 5m 6m 0")
		}
		s := Submission{Work: c.Work}
		if s.At, err = time.ParseDuration(words[0]); err != nil || s.At < 0 {
			return fmt.Errorf("%q is not a time since the beginning, such as 90s", words[0])
		}
		if s.Work.Ranks, err = strconv.Atoi(words[1]); err != nil || s.Work.Ranks < 1 || s.Work.Ranks > fleet.MaxGuestsPerJob {
			return fmt.Errorf("%q is not a number of ranks", words[1])
		}
		if s.Work.MemoryBytes, err = size(words[2]); err != nil {
			return fmt.Errorf("%q is not a size: %w", words[2], err)
		}
		if s.Work.Time, err = time.ParseDuration(words[3]); err != nil || s.Work.Time <= 0 {
			return fmt.Errorf("%q is not how long a job takes", words[3])
		}
		if words[4] != "-" {
			if s.Limit, err = time.ParseDuration(words[4]); err != nil || s.Limit <= 0 {
				return fmt.Errorf("%q is not a limit", words[4])
			}
		}
		if s.Restarts, err = strconv.Atoi(words[5]); err != nil || s.Restarts < 0 {
			return fmt.Errorf("%q is not a number of restarts", words[5])
		}
		if len(words) == 7 {
			s.On = []fleet.HostID{fleet.HostID(words[6])}
		}
		c.Submissions = append(c.Submissions, s)
		return nil
	})
}

// submitted submits a scenario's job.
func (w *world) submitted(s *Submission) {
	w.serial++
	w.submitting = &job{Work: s.Work.usual(), serial: w.serial, begun: w.now, own: true}
	spec := w.spec(w.submitting)
	spec.Time, spec.Restarts, spec.On = s.Limit, s.Restarts, s.On
	for _, c := range w.Calls {
		spec.Grow = min(spec.Grow+c.Count, fleet.MostGrowth)
	}
	if w.Checkpoint > 0 {
		spec.Checkpoint = &fleet.CheckpointPlan{Every: w.Checkpoint}
	}
	if _, err := w.handleEvent(fleet.Request{At: w.at(), By: admin, Verb: fleet.Submit, Image: modelled(), Spec: spec}); err != nil {
		w.submitting = nil
		w.say("a job is refused: %v", err)
	}
}

func modelled() *fleet.Image {
	return &fleet.Image{Name: "modelled", Digest: "sha256-modelled", MPI: "openmpi"}
}

func (w *world) spec(j *job) *fleet.JobSpec {
	return &fleet.JobSpec{Args: []string{"./a.out"}, Dir: "/home", Ranks: j.Ranks, Guests: j.Ranks, Image: "modelled", Machine: files, Kind: fleet.VM,
		Need: fleet.Resources{CPUs: j.CPUs, MemoryBytes: j.MemoryBytes}}
}

// followJob applies a job's change.
func (w *world) followJob(v fleet.Job) {
	j := w.jobs[v.ID]
	switch {
	case j == nil && w.submitting != nil && (v.State == fleet.JobStarting || v.State == fleet.JobPending):
		j, w.submitting = w.submitting, nil
		j.id, w.jobs[v.ID] = v.ID, j
		w.say("%s is submitted", v.ID)
		if v.State == fleet.JobPending {
			w.say("%s waits: %s", v.ID, v.Reason)
		}
	case j != nil && v.State == fleet.JobEnded:
		w.say("%s has ended: %s %s", v.ID, v.Result, v.Cause)
		w.leaves(j)
	case j != nil && v.Incarnation != j.incarnation:
		j.incarnation = v.Incarnation
		w.rewind(j)
		if v.State == fleet.JobPending {
			w.say("%s waits to begin again: %s", v.ID, v.Reason)
		}
	}
	if j != nil {
		w.followGrowth(j, v)
	}
	if j != nil && v.State == fleet.JobStarting && j.guests == nil {
		if j.own {
			w.say("%s begins", v.ID)
		}
		j.guests = make([]*guest, v.Size())
		if v.From != "" {
			w.goOn(j, v.From)
		}
	}
}

// rewind makes a job one that has done nothing.
func (w *world) rewind(j *job) {
	w.progress(j)
	w.out.WastedHours += j.hours(j.done)
	w.out.Again++
	for _, g := range j.all() {
		w.wipe(g)
		delete(w.guests, g.id)
	}
	j.more = nil
	j.guests, j.started, j.over, j.done, j.pace, j.run = nil, false, false, 0, 0, fleet.Order{}
	j.version++
}
