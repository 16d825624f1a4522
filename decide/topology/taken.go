package topology

import "pagurus/fleet"

// Taken is other guests' use of a host. The zero value is none.
type Taken struct {
	Pins  []int         // CPUs with a pinned guest CPU
	Rests []int         // CPUs for guests' remaining threads
	Bound map[int]int64 // bytes in small pages, by the ID of their node
	Pages map[Pool]int  // promised huge pages, allocated or not
}

// Pool is the huge pages of one size on one node.
type Pool struct {
	Node      int // its ID, or anyNode
	SizeBytes int64
}

// anyNode stands for memory that is not bound.
const anyNode = -1

// Add adds a guest's layout. CPUs that may run on several host CPUs occupy none.
func (t *Taken) Add(l fleet.Layout) {
	for _, p := range l.Pins {
		if len(p) == 1 {
			t.Pins = append(t.Pins, p[0])
		}
	}
	t.Rests = append(t.Rests, l.Rest...)
	for _, n := range l.Nodes {
		t.addMemory(n)
	}
}

func (t *Taken) addMemory(n fleet.LayoutNode) {
	node := anyNode
	if len(n.Hosts) == 1 {
		node = n.Hosts[0]
	}
	if n.PageBytes > 0 {
		if t.Pages == nil {
			t.Pages = map[Pool]int{}
		}
		t.Pages[Pool{node, n.PageBytes}] += int((n.MemoryBytes + n.PageBytes - 1) / n.PageBytes)
	} else if node != anyNode {
		if t.Bound == nil {
			t.Bound = map[int]int64{}
		}
		t.Bound[node] += n.MemoryBytes
	}
}

// boundTo is the memory bound to a node, in pages of all sizes.
func (t *Taken) boundTo(node int) int64 {
	sum := t.Bound[node]
	for p, n := range t.Pages {
		if p.Node == node {
			sum += int64(n) * p.SizeBytes
		}
	}
	return sum
}

// pages counts the pages of one size on all nodes.
func (t *Taken) pages(size int64) (sum int) {
	for p, n := range t.Pages {
		if p.SizeBytes == size {
			sum += n
		}
	}
	return sum
}
