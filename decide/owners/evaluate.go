package owners

import (
	"fmt"

	"pagurus/decide/placement"
	"pagurus/decide/state"
	"pagurus/fleet"
)

// HostVerdict is the policy's decision for all guests of a host.
type HostVerdict struct {
	Leave   bool            // empty the host while its owner is present, except for suspended guests
	Suspend []fleet.GuestID // suspend these guests
	Requeue []fleet.JobID   // requeue these jobs
}

// InForce is the policy for a host whose owner stays.
func InForce(h fleet.Host, r fleet.Rules) Policy {
	p, known := Named(string(h.Vacates(r)))
	if !known { // set by a newer controller
		p = evacuate{}
	}
	return p
}

// EvaluateHost applies the policy to a host's guests. Nothing changes while it is unknown
// what the owner does, or while they may be leaving.
func EvaluateHost(l *state.Index, h fleet.Host) HostVerdict {
	s, o := l.Snapshot(), h.Facts.Owner
	if o == nil || !placement.Heard(h, s.At) || o.State == fleet.OwnerLeaving {
		out := HostVerdict{Leave: h.ForOwner}
		for _, id := range l.GuestsAt(h.ID) {
			if g := s.Guests[id]; g.Suspended && g.State == fleet.GuestRunning {
				out.Suspend = append(out.Suspend, id)
			}
		}
		return out
	}
	policy := InForce(h, s.Cluster.Rules)
	if o.State != fleet.OwnerPresent || policy.Name() == string(fleet.Stay) {
		return HostVerdict{}
	}
	cases := Cases(l, h.ID, s.At)
	out := HostVerdict{Leave: policy.Moves() && h.ForOwner}
	for _, s := range cases {
		switch policy.Evaluate(s).Do {
		case Leave:
			out.Leave = true
		case Suspend:
			out.Suspend = append(out.Suspend, s.Guests...)
		case Requeue:
			out.Requeue = append(out.Requeue, s.Job)
		}
	}
	return out
}

// Waits reports whether a guest is suspended on a host that is being emptied for its
// owner. It leaves only when the policy says so for its own job. A requested drain moves
// it anyway.
func Waits(h fleet.Host, g fleet.Guest) bool { return h.ForOwner && g.Suspended }

// WhenLeaving says, for people, when a guest leaves a host that is being emptied.
func WhenLeaving(h fleet.Host, g fleet.Guest) string {
	if Waits(h, g) {
		return "when the policy says so, and is suspended until then"
	}
	return "when it is its turn"
}

// Explain gives, for people, the policy's decisions for a host's guests while its owner
// is present.
func Explain(l *state.Index, h fleet.Host) []string {
	s := l.Snapshot()
	if o := h.Facts.Owner; o == nil || o.State != fleet.OwnerPresent || !placement.Heard(h, s.At) {
		return nil
	}
	policy := InForce(h, s.Cluster.Rules)
	var out []string
	for _, s := range Cases(l, h.ID, s.At) {
		j := policy.Evaluate(s)
		out = append(out, fmt.Sprintf("By the policy %s those of job %s %s: %s.", policy.Name(), s.Job, words[j.Do], j.Why))
	}
	return out
}

// words describe the actions.
var words = map[Action]string{Stay: "stay", Leave: "leave", Suspend: "be suspended", Requeue: "end and begin again"}

// Invalid says what is invalid in a cluster's rules; empty: nothing.
func Invalid(r *fleet.Rules) string {
	if r == nil {
		return "the request has no rules in it; pagurus and its controller may be of different versions, see `pagurus version`"
	}
	return r.Refused()
}
