package fleet

// Topology is what the processors and the memory of a host are made of.
type Topology struct {
	Nodes       []Node `json:"nodes"`                 // of memory, by ID
	Level       string `json:"level,omitempty"`       // of its CPUs: "x86-64-v3"
	Transparent bool   `json:"transparent,omitempty"` // the kernel makes huge pages of its own accord, or where it is asked to
}

// Node is memory, and the cores that are nearest to it. Either may be missing.
type Node struct {
	ID          int         `json:"id"`
	MemoryBytes int64       `json:"memory_bytes"`
	Distances   []int       `json:"distances,omitempty"` // to the nodes of the host in their order, 10 to itself
	Cores       []Core      `json:"cores,omitempty"`
	Huge        []HugePages `json:"huge,omitempty"`
}

// Core is a core with its hardware threads.
type Core struct {
	Socket int   `json:"socket"`
	CPUs   []int `json:"cpus"` // as the kernel numbers them
}

// HugePages are pages of one size that are set aside on a node.
type HugePages struct {
	SizeBytes int64 `json:"size_bytes"`
	Total     int   `json:"total"`
	Free      int   `json:"free"`
}

// Tune says what guests mirror of their hosts. The zero value is nothing: their
// CPUs float, and their memory is anywhere.
type Tune struct {
	NUMA bool `json:"numa,omitempty"` // nodes, sockets, cores and threads, with memory where the host has it
	Huge bool `json:"huge,omitempty"` // memory in huge pages
	Pin  bool `json:"pin,omitempty"`  // each CPU on a core of its own
}

// On reports whether anything is mirrored.
func (t Tune) On() bool { return t != Tune{} }

// Shape is what a guest sees of itself. It stays as it is for the guest's life,
// wherever it goes.
type Shape struct {
	Sockets int         `json:"sockets"`
	Cores   int         `json:"cores"`           // of a socket
	Threads int         `json:"threads"`         // of a core
	Nodes   []ShapeNode `json:"nodes,omitempty"` // empty: it sees none
	CPU     string      `json:"cpu,omitempty"`   // level that every host it may visit has: "x86-64-v2"; empty: what the driver takes
}

// ShapeNode is memory, and how many CPUs are nearest to it. The CPUs of a guest
// are in the order of its nodes.
type ShapeNode struct {
	CPUs        int   `json:"cpus"`
	MemoryBytes int64 `json:"memory_bytes"`
	Distances   []int `json:"distances,omitempty"`
}

// Layout is where the parts of a guest are on one host. It is planned again
// wherever the guest goes.
type Layout struct {
	Nodes []LayoutNode `json:"nodes,omitempty"` // of the shape, in its order; of a guest without nodes the one that all of it is
	Pins  [][]int      `json:"pins,omitempty"`  // by CPU of the guest: where it runs; empty: anywhere
	Rest  []int        `json:"rest,omitempty"`  // where all else of the guest runs, so that it takes no time of its CPUs; empty: anywhere
	Notes []string     `json:"notes,omitempty"` // what could not be given and why, for people
}

// LayoutNode is where memory is.
type LayoutNode struct {
	Hosts       []int `json:"hosts,omitempty"`        // nodes of the host; empty: any
	PageBytes   int64 `json:"page_bytes,omitempty"`   // of huge pages set aside; 0: none
	MemoryBytes int64 `json:"memory_bytes,omitempty"` // how much it is
}
