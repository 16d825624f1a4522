// Package lifecycle has every state machine of Pagurus: migration, move, guest, job and
// host, one file and one table each. It also judges running copies. It alone assigns
// Phase, State, Home and Gen.
//
// Its functions are pure. It must not know where events come from, which host is best, or
// which caller is allowed to ask. Its tests enumerate the tables and check every
// interleaving of a move against a model of the hosts.
package lifecycle

import (
	"fmt"
	"time"

	"pagurus/fleet"
)

// arrow is one transition: in state from, outcome on leads to state to. An arrow to its
// own state is a retry, which can be made tries times (0: no limit) and then leads to
// last.
type arrow[S ~string] struct {
	from  S
	on    fleet.Outcome
	to    S
	tries int
	last  S
}

// stage says which order's answer a state waits for, or without a verb, what else.
type stage[S ~string] struct {
	in   S
	verb fleet.Verb
	at   string // which host the order goes to, for people
	says string
}

// followOutcome returns the next state after an outcome and the number of tries made in
// it.
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

// because returns the report's cause, or otherwise if it has none.
func because(r fleet.Report, otherwise string) string {
	switch {
	case r.Cause != "":
		return r.Cause
	case r.Outcome == fleet.Unknown:
		return fmt.Sprintf("%s did not answer the order to %s", r.Order.Host, r.Order.Verb)
	}
	return otherwise
}

// pauses after an aborted move double up to the longest. A host that refuses a guest now
// will probably refuse it a second later, and a drain that keeps retrying must not load
// the cluster.
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
