// Package fleet holds the nouns of Pagurus (hosts, guests, jobs, moves,
// networks, images) and the messages that pass between its parts.
//
// It imports nothing but the standard library, does no I/O and starts no
// goroutine. Every other package may import it. Each noun has one JSON form,
// used on the wire, in the store and by --json. Its tests run against nothing
// but itself.
package fleet

import "time"

// The identifiers are distinct types, so that a guest can never be passed
// where a host is wanted.
type (
	// HostID names a host: a machine that lends room to guests.
	HostID string
	// GuestID names a guest, for example "j7g2": guest 2 of job j7.
	GuestID string
	// JobID names a job, for example "j7".
	JobID string
	// MoveID names a move, for example "m12".
	MoveID string
	// MigrationID names one guest's part of a move, for example "m12.j7g2".
	MigrationID string
	// Digest is the content address of an image, "sha256-" and 64 hex digits.
	Digest string
	// RequestID is chosen by the caller, so that asking twice is asking once.
	RequestID string
)

// KVM is the Accelerator of a virtual machine that the processor itself runs.
const KVM = "kvm"

// Resources is what a guest needs and a host offers.
type Resources struct {
	CPUs        int   `json:"cpus"`         // virtual CPUs of a guest; cores of a host
	MemoryBytes int64 `json:"memory_bytes"` // memory of the guest itself, without the mechanism's own
}

// HostState is where a host is in its life. Package lifecycle owns it.
type HostState string

// The states of a host. Whether it is heard from is not a state but a fact.
const (
	HostUp       HostState = "up"
	HostDraining HostState = "draining" // is emptied and kept empty
)

// Host is a machine that runs guests. All but Facts is stored.
type Host struct {
	ID      HostID    `json:"id"`
	State   HostState `json:"state"`
	Since   time.Time `json:"since"`             // when State was entered
	Leave   Limits    `json:"leave,omitzero"`    // of the moves that empty it while it drains
	Address string    `json:"address,omitempty"` // last Facts.Address; stored, so that networks stand while a restarted controller waits for its agents
	Facts   Facts     `json:"facts"`             // what the host's agent last said; never stored

	Policy   OwnerPolicy `json:"policy,omitzero"`     // what its owner has agreed to
	ForOwner bool        `json:"for_owner,omitempty"` // it drains because its owner is there, until they go

	Credential Credential `json:"credential,omitzero"` // who its agent must prove to be

	IsolatedCPUs CPUSet `json:"isolated_cpus,omitempty"` // of its CPUs, those for guests alone; what its agent made of it is in Facts
}

// Facts is what an agent says of its host, about once a second. It is kept in
// memory only: after a controller's restart it is empty until the agent calls.
type Facts struct {
	SeenAt      time.Time                `json:"seen_at"`   // controller's clock; zero: not heard since the controller started
	Connected   bool                     `json:"connected"` // the agent's connection stands
	Version     string                   `json:"version,omitempty"`
	Machine     string                   `json:"machine,omitempty"` // same Machine, same files: /etc/machine-id or its stand-in
	Address     string                   `json:"address,omitempty"` // IP of the host on the network that hosts share
	Site        string                   `json:"site,omitempty"`    // where the host stands: a room, a rack; hosts of one site are near each other
	Capacity    Resources                `json:"capacity"`
	Abilities   map[Kind]Abilities       `json:"abilities,omitempty"`
	LoadCPUs    float64                  `json:"load_cpus"` // CPUs in use by guests, averaged over the last interval
	Guests      map[GuestID]GuestFacts   `json:"guests,omitempty"`
	Copies      map[MigrationID]Progress `json:"copies,omitempty"`    // migrations this host is the source of
	Troubles    []string                 `json:"troubles,omitempty"`  // what is wrong on the host, for people
	CPULimit    float64                  `json:"cpu_limit,omitempty"` // CPUs all guests together may use; 0 is no limit
	MemoryInUse int64                    `json:"memory_in_use_bytes,omitempty"`
	Owner       *Owner                   `json:"owner,omitempty"`     // nil: its agent has no sensors
	Topology    *Topology                `json:"topology,omitempty"`  // nil: its agent does not say
	Isolation   *Isolation               `json:"isolation,omitempty"` // nil: its agent does not say
}

// Abilities says what a driver can do on a host, as data, so that placement
// can ask without calling a driver.
type Abilities struct {
	Live        bool   `json:"live"`                   // can move a guest without stopping it
	PostCopy    bool   `json:"post_copy"`              // can run a guest before its memory has arrived
	NoPostCopy  string `json:"no_post_copy,omitempty"` // why not, and what to do about it, for people
	Preempt     bool   `json:"preempt,omitempty"`      // does so with what the guest waits for on a line of its own
	Compress    bool   `json:"compress,omitempty"`     // can send a guest's memory compressed, and take it in
	Files       bool   `json:"files,omitempty"`        // guests reach the files of jobs from other machines; those with a kernel of their own always do
	Accelerator string `json:"accelerator,omitempty"`  // "kvm" or "tcg" (software emulation)
	Version     string `json:"version,omitempty"`      // of QEMU or CRIU
	CPU         string `json:"cpu,omitempty"`          // CPU model guests see
	Processor   string `json:"processor,omitempty"`    // where guests see the host's own: what programs can see of it, words as in /proc/cpuinfo; a running guest may only go where none is missing
	Trouble     string `json:"trouble,omitempty"`      // why the kind cannot run here at all; then nothing else counts
}

// GuestFacts is what a host's agent measures of one guest.
type GuestFacts struct {
	Gen            uint64    `json:"gen"`
	Run            RunState  `json:"run"`
	ResidentBytes  int64     `json:"resident_bytes"`       // host memory the guest occupies
	HugeBytes      int64     `json:"huge_bytes,omitempty"` // of that, in huge pages which were set aside
	CPUs           float64   `json:"cpus"`                 // CPUs in use over the last interval
	StartedAt      time.Time `json:"started_at"`
	Profile        *Profile  `json:"profile,omitempty"`         // the last look at its memory; nil: none yet
	Seen           *Topology `json:"seen,omitempty"`            // what a guest that mirrors its host sees of itself; nil: it was not asked yet, or did not answer
	ReclaimedBytes int64     `json:"reclaimed_bytes,omitempty"` // of its memory, given back while the host's owner is there
	Suspended      bool      `json:"suspended,omitempty"`       // it is paused because the host's owner is there
	Obstacles      []string  `json:"obstacles,omitempty"`       // what was last seen to keep it from being moved, for people
	Layout         *Layout   `json:"layout,omitempty"`          // where its parts are, if it has a shape
}

// RunState is what the mechanism says of a guest on one host.
type RunState string

// The run states. Absent is also the answer for a guest never heard of.
const (
	Absent    RunState = "absent"
	Incoming  RunState = "incoming" // an empty shell that takes in state
	Suspended RunState = "suspended"
	Running   RunState = "running"
)
