package state

import (
	"cmp"
	"slices"
)

// Overlay is a map with changes on top, and never changes the map below. A few changes
// are in a list, which is cheaper than a map; more have an index.
type Overlay[K cmp.Ordered, V any] struct {
	base    map[K]V
	changes []Change[K, V] // one for each key
	index   map[K]int      // into changes; empty while they are few
}

// Change is an element's new value, or its removal.
type Change[K cmp.Ordered, V any] struct {
	ID   K
	Is   V
	Gone bool
}

// FewChanges is how many changes are searched faster without an index.
const FewChanges = 20

// roomy is the largest buffer of changes that is kept.
const roomy = 64

// Reuse starts again over a map, with the existing buffers. Earlier results of Changes
// become invalid.
func (l *Overlay[K, V]) Reuse(base map[K]V) {
	l.base = base
	if len(l.changes) == 0 {
		return
	}
	if cap(l.changes) > roomy {
		*l = Overlay[K, V]{base: base}
		return
	}
	clear(l.changes)
	clear(l.index)
	l.changes = l.changes[:0]
}

// Changes returns the changes, unordered, for reading.
func (l *Overlay[K, V]) Changes() []Change[K, V] { return l.changes }

// Find returns an element's present value, and false if there is none.
func (l *Overlay[K, V]) Find(k K) (V, bool) {
	if i := l.place(k); i >= 0 {
		return l.changes[i].Is, !l.changes[i].Gone
	}
	v, ok := l.base[k]
	return v, ok
}

// At is Find with the zero value for a missing element.
func (l *Overlay[K, V]) At(k K) V { v, _ := l.Find(k); return v }

// Put sets an element.
func (l *Overlay[K, V]) Put(k K, v V) { *l.change(k) = Change[K, V]{ID: k, Is: v} }

// Drop removes an element.
func (l *Overlay[K, V]) Drop(k K) { *l.change(k) = Change[K, V]{ID: k, Gone: true} }

// place is an element's index in changes; -1: unchanged.
func (l *Overlay[K, V]) place(k K) int {
	if len(l.index) > 0 {
		if i, changed := l.index[k]; changed {
			return i
		}
		return -1
	}
	for i := range l.changes {
		if l.changes[i].ID == k {
			return i
		}
	}
	return -1
}

// change returns the place for an element's new value.
func (l *Overlay[K, V]) change(k K) *Change[K, V] {
	if i := l.place(k); i >= 0 {
		return &l.changes[i]
	}
	i := len(l.changes)
	if i == 1 { // more than one usually means a whole job
		l.changes = slices.Grow(l.changes, FewChanges)
	}
	l.changes = append(l.changes, Change[K, V]{})
	switch {
	case i == FewChanges:
		if l.index == nil {
			l.index = make(map[K]int, 4*FewChanges)
		}
		for at := range l.changes[:i] {
			l.index[l.changes[at].ID] = at
		}
		l.index[k] = i
	case i > FewChanges:
		l.index[k] = i
	}
	return &l.changes[i]
}

// Changed returns the new and changed elements and the removed keys, both sorted by ID.
func (l *Overlay[K, V]) Changed() (put []V, gone []K) {
	switch {
	case len(l.changes) == 0:
		return nil, nil
	case len(l.changes) == 1 && !l.changes[0].Gone:
		return []V{l.changes[0].Is}, nil
	}
	order, sorted := make([]int, len(l.changes)), true
	for i := range order {
		order[i] = i
		sorted = sorted && (i == 0 || l.changes[i-1].ID < l.changes[i].ID)
	}
	if !sorted {
		slices.SortFunc(order, func(a, b int) int { return cmp.Compare(l.changes[a].ID, l.changes[b].ID) })
	}
	for _, i := range order {
		if c := &l.changes[i]; c.Gone {
			gone = append(gone, c.ID)
		} else {
			if put == nil {
				put = make([]V, 0, len(order))
			}
			put = append(put, c.Is)
		}
	}
	return put, gone
}
