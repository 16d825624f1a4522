package overlay

import (
	"fmt"
	"maps"
	"slices"
	"sort"
)

// Verb is what a Change does.
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
)

// Change is one step from one state to another. For links only Key.Link and
// Link count, for entries Key and Value.
type Change struct {
	Verb  Verb
	Key   Key
	Link  Link
	Value string
}

// String is the change on one line.
func (c Change) String() string {
	switch c.Verb {
	case addLink, setLink:
		return fmt.Sprintf("%s %s %s", c.Verb, c.Key.Link, c.Link)
	case deleteLink:
		return fmt.Sprintf("%s %s", c.Verb, c.Key.Link)
	case setForward, setTunnel, setNeighbour, setArrival:
		return fmt.Sprintf("%s %s %s -> %s", c.Verb, c.Key.Link, c.Key.Addr, c.Value)
	default:
		return fmt.Sprintf("%s %s %s", c.Verb, c.Key.Link, c.Key.Addr)
	}
}

// Diff gives the changes that turn have into want, in the order in which they
// are to be made. It is pure. Between two of them frames for a guest go the old
// way or the new one, never nowhere: the tunnel's entry is there before frames
// are led into it and goes after they are led elsewhere, and so does a port.
func Diff(have, want State) []Change {
	dropped, changes, last := linkChanges(have, want)
	have = have.without(dropped)
	return slices.Concat(changes,
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

// linkChanges gives the changes of links that come first and those that come
// last, and names the links whose entries the kernel drops with that.
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
			first = append(first, remove) // its successor has the same name
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
	// Ports go before their bridge and come after it.
	sort.SliceStable(last, func(i, j int) bool { return !isBridge(last[i], have) && isBridge(last[j], have) })
	sort.SliceStable(add, func(i, j int) bool { return isBridge(add[i], want) && !isBridge(add[j], want) })
	return dropped, slices.Concat(first, add, set), last
}

// follows reports whether a link is the far end of a pair, or the queue of a
// port, that is there and wanted. Wherever it is, it comes and goes with that.
func follows(name string, have, want State) bool {
	if !followers.MatchString(name) {
		return false
	}
	by := leads[name[:3]]
	lead := by.lead + name[3:]
	return have.Links[name].Kind == by.kind && have.Links[lead].Kind == pairKind && want.Links[lead].Kind == pairKind
}

func isBridge(c Change, s State) bool { return s.Links[c.Key.Link].Kind == bridgeKind }

// without gives the state after the kernel has dropped all entries on, or
// leading to, these links.
func (s State) without(links map[string]bool) State {
	left := newState()
	left.Links = s.Links
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
			left.Arrivals[k] = v // one that led to a port made again is seen when read again
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
