package fleet

// Kind is the mechanism that runs a guest.
type Kind string

// The kinds of guest.
const (
	VM        Kind = "vm"        // a QEMU virtual machine
	Container Kind = "container" // a container moved with CRIU
	Xen       Kind = "xen"       // a domain of a Xen host
	Auto      Kind = "auto"      // of a JobSpec only: each host's best kind
)

// Usual is the kind of a job that names none.
const Usual = VM

// AutoMeans says which kind Auto becomes, for people; decide/placement chooses it.
const AutoMeans = "a vm where KVM works, else xen on a Xen host, else a container, else an emulated vm"

// KindTraits are the properties of a kind, for code that must not compare kinds.
type KindTraits struct {
	Kind             Kind
	LeastMemoryBytes int64  // minimum for a guest
	Tap              bool   // its port is a TAP device, otherwise one end of a veth pair
	MountsFiles      bool   // it mounts the job's files itself, otherwise its host shows them to it
	OwnClock         bool   // its clock stops while it is suspended
	OwnPageCache     bool   // its kernel has its own page cache
	SkipsZeroes      bool   // a copy does not send pages of zeroes
	Compresses       bool   // memory can be sent compressed
	ResidentOnly     bool   // only resident memory is sampled and sent
	MappingsCost     bool   // each mapping adds to its downtime
	Tunable          bool   // it can have a shape
	Passes           bool   // it can have a device of its host for itself
	CPUThreads       string // name prefix of its CPU threads; empty: all threads
}

// Kinds are the traits of all kinds. Debian's kernel does not boot with less than 128 MiB
// and a root file system in memory. A container needs 20 MiB for its guest agent and the
// launcher of its ranks.
var Kinds = [...]KindTraits{
	{Kind: VM, LeastMemoryBytes: 128 << 20, Tap: true, MountsFiles: true, OwnClock: true, OwnPageCache: true, SkipsZeroes: true, Compresses: true, Tunable: true, Passes: true, CPUThreads: "CPU "},
	{Kind: Container, LeastMemoryBytes: 32 << 20, ResidentOnly: true, MappingsCost: true},
	{Kind: Xen, LeastMemoryBytes: 128 << 20, MountsFiles: true, OwnClock: true, OwnPageCache: true},
}

// KindNames are the names of all kinds, the usual one first.
func KindNames() []string {
	var all []string
	for _, t := range Kinds {
		all = append(all, string(t.Kind))
	}
	return all
}

// Shown returns what a host can do with guests that it shows a job's files, and their kind. The
// other kinds mount the files themselves.
func (f Facts) Shown() (Kind, Abilities) {
	for _, t := range Kinds {
		if !t.MountsFiles {
			return t.Kind, f.Abilities[t.Kind]
		}
	}
	return "", Abilities{}
}

// Known reports whether guests can be of this kind.
func (k Kind) Known() bool {
	for i := range Kinds {
		if Kinds[i].Kind == k {
			return true
		}
	}
	return false
}

// Traits returns a kind's traits. An undecided kind has those of a virtual machine,
// because the guest may become one.
func (k Kind) Traits() KindTraits {
	for i := range Kinds {
		if Kinds[i].Kind == k {
			return Kinds[i]
		}
	}
	return Kinds[0]
}
