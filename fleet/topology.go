package fleet

// Topology is a host's processors and memory.
type Topology struct {
	Nodes       []Node `json:"nodes"`                 // of memory, by ID
	Level       string `json:"level,omitempty"`       // of its CPUs: "x86-64-v3"
	Transparent bool   `json:"transparent,omitempty"` // the kernel makes transparent huge pages, always or on request
}

// Node is a NUMA node: memory and its nearest cores. Either may be missing.
type Node struct {
	ID          int         `json:"id"`
	MemoryBytes int64       `json:"memory_bytes"`
	Distances   []int       `json:"distances,omitempty"` // to the host's nodes in order; 10 to itself
	Cores       []Core      `json:"cores,omitempty"`
	Huge        []HugePages `json:"huge,omitempty"`
}

// Core is a core with its hardware threads.
type Core struct {
	Socket int   `json:"socket"`
	CPUs   []int `json:"cpus"` // as the kernel numbers them
}

// HugePages are pages of one size reserved on a node.
type HugePages struct {
	SizeBytes int64 `json:"size_bytes"`
	Total     int   `json:"total"`
	Free      int   `json:"free"`
}

// Tune says what guests mirror of their hosts. With the zero value their CPUs float, and
// their memory is anywhere.
type Tune struct {
	NUMA bool `json:"numa,omitempty"` // nodes, sockets, cores and threads, with memory on the same nodes as the host
	Huge bool `json:"huge,omitempty"` // memory in huge pages
	Pin  bool `json:"pin,omitempty"`  // each CPU on a core of its own
}

// On reports whether anything is mirrored.
func (t Tune) On() bool { return t != Tune{} }

// Shape is the topology that a guest sees. It never changes, wherever the guest moves.
type Shape struct {
	Sockets int         `json:"sockets"`
	Cores   int         `json:"cores"`           // per socket
	Threads int         `json:"threads"`         // per core
	Nodes   []ShapeNode `json:"nodes,omitempty"` // empty: none
	CPU     string      `json:"cpu,omitempty"`   // level that all hosts it may visit have: "x86-64-v2"; empty: the driver's default
}

// ShapeNode is a node's memory and the number of its CPUs. A guest's CPUs are numbered in
// the order of its nodes.
type ShapeNode struct {
	CPUs        int   `json:"cpus"`
	MemoryBytes int64 `json:"memory_bytes"`
	Distances   []int `json:"distances,omitempty"`
}

// Layout is where a guest's parts are on one host. Each host plans its own.
type Layout struct {
	Nodes []LayoutNode `json:"nodes,omitempty"` // in the shape's order; without nodes one for the whole guest
	Pins  [][]int      `json:"pins,omitempty"`  // by guest CPU: the CPUs it may use; empty: any
	Rest  []int        `json:"rest,omitempty"`  // CPUs for the guest's other threads, so that they take no time from its CPUs; empty: any
	Notes []string     `json:"notes,omitempty"` // what could not be provided and why, for people
}

// LayoutNode is where a node's memory is.
type LayoutNode struct {
	Hosts       []int `json:"hosts,omitempty"`        // host's nodes; empty: any
	PageBytes   int64 `json:"page_bytes,omitempty"`   // of reserved huge pages; 0: none
	MemoryBytes int64 `json:"memory_bytes,omitempty"` // size of the memory
}
