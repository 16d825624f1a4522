package state

import (
	"cmp"
	"slices"
	"time"

	"pagurus/fleet"
)

// known notes that there is a host, or no longer.
func (l *Index) known(id fleet.HostID, there bool) {
	i, is := slices.BinarySearch(l.hosts, id)
	switch {
	case there && !is:
		l.hosts = slices.Insert(l.hosts, i, id)
	case !there && is:
		l.hosts = slices.Delete(l.hosts, i, i+1)
	}
}

// line is a list ordered by time, equals by name. Elements are mostly added at the end
// and removed at the beginning.
type line[K cmp.Ordered] []timed[K]

type timed[K cmp.Ordered] struct {
	at time.Time
	id K
}

func (l *line[K]) add(at time.Time, id K, by int) {
	i, found := slices.BinarySearchFunc(*l, timed[K]{at, id}, func(a, b timed[K]) int {
		if c := a.at.Compare(b.at); c != 0 {
			return c
		}
		return cmp.Compare(a.id, b.id)
	})
	switch {
	case by > 0 && !found:
		*l = slices.Insert(*l, i, timed[K]{at, id})
	case by < 0 && found && i == 0:
		*l = (*l)[1:]
	case by < 0 && found:
		*l = slices.Delete(*l, i, i+1)
	}
}

// last returns the last most elements.
func (l line[K]) last(most int) line[K] { return l[max(0, len(l)-most):] }

// list keeps lists in a map without empty ones.
func list[K, V comparable](m map[K][]V, k K, v V, by int) {
	if by > 0 {
		m[k] = append(m[k], v)
		return
	}
	of := m[k]
	if i := slices.Index(of, v); i >= 0 {
		of[i] = of[len(of)-1]
		of = of[:len(of)-1]
	}
	if m[k] = of; len(of) == 0 {
		delete(m, k)
	}
}
