package fleet

import (
	"fmt"
	"time"
)

// SignKind is a kind of sign that a host may fail.
type SignKind string

// The kinds of signs. decide/health has the limits from which they count.
const (
	MemoryFaults     SignKind = "uncorrected memory errors"
	MemoryErrors     SignKind = "corrected memory errors"
	MachineChecks    SignKind = "machine checks"
	DiskErrors       SignKind = "disk errors"
	FileSystemErrors SignKind = "file system errors"
	SwapStorm        SignKind = "swap storm"
	LinkErrors       SignKind = "link errors"
	LinkFlaps        SignKind = "link losses"
	Throttling       SignKind = "thermal throttling"
	CheckFailed      SignKind = "health check"
	ProgramRemarks   SignKind = "remarks of programs" // Count is of guests; the controller finds it, not the host
)

// Counter is one of the kernel's counters on a host. It only grows, until the machine is booted or the device is replaced.
type Counter struct {
	Kind  SignKind `json:"kind"`
	Where string   `json:"where,omitempty"` // the device: "sda", "eth0"; empty: the machine
	Total uint64   `json:"total"`
}

// Sign is something that says that a host may fail soon.
type Sign struct {
	Kind  SignKind  `json:"kind"`
	Where string    `json:"where,omitempty"` // as in Counter
	Count uint64    `json:"count,omitempty"` // within the time for which its kind counts
	Since time.Time `json:"since"`           // of the host's clock
	Last  time.Time `json:"last"`
	Says  string    `json:"says,omitempty"` // the last line of a check that failed
	Grave bool      `json:"grave"`          // guests should not stay
}

// HealthPolicy is what follows from grave signs.
type HealthPolicy string

// The policies.
const (
	HealthDrain HealthPolicy = "drain" // the host drains until they are over
	HealthWarn  HealthPolicy = "warn"  // they are only shown
	HealthOff   HealthPolicy = "off"   // nobody looks
)

// HealthPolicies are all of them, the usual one first.
var HealthPolicies = []HealthPolicy{HealthDrain, HealthWarn, HealthOff}

// Health is what an agent says of its host's health.
type Health struct {
	Policy HealthPolicy `json:"policy"`
	Signs  []Sign       `json:"signs,omitempty"`
	Blind  []string     `json:"blind,omitempty"` // what cannot be looked at here, for people
}

// Latest is when the last grave sign was seen, by the host's clock.
func (h *Health) Latest() (at time.Time) {
	if h == nil {
		return at
	}
	for _, s := range h.Signs {
		if s.Grave && s.Last.After(at) {
			at = s.Last
		}
	}
	return at
}

// Grave reports whether the host should be emptied: it has a grave sign that was seen after a person took those before for no
// reason.
func (h *Health) Grave(after time.Time) bool {
	if h == nil || h.Policy != HealthDrain {
		return false
	}
	for _, s := range h.Signs {
		if s.Grave && s.Last.After(after) {
			return true
		}
	}
	return false
}

// Sentence says the sign in words, as the part of a sentence.
func (s Sign) Sentence() string {
	where := ""
	if s.Where != "" {
		where = " of " + s.Where
	}
	switch s.Kind {
	case CheckFailed:
		if s.Says == "" {
			return "its health check fails"
		}
		return fmt.Sprintf("its health check fails: %s", s.Says)
	case ProgramRemarks:
		return fmt.Sprintf("the programs of %d guests say that something is ill", s.Count)
	case SwapStorm:
		return fmt.Sprintf("it read %d pages from swap within a minute", s.Count)
	}
	return fmt.Sprintf("it counted %d %s%s", s.Count, s.Kind, where)
}
