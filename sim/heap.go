package sim

import "time"

// kind is the kind of an event.
type kind uint8

const (
	comes     kind = iota // an owner comes or goes
	senses                // a host notices that, or draws conclusions
	evaluates             // the policy evaluates a host again
	answers               // a host has carried out an order
	rounds                // a round of a copy ends
	ends                  // a job has finished its work
	submits               // submit waiting jobs
	ticks
	minutes
	cues     // a cue of the script
	fences   // the lease of a host is over
	arrivals // a job of the scenario
	asks     // a job's program asks for more guests
)

// event happens at a time.
type event struct {
	at      time.Duration
	order   uint64 // events at one time are in order of creation
	kind    kind
	version int32 // of the state it was created for; outdated if that has changed
	machine *machine
	job     *job
	task    *task
	copying *copying
	cue     *Cue
	arrival *Submission
	call    *Call
}

// heap holds future events, the next first. Each node has four children: half the depth
// of a binary heap, with the children adjacent in memory.
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

// has reports whether the next event has this kind and time.
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
