// Package fleet holds the nouns of Pagurus (hosts, guests, jobs, moves,
// networks, images) and the messages that pass between its parts.
//
// It imports only the standard library, does no I/O and starts no goroutine. Every other
// package may import it. Each noun has one JSON form, used on the wire, in the store and
// by --json.
package fleet

import "time"

// The identifiers are distinct types, so that the compiler tells guests from hosts.
type (
	// HostID names a host.
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
	// RequestID is chosen by the caller. A repeated request with the same ID has one
	// effect.
	RequestID string
)

// What a virtual machine runs with.
const (
	KVM = "kvm" // the processor's virtualisation
	TCG = "tcg" // emulation
)

// What an agent may be told that virtual machines run with, besides KVM and TCG.
const (
	AnyAccelerator = "auto"      // what works
	EmulationWord  = "emulation" // TCG
)

// AcceleratorOf is what such a word means: KVM, TCG, or empty for what works.
func AcceleratorOf(word string) string {
	switch word {
	case AnyAccelerator:
		return ""
	case EmulationWord:
		return TCG
	}
	return word
}

// Resources are what a guest needs and a host offers.
type Resources struct {
	CPUs        int   `json:"cpus"`         // virtual CPUs of a guest; cores of a host
	MemoryBytes int64 `json:"memory_bytes"` // of the guest alone, without the overhead of its mechanism

	Device Passthrough `json:"device,omitempty"` // of its host, which a guest has for itself; of a host: always empty
}

// HostState is a host's state. Package lifecycle defines the changes.
type HostState string

// The states of a host. Whether it is connected is a fact, not a state.
const (
	HostUp       HostState = "up"
	HostDraining HostState = "draining" // being emptied, and takes no new guests
)

// Host is a machine that runs guests. All but Facts is stored.
type Host struct {
	ID      HostID    `json:"id"`
	State   HostState `json:"state"`
	Since   time.Time `json:"since"`             // when State was entered
	Leave   Limits    `json:"leave,omitzero"`    // for the moves that empty it while it drains
	Address string    `json:"address,omitempty"` // last Facts.Address; stored, so that networks stay up while a restarted controller waits for agents

	WireGuard WireGuardEnd `json:"wireguard,omitzero"` // last of Facts.WireGuard; stored for the same reason

	Facts Facts `json:"facts"` // the agent's last report; never stored

	Boot   string    `json:"boot,omitempty"`  // last Facts.Boot; stored, so that a reboot is noticed
	Booted time.Time `json:"booted,omitzero"` // when it was first heard after a reboot; nothing that ran there before does now

	Losses []time.Time `json:"losses,omitempty"` // when it was lost while it took guests, the oldest first; package health decides
	Lost   bool        `json:"lost,omitempty"`   // it has not been heard since it was gone

	Lease time.Duration `json:"lease_ns,omitempty"` // no lease that its agent may have is longer; 0: it may have none, and is never gone

	Policy   OwnerPolicy `json:"policy,omitzero"`     // what its owner agreed to
	ForOwner bool        `json:"for_owner,omitempty"` // drains until its owner goes
	Wished   string      `json:"wished,omitempty"`    // the last OwnerWish that was taken

	ForHealth bool      `json:"for_health,omitempty"` // drains until its grave signs are over
	SignsSeen time.Time `json:"signs_seen,omitzero"`  // a person had it take guests again: signs until then count no more

	ForNotice bool      `json:"for_notice,omitempty"` // drains until no notice stands; package vacating decides
	EmptyBy   time.Time `json:"empty_by,omitzero"`    // a notice stands: then nothing should be on it any more, whoever had it drain
	Waived    []string  `json:"waived,omitempty"`     // notices that stood when a person had it take guests all the same

	Credential Credential `json:"credential,omitzero"` // who its agent must prove to be

	Number uint32 `json:"number,omitempty"` // its own in the cluster; its address in jobs' networks follows from it

	IsolatedCPUs CPUSet `json:"isolated_cpus,omitempty"` // of its CPUs, those for guests alone; what its agent made of it is in Facts
}

// Facts is what an agent reports about its host, about once a second. It is kept in
// memory only: after a controller's restart it is empty until the agent connects.
type Facts struct {
	SeenAt      time.Time                `json:"seen_at"`   // controller's clock; zero: no report since the controller started
	Connected   bool                     `json:"connected"` // the agent is connected
	Version     string                   `json:"version,omitempty"`
	Protocol    int                      `json:"protocol,omitempty"` // what the agent speaks, as Protocol
	Machine     string                   `json:"machine,omitempty"`  // hosts with the same Machine share files: /etc/machine-id or its substitute
	Address     string                   `json:"address,omitempty"`  // the host's IP on the network between hosts
	From        string                   `json:"from,omitempty"`     // the IP that the controller sees it call from; another one than Address: it is behind NAT, or has several; empty: from the controller's own machine
	Boot        string                   `json:"boot,omitempty"`     // names this boot of its machine; empty: older agents
	Site        string                   `json:"site,omitempty"`     // where the host is: a room, a rack
	Capacity    Resources                `json:"capacity"`
	Abilities   map[Kind]Abilities       `json:"abilities,omitempty"`
	LoadCPUs    float64                  `json:"load_cpus"` // CPUs in use by guests, averaged over the last interval
	Guests      map[GuestID]GuestFacts   `json:"guests,omitempty"`
	Copies      map[MigrationID]Progress `json:"copies,omitempty"`    // of migrations from this host
	Troubles    []string                 `json:"troubles,omitempty"`  // what is wrong on the host, for people
	CPULimit    float64                  `json:"cpu_limit,omitempty"` // total CPUs that guests may use; 0: no limit
	MemoryInUse int64                    `json:"memory_in_use_bytes,omitempty"`
	Owner       *Owner                   `json:"owner,omitempty"`     // nil: the agent has no sensors
	Topology    *Topology                `json:"topology,omitempty"`  // nil: not reported
	Speed       *Speed                   `json:"speed,omitempty"`     // nil: not reported
	Isolation   *Isolation               `json:"isolation,omitempty"` // nil: not reported
	Boots       *BootIsolation           `json:"boots,omitempty"`     // nil: its kernel isolates no CPU from its start, and will not
	WireGuard   *WireGuardFacts          `json:"wireguard,omitempty"` // nil: not reported
	Health      *Health                  `json:"health,omitempty"`    // nil: not reported
	Notices     *EndNotices              `json:"notices,omitempty"`   // nil: not reported, or nothing is known yet
	Internet    *Outlet                  `json:"internet,omitempty"`  // nil: not reported
	Lease       Lease                    `json:"lease,omitzero"`      // that the agent asks for, and has
	Vault       *VaultFacts              `json:"vault,omitempty"`     // nil: it has none
	Power       *Power                   `json:"power,omitempty"`     // nil: not reported
	Devices     []Device                 `json:"devices,omitempty"`   // that guests could have for themselves, and why not
	Shared      []Directory              `json:"shared,omitempty"`    // directories that the host shares with others anyway, with their sources
}

// Speed is what an agent measured of its host as it began. It stands in for past moves where
// there are none.
type Speed struct {
	CopyBytesPerSecond float64       `json:"copy_bytes_per_second"`           // of memory, by one core
	ScanBytesPerSecond float64       `json:"scan_bytes_per_second"`           // of memory that one core looks through
	ProcessStart       time.Duration `json:"process_start_ns"`                // processor time of a program that does nothing
	LinkBytesPerSecond float64       `json:"link_bytes_per_second,omitempty"` // of the interface with the host's address; 0: it does not say
}

// Abilities says what a driver can do on a host, so that placement need not call a
// driver.
type Abilities struct {
	Live         bool   `json:"live"`                    // can move a guest while it runs
	NoRounds     string `json:"no_rounds,omitempty"`     // why memory cannot be sent in rounds while a guest of here runs: all of it goes while it is suspended; empty: it can
	PostCopy     bool   `json:"post_copy"`               // can run a guest before its memory has arrived
	NoPostCopy   string `json:"no_post_copy,omitempty"`  // why not, and how to change that, for people
	Preempt      bool   `json:"preempt,omitempty"`       // post-copy can send requested pages over a separate connection
	Compress     bool   `json:"compress,omitempty"`      // can send and receive compressed memory
	VhostNet     bool   `json:"vhost_net,omitempty"`     // the kernel carries guests' frames, without QEMU
	Files        bool   `json:"files,omitempty"`         // the host's kernel can mount jobs' files of other machines; guests with their own kernel mount them themselves
	NoFiles      string `json:"no_files,omitempty"`      // why not, and how to change that, for people
	Checkpoint   bool   `json:"checkpoint,omitempty"`    // can write a running guest to files with a stop of milliseconds, and make a guest of them
	NoCheckpoint string `json:"no_checkpoint,omitempty"` // why not, and how to change that, for people
	Accelerator  string `json:"accelerator,omitempty"`   // "kvm" or "tcg" (software emulation)
	Emulated     string `json:"emulated,omitempty"`      // why guests are emulated, for people; empty: they are not
	Version      string `json:"version,omitempty"`       // of QEMU or CRIU
	CPU          string `json:"cpu,omitempty"`           // CPU model that guests see, if they see what the host has
	Model        string `json:"model,omitempty"`         // the CPU that guests which start here get, if hardware runs them: HostCPU, a level, or a model of QEMU's; empty: its agent knows HostCPU alone
	Lacks        string `json:"lacks,omitempty"`         // what the processor lacks of Model, for people; empty: nothing
	Processor    string `json:"processor,omitempty"`     // if guests see the host's own: its features, words as in /proc/cpuinfo; a running guest may move only to hosts that have all of them
	Trouble      string `json:"trouble,omitempty"`       // why the kind cannot run here at all; then no other field counts
}

// GuestFacts is what an agent measures of one guest.
type GuestFacts struct {
	Gen           uint64    `json:"gen"`
	Run           RunState  `json:"run"`
	ResidentBytes int64     `json:"resident_bytes"`       // host memory the guest occupies
	HugeBytes     int64     `json:"huge_bytes,omitempty"` // of that, in reserved huge pages
	CPUs          float64   `json:"cpus"`                 // CPUs in use over the last interval
	StartedAt     time.Time `json:"started_at"`

	CPUTime        time.Duration `json:"cpu_time_ns,omitempty"`     // processor time that it used on this host so far
	Profile        *Profile      `json:"profile,omitempty"`         // the last memory sample; nil: none yet
	Seen           *Topology     `json:"seen,omitempty"`            // what a guest that mirrors its host sees of itself; nil: not asked yet, or no answer
	ReclaimedBytes int64         `json:"reclaimed_bytes,omitempty"` // of its memory, reclaimed while the owner is present
	Suspended      bool          `json:"suspended,omitempty"`       // suspended because the owner is present
	Obstacles      []string      `json:"obstacles,omitempty"`       // what last prevented a move, for people
	Layout         *Layout       `json:"layout,omitempty"`          // its placement on the host's nodes and CPUs, if it has a shape
	Standby        string        `json:"standby,omitempty"`         // why a guest that asks for a virtual function of its host's card has virtio alone, for people; empty: it has one, or asks for none
	Said           *Said         `json:"said,omitempty"`            // what its programs say of its moves, and ask for; nil: nothing
	Slice          *TimeSlice    `json:"slice,omitempty"`           // nil: the scheduler's own
}

// TimeSlice is how long a guest's processors run before others do, if these want to.
type TimeSlice struct {
	Length time.Duration `json:"length_ns"`
	Why    string        `json:"why"` // for people
}

// RunState is a guest's state according to its driver.
type RunState string

// The run states. Absent is also the answer for an unknown guest.
const (
	Absent    RunState = "absent"
	Incoming  RunState = "incoming" // empty, receives state
	Suspended RunState = "suspended"
	Running   RunState = "running"
)
