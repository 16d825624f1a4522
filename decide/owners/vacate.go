// This file decides when a host is emptied for its owner, when that ends, and what an
// owner may request. It must not know guests or moves; an emptied host drains as after a
// request. Its tests go through every state of an owner and every policy.

package owners

import (
	"fmt"
	"strings"
	"time"

	"pagurus/decide/lifecycle"
	"pagurus/decide/placement"
	"pagurus/decide/presence"
	"pagurus/fleet"
)

// Vacate applies the owner's state to a host. It drains when the owner stays and the
// policy makes guests leave. It takes guests again when the owner is gone or guests do
// not leave. A requested drain stays. The second result is false if nothing changed; a
// silent host never changes.
func Vacate(h fleet.Host, leave bool, now, at time.Time) (fleet.Host, bool) {
	if !placement.Heard(h, now) || h.Facts.Owner == nil {
		return h, false
	}
	state := h.Facts.Owner.State
	switch {
	case h.State == fleet.HostUp && state == fleet.OwnerPresent && leave:
		h, _ = lifecycle.Host(h, fleet.Drain, at)
		h.ForOwner = true
		return h, true
	case h.ForOwner && (!state.There() || !leave):
		h, _ = lifecycle.Host(h, fleet.Undrain, at)
		h.ForOwner = false
		return h, true
	}
	return h, false
}

// WhyVacating says, for people, why a host is emptied.
func WhyVacating(h fleet.Host) string {
	if h.ForOwner {
		return fmt.Sprintf("the owner of %s is there", h.ID)
	}
	return fmt.Sprintf("%s is draining", h.ID)
}

// ExplainVacating describes, for people, how the owner of a host affects it.
func ExplainVacating(h fleet.Host, r fleet.Rules, at time.Time) []string {
	o := h.Facts.Owner
	if o == nil || o.State == "" {
		return nil
	}
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	ago := at.Sub(o.LastSign).Round(time.Second)
	switch o.State {
	case fleet.OwnerAbsent:
		say("Its owner is absent; the last sign of them was %s ago.", ago)
	case fleet.OwnerLeaving:
		say("Its owner was last seen %s ago and counts as gone after %s without a sign; guests stay deprioritised until then.", ago, presence.Of(h.Policy).IdleAfter)
	default:
		say("Its owner is %s for %s (%s); guests get the CPU time that the owner leaves.", o.State, o.ThereFor(at).Round(time.Second), o.Why)
	}
	switch {
	case h.ForOwner:
		say("It is being emptied for its owner and takes guests again when the owner is gone.")
	case o.State == fleet.OwnerReturning && (h.Vacates(r) == fleet.Evacuate || h.Vacates(r) == fleet.Predictive):
		say("If the owner stays for %s, guests leave.", presence.Of(h.Policy).Grace)
	case o.State == fleet.OwnerPresent && h.Vacates(r) == fleet.Suspend:
		say("Guests are suspended until the owner is gone, as they agreed.")
	case o.Present:
		say("It takes no guests until then.")
	}
	if len(o.Deaf) > 0 {
		say("These sensors do not work and are ignored: %s.", strings.Join(o.Deaf, "; "))
	}
	return out
}

// AmendHost applies a request about a host's owner, or says why not, for people.
func AmendHost(h fleet.Host, r fleet.Request) (out fleet.Host, reason string) {
	switch r.Verb {
	case fleet.Claim:
		h.Policy.Claimed = true
	case fleet.Release:
		h.Policy.Claimed = false
	case fleet.SetPolicy:
		if r.Policy == nil {
			return h, "the request has no policy in it; pagurus and its controller may be of different versions, see `pagurus version`"
		}
		if reason := r.Policy.Refused(); reason != "" {
			return h, reason
		}
		claimed := h.Policy.Claimed // only Claim and Release set this
		h.Policy = *r.Policy
		h.Policy.Claimed = claimed
	}
	return h, ""
}

// Adopt takes the policy that a host's owner has chosen at the machine. One that cannot be is not taken. The second result is false if there is
// none that is new.
func Adopt(h fleet.Host) (fleet.Host, bool) {
	o := h.Facts.Owner
	if o == nil || o.Wish == nil || o.Wish.ID == h.Wished || len(o.Wish.ID) > mostWishName {
		return h, false
	}
	h.Wished = o.Wish.ID
	if o.Wish.Policy.Refused() == "" {
		claimed := h.Policy.Claimed // only Claim and Release set this
		h.Policy = o.Wish.Policy
		h.Policy.Claimed = claimed
	}
	return h, true
}

// mostWishName bounds what is stored of a host's word.
const mostWishName = 64
