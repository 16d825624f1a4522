package overlay

import (
	"fmt"
	"maps"
	"slices"
	"sort"
)

// Verb is the kind of a Change.
type Verb string

// The verbs of a change.
const (
	addLink         Verb = "add link"
	setLink         Verb = "set link"
	deleteLink      Verb = "delete link"
	setForward      Verb = "set forward"
	deleteForward   Verb = "delete forward"
	setTunnel       Verb = "set tunnel"
	deleteTunnel    Verb = "delete tunnel"
	setNeighbour    Verb = "set neighbour"
	deleteNeighbour Verb = "delete neighbour"
	setArrival      Verb = "set arrival"
	deleteArrival   Verb = "delete arrival"
	setGateIn       Verb = "let in"
	setGateOut      Verb = "let out"
)

// Change is one step from one state to another. Links use only Key.Link and Link, entries
// Key and Value.
type Change struct {
	Verb  Verb
	Key   Key
	Link  Link
	Value string
}

// String formats the change on one line.
func (c Change) String() string {
	switch c.Verb {
	case addLink, setLink:
		return fmt.Sprintf("%s %s %s", c.Verb, c.Key.Link, c.Link)
	case deleteLink:
		return fmt.Sprintf("%s %s", c.Verb, c.Key.Link)
	case setForward, setTunnel, setNeighbour, setArrival:
		return fmt.Sprintf("%s %s %s -> %s", c.Verb, c.Key.Link, c.Key.Addr, c.Value)
	case setGateIn, setGateOut:
		return fmt.Sprintf("%s %s -> %s", c.Verb, c.Key.Link, c.Value)
	default:
		return fmt.Sprintf("%s %s %s", c.Verb, c.Key.Link, c.Key.Addr)
	}
}

// Diff returns the changes from have to want, in the order to apply them. It is pure.
// Between two of them, frames for a guest go the old way or the new one. So the tunnel's
// entry, or a port, is made before frames are sent to it, and removed after they are sent
// elsewhere. No tunnel is made before the gate is closed to others, and none is shut out that does not
// tag its frames yet.
func Diff(have, want State) []Change {
	dropped, changes, last := linkChanges(have, want)
	have = have.without(dropped)
	return slices.Concat(settings(setGateIn, have.GateIn, want.GateIn), changes, settings(setGateOut, have.GateOut, want.GateOut),
		settings(setTunnel, have.Tunnel, want.Tunnel),
		settings(setArrival, have.Arrivals, want.Arrivals),
		settings(setForward, have.Forward, want.Forward),
		settings(setNeighbour, have.Neighbours, want.Neighbours),
		deletions(deleteNeighbour, have.Neighbours, want.Neighbours),
		deletions(deleteForward, have.Forward, want.Forward),
		deletions(deleteTunnel, have.Tunnel, want.Tunnel),
		deletions(deleteArrival, have.Arrivals, want.Arrivals),
		last)
}

// linkChanges returns the link changes to make first and last, and the links whose
// entries the kernel removes with them.
func linkChanges(have, want State) (dropped map[string]bool, first, last []Change) {
	deleted := map[string]bool{}
	var add, set []Change
	for _, name := range sorted(have.Links) {
		h := have.Links[name]
		w, wanted := want.Links[name]
		if wanted && h.Kind == w.Kind && h.Tunnel == w.Tunnel || follows(name, have, want) {
			continue
		}
		deleted[name] = true
		if remove := (Change{Verb: deleteLink, Key: Key{Link: name}}); wanted {
			first = append(first, remove) // its replacement has the same name
		} else {
			last = append(last, remove)
		}
	}
	dropped = maps.Clone(deleted)
	for _, name := range sorted(want.Links) {
		h, w := have.Links[name], want.Links[name]
		if h.Kind == "" || deleted[name] {
			add = append(add, Change{Verb: addLink, Key: Key{Link: name}, Link: w})
			continue
		}
		if deleted[h.Master] {
			h.Master = ""
		}
		if w.PeerMAC = h.PeerMAC; h != w {
			set = append(set, Change{Verb: setLink, Key: Key{Link: name}, Link: w})
		}
		if h.Master != w.Master {
			dropped[name] = true
		}
	}
	// Ports are removed before their bridge and made after it.
	sort.SliceStable(last, func(i, j int) bool { return !isBridge(last[i], have) && isBridge(last[j], have) })
	sort.SliceStable(add, func(i, j int) bool { return isBridge(add[i], want) && !isBridge(add[j], want) })
	return dropped, slices.Concat(first, add, set), last
}

// follows reports whether a link is a pair's other end, or a port's queue, and that port
// exists and is wanted. Such a link is made and removed with its port, wherever it is.
func follows(name string, have, want State) bool {
	if !followers.MatchString(name) {
		return false
	}
	by := leads[name[:3]]
	lead := by.lead + name[3:]
	return have.Links[name].Kind == by.kind && have.Links[lead].Kind == pairKind && want.Links[lead].Kind == pairKind
}

func isBridge(c Change, s State) bool { return s.Links[c.Key.Link].Kind == bridgeKind }

// without returns the state after the kernel has removed all entries on these links, or
// leading to them.
func (s State) without(links map[string]bool) State {
	left := newState()
	left.Links, left.GateIn, left.GateOut = s.Links, s.GateIn, s.GateOut
	for k, port := range s.Forward {
		if !links[k.Link] && !links[port] {
			left.Forward[k] = port
		}
	}
	for k, v := range s.Tunnel {
		if !links[k.Link] {
			left.Tunnel[k] = v
		}
	}
	for k, v := range s.Neighbours {
		if !links[k.Link] {
			left.Neighbours[k] = v
		}
	}
	for k, v := range s.Arrivals {
		if !links[k.Link] {
			left.Arrivals[k] = v // an entry to a remade port is found at the next reading
		}
	}
	return left
}

func settings(verb Verb, have, want map[Key]string) []Change {
	var changes []Change
	for _, k := range sortedKeys(want) {
		if v, ok := have[k]; !ok || v != want[k] {
			changes = append(changes, Change{Verb: verb, Key: k, Value: want[k]})
		}
	}
	return changes
}

func deletions(verb Verb, have, want map[Key]string) []Change {
	var changes []Change
	for _, k := range sortedKeys(have) {
		if _, ok := want[k]; !ok {
			changes = append(changes, Change{Verb: verb, Key: k, Value: have[k]})
		}
	}
	return changes
}
