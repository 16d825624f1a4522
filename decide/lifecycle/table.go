// Package lifecycle holds every state machine of Pagurus: migration, move,
// guest, job and host, one file and one table each, and the verdict on a
// running copy. It alone assigns Phase, State, Home and Gen.
//
// Its functions are pure: what they need comes in as arguments and what they
// decide goes out as results. It must not know where events come from, which
// host is a good one, or which caller may ask. Its tests enumerate the tables
// and check every interleaving of a move against a model of the hosts.
package lifecycle

import (
	"fmt"
	"time"

	"pagurus/fleet"
)

// arrow is one line of a table: in state from, the outcome on leads to state
// to. An arrow that leads back to its own state is another try, which may be
// made tries times (0 is without limit) and then leads to last.
type arrow[S ~string] struct {
	from  S
	on    fleet.Outcome
	to    S
	tries int
	last  S
}

// stage says what a state waits for: the answer to an order, or, with no verb,
// what says tells.
type stage[S ~string] struct {
	in   S
	verb fleet.Verb
	at   string // which host the order goes to, for people
	says string
}

// followOutcome gives where an outcome leads from a state after so many tries, and
// how many tries have been made there.
func followOutcome[S ~string](table []arrow[S], from S, attempt int, on fleet.Outcome) (S, int, error) {
	for _, a := range table {
		if a.from != from || a.on != on {
			continue
		}
		switch {
		case a.to != from:
			return a.to, 0, nil
		case a.tries != 0 && attempt >= a.tries:
			return a.last, 0, nil
		}
		return from, attempt + 1, nil
	}
	return from, attempt, fmt.Errorf("the protocol has no line for %q in %q", on, from)
}

func verbOf[S ~string](stages []stage[S], in S) fleet.Verb {
	for _, s := range stages {
		if s.in == in {
			return s.verb
		}
	}
	return ""
}

// because gives the report's cause, or what to say when it has none.
func because(r fleet.Report, otherwise string) string {
	switch {
	case r.Cause != "":
		return r.Cause
	case r.Outcome == fleet.Unknown:
		return fmt.Sprintf("%s did not answer the order to %s", r.Order.Host, r.Order.Verb)
	}
	return otherwise
}

// First pause after an aborted move, doubled with each further one up to the
// longest: a host that refuses a guest now will likely refuse it in a second,
// and a drain that asks for ever must not load the cluster.
const (
	firstPause   = 30 * time.Second
	longestPause = 30 * time.Minute
)

func pauseAfter(aborts int) time.Duration {
	pause := firstPause
	for i := 1; i < aborts && pause < longestPause; i++ {
		pause *= 2
	}
	return min(pause, longestPause)
}
