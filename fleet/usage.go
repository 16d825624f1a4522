package fleet

import (
	"strings"
	"time"
)

// Usage is what guests used: amounts that add up.
type Usage struct {
	CPUSeconds        float64 `json:"cpu_seconds"`                   // that processors worked for them
	HeldCPUSeconds    float64 `json:"held_cpu_seconds"`              // their CPUs, times how long they were there
	MemoryByteSeconds float64 `json:"memory_byte_seconds"`           // host memory that they occupied, times how long
	HeldByteSeconds   float64 `json:"held_memory_byte_seconds"`      // memory that was theirs, times how long
	Moves             int     `json:"moves,omitempty"`               // that finished
	MovedBytes        int64   `json:"moved_bytes,omitempty"`         // sent for these
	BlackoutSeconds   float64 `json:"blackout_seconds,omitempty"`    // that they did not run because of these
	SuspendedSeconds  float64 `json:"suspended_seconds,omitempty"`   // that they were suspended for a host's owner
	Joules            float64 `json:"joules,omitempty"`              // their part of what their hosts' processors used, where hosts tell
	MeteredCPUSeconds float64 `json:"metered_cpu_seconds,omitempty"` // of CPUSeconds, those that Joules is about
}

// Plus is the sum.
func (u Usage) Plus(v Usage) Usage {
	return Usage{
		u.CPUSeconds + v.CPUSeconds, u.HeldCPUSeconds + v.HeldCPUSeconds, u.MemoryByteSeconds + v.MemoryByteSeconds, u.HeldByteSeconds + v.HeldByteSeconds,
		u.Moves + v.Moves, u.MovedBytes + v.MovedBytes, u.BlackoutSeconds + v.BlackoutSeconds, u.SuspendedSeconds + v.SuspendedSeconds,
		u.Joules + v.Joules, u.MeteredCPUSeconds + v.MeteredCPUSeconds,
	}
}

// StoppedSeconds is how long guests stood still: moved, or suspended for an owner.
func (u Usage) StoppedSeconds() float64 { return u.BlackoutSeconds + u.SuspendedSeconds }

// UsageID names a record of usage: its period, and whose it is.
type UsageID string

// Periods of records of usage, in UTC.
const (
	UsageDay   = "2006-01-02" // of one job
	UsageMonth = "2006-01"    // of all jobs of a user on a host, when their days are too old or too many to keep
)

// UsageRecord is what one job used on a day, or all jobs of one user on one host in a month.
type UsageRecord struct {
	Period string           `json:"period"`
	UID    uint32           `json:"uid"`
	Job    JobID            `json:"job,omitempty"`  // empty: of a month
	Born   int64            `json:"born,omitempty"` // of the job
	Hosts  map[HostID]Usage `json:"hosts"`
	About  *UsedBy          `json:"about,omitempty"` // nil: of a month
	Read   []UsageReading   `json:"read,omitempty"`  // the last reading of each guest on each host, while it may be there
	Moved  []MigrationID    `json:"moved,omitempty"` // migrations that are counted in it and that the controller still knows
}

// ID names the record.
func (r UsageRecord) ID() UsageID {
	if r.Job != "" {
		return UsageID(r.Period + "/" + string(r.Job) + "/" + hexOf(uint64(r.Born)))
	}
	host := HostID("")
	for host = range r.Hosts { // it has one
	}
	return UsageID(r.Period + "/" + hexOf(uint64(r.UID)) + "/" + string(host))
}

// hexOf writes a number in few characters.
func hexOf(n uint64) string {
	const digits = "0123456789abcdef"
	var out []byte
	for ; n > 0 || len(out) == 0; n >>= 4 {
		out = append([]byte{digits[n&15]}, out...)
	}
	return string(out)
}

// Sum is what the record has of all hosts.
func (r UsageRecord) Sum() (u Usage) {
	for _, of := range r.Hosts {
		u = u.Plus(of)
	}
	return u
}

// Daily reports whether the record is one job's on one day.
func (r UsageRecord) Daily() bool { return r.Job != "" }

// Begins is when the period begins.
func (r UsageRecord) Begins() time.Time {
	form := UsageMonth
	if strings.Count(r.Period, "-") == 2 {
		form = UsageDay
	}
	t, _ := time.Parse(form, r.Period)
	return t
}

// UsageReading is what a host's counter of a guest's processor time last said.
type UsageReading struct {
	Guest   GuestID       `json:"guest"`
	Host    HostID        `json:"host"`
	Started time.Time     `json:"started"` // the guest on that host, by its clock: another one has a counter of its own
	CPU     time.Duration `json:"cpu_ns"`
	At      time.Time     `json:"at"`
}

// UsedBy is what a record says of its job, which the cluster forgets sooner.
type UsedBy struct {
	Name      string        `json:"name"` // of its program, without folders
	GID       uint32        `json:"gid"`
	Guests    int           `json:"guests"`
	Ranks     int           `json:"ranks"`
	Need      Resources     `json:"need"` // of each guest
	Time      time.Duration `json:"time_ns,omitempty"`
	Kind      Kind          `json:"kind,omitempty"`
	Submitted time.Time     `json:"submitted"`
	Started   time.Time     `json:"started,omitzero"`
	Ended     time.Time     `json:"ended,omitzero"`
	Result    JobResult     `json:"result,omitempty"`
	Exit      *Exit         `json:"exit,omitempty"`
	LostWith  HostID        `json:"lost_with,omitempty"`
	Overran   bool          `json:"overran,omitempty"` // its time was over
}

// UsageAnswer is the controller's answer to a question for usage.
type UsageAnswer struct {
	At      time.Time         `json:"at"`      // until when it is counted
	Cluster string            `json:"cluster"` // its name
	Records []UsageRecord     `json:"records"` // oldest first
	Users   map[uint32]UserID `json:"users,omitempty"`
	NoPower map[HostID]string `json:"no_power,omitempty"` // why a host does not tell the energy that it uses
}

// Power is what a host's processors used, by their own counters (RAPL).
type Power struct {
	Joules  float64       `json:"joules"`            // since the agent began
	Worked  time.Duration `json:"worked_ns"`         // that its CPUs worked, for anybody, since then
	Trouble string        `json:"trouble,omitempty"` // why it does not tell, for people; then the others are 0
}
