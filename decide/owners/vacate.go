// This file decides when a host is emptied for its owner, when that ends, and what an
// owner may request. It must not know guests or moves; an emptied host drains as after a
// request. Its tests go through every state of an owner and every policy.

package owners

import (
	"cmp"
	"fmt"
	"slices"
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

// Limits of a policy. The kernel keeps 15 bytes of a program's name.
const (
	longestIdle    = 30 * 24 * time.Hour
	mostExclusive  = 64
	longestProgram = 15
	day            = 24 * time.Hour
)

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
		if reason := invalid(*r.Policy); reason != "" {
			return h, reason
		}
		claimed := h.Policy.Claimed // only Claim and Release set this
		h.Policy = *r.Policy
		h.Policy.Claimed = claimed
	}
	return h, ""
}

// invalid says what is wrong with a policy and how to fix it.
func invalid(p fleet.OwnerPolicy) string {
	bad := func(t time.Duration) bool { return t < 0 || t > day }
	switch {
	case p.Vacate != "" && p.Vacate != fleet.Evacuate && p.Vacate != fleet.Suspend && p.Vacate != fleet.Stay:
		return fmt.Sprintf("unknown action %q for guests when the owner stays; use --"+fleet.VacateFlag+" %s, %s or %s", p.Vacate, fleet.Evacuate, fleet.Suspend, fleet.Stay)
	case p.Nowhere != "" && (p.Nowhere != fleet.Suspend && p.Nowhere != fleet.Stay || p.Vacate != "" && p.Vacate != fleet.Evacuate):
		return fmt.Sprintf("guests that %s cannot %q where they find no room; use --"+fleet.VacateFlag+" %s,%s or %s,%s", cmp.Or(p.Vacate, "follow the cluster's policy"), p.Nowhere,
			fleet.Evacuate, fleet.Suspend, fleet.Evacuate, fleet.Stay)
	case p.IdleAfter < 0 || p.IdleAfter > longestIdle:
		return fmt.Sprintf("an owner cannot count as gone after %s; give --"+fleet.IdleAfterFlag+" something from 1s to %s", p.IdleAfter, longestIdle)
	case bad(p.Hours.From) || bad(p.Hours.To):
		return "hours are times of one day; give --" + fleet.HoursFlag + " something like 19:00-07:00"
	case p.Cap < 0 || p.Cap > 1:
		return fmt.Sprintf("guests cannot have %g %% of the CPUs; give --"+fleet.CapFlag+" something from 1%% to 100%%", 100*p.Cap)
	case p.Preset != "" && !slices.Contains(presence.Presets(), p.Preset):
		return fmt.Sprintf("there is no preset %q; use %s", p.Preset, strings.Join(presence.Presets(), " or "))
	case len(p.Exclusive) > mostExclusive:
		return fmt.Sprintf("%d programs are more than the %d that can be watched; name fewer", len(p.Exclusive), mostExclusive)
	}
	for _, name := range p.Exclusive {
		if name == "" || len(name) > longestProgram || strings.ContainsAny(name, "/\x00\n") {
			return fmt.Sprintf("%q cannot be the name of a running program; give the name that `ps -o comm` shows, at most %d characters", name, longestProgram)
		}
	}
	return ""
}
