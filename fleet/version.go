package fleet

import (
	"fmt"
	"strconv"
)

// spoken is what Protocol returns. Tests build programs of another number:
// go build -ldflags "-X pagurus/fleet.spoken=2".
var spoken = "1"

var protocol = func() int {
	n, err := strconv.Atoi(spoken)
	if err != nil {
		panic("pagurus/fleet.spoken is not a number: " + spoken)
	}
	return n
}()

// Protocol is the number of the messages that this program speaks: between command line,
// controller, agents and guest agents, between two hosts, and in what an agent leaves for the
// next one. It is raised when a message changes its meaning, when a request gets a new field,
// and when ignoring a new field would do harm. Whoever does not say a number is from before there were any: 0.
func Protocol() int { return protocol }

// Speaker is one side of a connection.
type Speaker struct {
	Name     string // for people, as in "the controller"
	Protocol int
}

// Together reports whether programs of two numbers work together: if they are one apart.
// Then the newer knows what the older does not, and leaves it out.
func Together(a, b int) bool { return a-b <= 1 && b-a <= 1 }

// Apart says why two sides do not work together, and which to upgrade; empty: they do.
func Apart(a, b Speaker) string {
	if Together(a.Protocol, b.Protocol) {
		return ""
	}
	return versions(a, b) + ", and only versions that are one apart work together: upgrade " + older(a, b).Name
}

// Behind says which of two sides that work together is the older one, and what follows from
// that; empty: neither.
func Behind(a, b Speaker) string {
	if a.Protocol == b.Protocol || !Together(a.Protocol, b.Protocol) {
		return ""
	}
	return versions(a, b) + ", which work together: upgrade " + older(a, b).Name + " before the other is upgraded again"
}

func versions(a, b Speaker) string {
	return fmt.Sprintf("%s speaks version %d of the protocol and %s version %d", a.Name, a.Protocol, b.Name, b.Protocol)
}

func older(a, b Speaker) Speaker {
	if b.Protocol < a.Protocol {
		return b
	}
	return a
}
