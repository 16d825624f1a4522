package owners

import (
	"fmt"

	"pagurus/decide/placement"
	"pagurus/decide/state"
	"pagurus/fleet"
)

// HostVerdict is what the policy in force makes of all guests of a host.
type HostVerdict struct {
	Leave   bool            // the host is emptied as long as its owner is there, of all but those that are suspended
	Suspend []fleet.GuestID // is to be suspended
	Requeue []fleet.JobID   // shall begin again
}

// InForce is the policy for a host whose owner stays.
func InForce(h fleet.Host, r fleet.Rules) Policy {
	p, known := Named(string(h.Vacates(r)))
	if !known { // a newer controller's
		p = evacuate{}
	}
	return p
}

// EvaluateHost asks the policy in force about a host's guests. Nothing changes while it
// is not known what the owner does, or while they may be leaving.
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

// Waits reports whether a guest is suspended on a host that is emptied for its
// owner: it leaves when the policy says so, which judges each job by itself, and
// not because others do. Who has a host drained by hand wants it empty of all.
func Waits(h fleet.Host, g fleet.Guest) bool { return h.ForOwner && g.Suspended }

// WhenLeaving says, for people, when a guest leaves a host that is emptied.
func WhenLeaving(h fleet.Host, g fleet.Guest) string {
	if Waits(h, g) {
		return "when the policy says so, and is suspended until then"
	}
	return "when it is its turn"
}

// Explain says, for people, what the policy in force thinks of a host's guests,
// whose owner stays.
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

// words are what guests do.
var words = map[Action]string{Stay: "stay", Leave: "leave", Suspend: "be suspended", Requeue: "end and begin again"}

// Invalid says what of a cluster's rules means nothing; empty: all means
// something.
func Invalid(r *fleet.Rules) string {
	if r == nil {
		return "the request has no rules in it; pagurus and its controller may be of different versions, see `pagurus version`"
	}
	if _, known := Named(string(r.Vacate)); !known && r.Vacate != "" {
		return fmt.Sprintf("there is no policy %q; `pagurus policy ls` lists them", r.Vacate)
	}
	if _, known := placement.Named(r.Placement); !known {
		return fmt.Sprintf("unknown placement %q; use spread or longest-idle", r.Placement)
	}
	return ""
}
