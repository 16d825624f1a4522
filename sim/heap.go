package sim

import "time"

// kind is what an event is about.
type kind uint8

const (
	comes     kind = iota // an owner comes, or goes
	senses                // a host notices that, or believes it
	evaluates             // the policy is asked again about a host
	answers               // a host has carried an order out
	rounds                // a pass over a guest's memory is over
	ends                  // a job has done its work
	submits               // jobs are waiting
	ticks
	minutes
	cues // of the script
)

// event is something that happens at a time.
type event struct {
	at      time.Duration
	order   uint64 // of events at one time, the one that was thought of first
	kind    kind
	version int32 // what it was thought of for; another one has taken its place if that is not so any more
	machine *machine
	job     *job
	task    *task
	copying *copying
	cue     *Cue
}

// heap is what is going to happen, the next first. Each node has four children:
// half as deep as with two, and they lie side by side in memory.
type heap struct {
	events []event
	last   uint64
}

func (a *event) before(b *event) bool {
	return a.at < b.at || a.at == b.at && a.order < b.order
}

func (h *heap) push(ev event) {
	h.last++
	ev.order = h.last
	h.events = append(h.events, ev)
	at := len(h.events) - 1
	for at > 0 {
		up := (at - 1) / 4
		if !ev.before(&h.events[up]) {
			break
		}
		h.events[at] = h.events[up]
		at = up
	}
	h.events[at] = ev
}

// has reports whether the next thing to happen is of a kind, and at a time.
func (h *heap) has(k kind, at time.Duration) bool {
	return len(h.events) > 0 && h.events[0].at == at && h.events[0].kind == k
}

func (h *heap) pop() event {
	first := h.events[0]
	end := len(h.events) - 1
	ev := h.events[end]
	h.events[end] = event{}
	h.events = h.events[:end]
	if end == 0 {
		return first
	}
	at := 0
	for {
		best, from := -1, 4*at+1
		for child := from; child < min(from+4, end); child++ {
			if best < 0 || h.events[child].before(&h.events[best]) {
				best = child
			}
		}
		if best < 0 || !h.events[best].before(&ev) {
			break
		}
		h.events[at] = h.events[best]
		at = best
	}
	h.events[at] = ev
	return first
}
