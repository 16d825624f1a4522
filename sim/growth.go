package sim

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"pagurus/fleet"
)

// Call is a job's program of a scenario that asks for more guests.
type Call struct {
	At     time.Duration
	Job    fleet.JobID
	Count  int
	Within time.Duration
}

// readCalls reads one call a line: when, which job, how many guests, for how long it waits.
func (c *Config) readCalls(text []byte) error {
	return lines(text, func(words []string) (err error) {
		if len(words) != 4 {
			return errors.New("a call for guests is when, which job, how many and how long it waits: 90s j1 2 30s")
		}
		call := Call{Job: fleet.JobID(words[1])}
		if call.At, err = time.ParseDuration(words[0]); err != nil || call.At < 0 {
			return fmt.Errorf("%q is not a time since the beginning, such as 90s", words[0])
		}
		if call.Count, err = strconv.Atoi(words[2]); err != nil || call.Count < 1 || call.Count > fleet.MostGrowth {
			return fmt.Errorf("%q is not a number of guests from 1 to %d", words[2], fleet.MostGrowth)
		}
		if call.Within, err = time.ParseDuration(words[3]); err != nil || call.Within <= 0 {
			return fmt.Errorf("%q is not a time, such as 30s", words[3])
		}
		c.Calls = append(c.Calls, call)
		return nil
	})
}

// calls has a program ask for more guests.
func (w *world) calls(c *Call) {
	w.asked++
	_, err := w.handleEvent(fleet.Request{At: w.at(), By: admin, Verb: fleet.Grow, ID: fleet.RequestID(fmt.Sprintf("grow-%d", w.asked)),
		Job: c.Job, Count: c.Count, Within: c.Within})
	if err != nil {
		w.say("%s asks for %d more and is refused: %v", c.Job, c.Count, err)
	}
}

// followGrowth logs what becomes of what a job's program asked for.
func (w *world) followGrowth(j *job, v fleet.Job) {
	n := len(v.Growths)
	if n == 0 {
		return
	}
	g := v.Growths[n-1]
	if is := string(g.Request) + string(g.State); is != j.grows {
		j.grows = is
		w.say("%s for %d more is %s %s", v.ID, g.Count, g.State, g.Cause)
	}
}

// room is where a guest of a job is noted. The pace of a job is that of the guests with which it began: more of them make it no
// faster here.
func (j *job) room(index int, g *guest) {
	if index < len(j.guests) {
		j.guests[index] = g
	} else {
		j.more = append(j.more, g)
	}
}

// all are all guests of a job.
func (j *job) all() []*guest { return append(append([]*guest(nil), j.guests...), j.more...) }
