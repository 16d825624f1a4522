package fleet

// Kind names the mechanism that runs a guest.
type Kind string

// The kinds of guest.
const (
	VM        Kind = "vm"        // a QEMU virtual machine
	Container Kind = "container" // a container moved with CRIU
	Auto      Kind = "auto"      // of a JobSpec only: each guest is of the kind that suits its host best
)

// KindTraits is what follows from a guest's kind, as data for code that must not compare
// kinds.
type KindTraits struct {
	Kind             Kind
	LeastMemoryBytes int64  // that a guest needs
	Tap              bool   // its port is a TAP device, not one end of a veth pair
	MountsFiles      bool   // it mounts the job's files from the file server; otherwise it sees them where they are
	OwnClock         bool   // its clock stops while it is suspended
	OwnPageCache     bool   // its kernel keeps a page cache of its own
	Compresses       bool   // its memory can be sent compressed
	ResidentOnly     bool   // only resident memory is sampled and sent
	MappingsCost     bool   // each memory mapping adds to its downtime
	Tunable          bool   // it can be given the shape of its host
	CPUThreads       string // the prefix of the names of threads that are its CPUs; empty: all threads
}

// Kinds are the traits of all kinds. Debian's kernel does not boot below 128 MiB with a root
// file system in memory. A container needs 20 MiB for its guest agent and the launcher of
// its ranks.
var Kinds = [...]KindTraits{
	{Kind: VM, LeastMemoryBytes: 128 << 20, Tap: true, MountsFiles: true, OwnClock: true, OwnPageCache: true, Compresses: true, Tunable: true, CPUThreads: "CPU "},
	{Kind: Container, LeastMemoryBytes: 32 << 20, ResidentOnly: true, MappingsCost: true},
}

// KindNames are the names of all kinds, the usual one first.
func KindNames() []string {
	var all []string
	for _, t := range Kinds {
		all = append(all, string(t.Kind))
	}
	return all
}

// Known reports whether guests can be of this kind.
func (k Kind) Known() bool {
	for _, t := range Kinds {
		if t.Kind == k {
			return true
		}
	}
	return false
}

// Traits gives the traits of a kind. A guest of a kind that is left open may become a
// virtual machine, so it has that one's.
func (k Kind) Traits() KindTraits {
	for _, t := range Kinds {
		if t.Kind == k {
			return t
		}
	}
	return Kinds[0]
}
