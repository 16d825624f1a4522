package fleet

import (
	"fmt"
	"time"
)

// Lease is what an agent and the controller say to each other about a host's lease. While a host
// has one, something on it that needs no agent stops all of its guests when the lease ends, and
// each answer of the controller renews it. So after a lease and a margin of silence the
// controller knows that nothing runs there.
type Lease struct {
	Length time.Duration `json:"length_ns,omitempty"` // that the host asks for, or is granted; 0: none
	Held   time.Duration `json:"held_ns,omitempty"`   // the one in force on the host; 0: none is, and its guests run on whatever happens
	Asked  int64         `json:"asked,omitempty"`     // when the host asked, by a clock of its own; the controller repeats it, and the lease counts from then
}

// UsualLease is the lease of a host that names none. A restart or upgrade of an agent, a busy
// machine, a controller's failover and a reboot of the only controller's machine take less.
const UsualLease = 5 * time.Minute

// The bounds of a lease. A shorter one would end while a lost connection is noticed.
const (
	ShortestLease = 10 * time.Second
	LongestLease  = 24 * time.Hour
)

// NoLease is the word for no lease.
const NoLease = "off"

// RefusedLease says why a host cannot have a lease of this length; empty: it can, also none.
func RefusedLease(length time.Duration) string {
	if length != 0 && (length < ShortestLease || length > LongestLease) {
		return fmt.Sprintf("a lease lasts from %s to %s, or is %s", ShortDuration(ShortestLease), ShortDuration(LongestLease), NoLease)
	}
	return ""
}

// LeaseMargin is how much longer than its lease a host has to be silent. The clocks of two
// machines do not run at the same rate, and to stop guests takes a moment.
func LeaseMargin(lease time.Duration) time.Duration { return 5*time.Second + lease/20 }

// LongerLease returns the longer of two leases. None is the longest, since guests then run on.
func LongerLease(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return 0
	}
	return max(a, b)
}

// Silence is for how long this controller could have heard a host and did not. It counts from
// when the controller began to lead, or went on, if that was later. 0 if the clock was set back
// since.
func (s Snapshot) Silence(id HostID, at time.Time) time.Duration {
	f := s.Hosts[id].Facts
	last := f.SeenAt
	switch {
	case last.After(at) && f.Connected:
		return 0
	case last.After(at), s.LedSince.After(last):
		last = s.LedSince
	}
	return max(0, at.Sub(last))
}

// Gone reports whether nothing runs on a host any more, for certain: its lease is over.
func (s Snapshot) Gone(id HostID, at time.Time) bool {
	lease := s.Hosts[id].Lease
	return lease > 0 && s.Silence(id, at) > lease+LeaseMargin(lease)
}
