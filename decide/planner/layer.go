package planner

import (
	"cmp"
	"slices"
)

// layer is a map with changes laid over it. A Step changes a few things mostly:
// a list holds them at less cost than a map, and more than a few have an index.
type layer[K cmp.Ordered, V any] struct {
	base    map[K]V
	changes []change[K, V] // each thing once
	index   map[K]int      // into changes; nil while they are few
}

// change is what one thing is now, or that it is gone.
type change[K cmp.Ordered, V any] struct {
	id   K
	is   V
	gone bool
}

// few is how many changes are looked through faster than an index.
const few = 12

func newLayer[K cmp.Ordered, V any](base map[K]V) layer[K, V] { return layer[K, V]{base: base} }

// place is where in changes a thing is; -1: it has not changed.
func (l *layer[K, V]) place(k K) int {
	if l.index != nil {
		if i, changed := l.index[k]; changed {
			return i
		}
		return -1
	}
	for i := range l.changes {
		if l.changes[i].id == k {
			return i
		}
	}
	return -1
}

func (l *layer[K, V]) find(k K) (V, bool) {
	if i := l.place(k); i >= 0 {
		return l.changes[i].is, !l.changes[i].gone
	}
	v, ok := l.base[k]
	return v, ok
}

func (l *layer[K, V]) at(k K) V { v, _ := l.find(k); return v }

func (l *layer[K, V]) put(k K, v V) { *l.change(k) = change[K, V]{id: k, is: v} }

func (l *layer[K, V]) drop(k K) { *l.change(k) = change[K, V]{id: k, gone: true} }

// change gives room for what a thing is from now on.
func (l *layer[K, V]) change(k K) *change[K, V] {
	i := l.place(k)
	if i < 0 {
		if i = len(l.changes); i == 1 { // more than one are mostly a whole job's
			l.changes = slices.Grow(l.changes, few)
		}
		l.changes = append(l.changes, change[K, V]{})
		if l.index != nil {
			l.index[k] = i
		}
	}
	if l.index == nil && i >= few {
		l.index = make(map[K]int, 4*few)
		for at := range l.changes[:i] {
			l.index[l.changes[at].id] = at
		}
		l.index[k] = i
	}
	return &l.changes[i]
}

// changed gives what there is that is new or different, and names what is gone,
// both in order of ID. Where the changes stand afterwards means nothing.
func (l *layer[K, V]) changed() (put []V, gone []K) {
	switch {
	case len(l.changes) == 0:
		return nil, nil
	case len(l.changes) == 1 && !l.changes[0].gone:
		return []V{l.changes[0].is}, nil
	}
	order := make([]int, len(l.changes))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(l.changes[a].id, l.changes[b].id) })
	for _, i := range order {
		if c := &l.changes[i]; c.gone {
			gone = append(gone, c.id)
		} else {
			if put == nil {
				put = make([]V, 0, len(order))
			}
			put = append(put, c.is)
		}
	}
	return put, gone
}
