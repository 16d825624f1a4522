// Package turns says whose work is next where one worker serves many, so that nobody who asks for much keeps others
// waiting. What keeps the cluster alive comes before what people ask for; of the same rank everybody has a turn before
// anybody has another.
//
// It is pure: it does not know what the work is, nor what time it is. Its tests are properties over whatever comes in
// whatever order.
package turns

// Rank is how urgent work is.
type Rank int

// The ranks, the most urgent first.
const (
	Hosts  Rank = iota // what hosts say, and with it their leases: without an answer guests are killed
	People             // what people and programs ask for

	ranks
)

// InARow is how many turns hosts have at most while people wait. So hosts that say more than there is time for do not
// shut people out.
const InARow = 16

// Queue has work that waits. The zero value is empty.
type Queue[T any] struct {
	by    [ranks]round[T]
	inRow int // turns of hosts while people waited
	n     int
}

// round has those who wait in a rank, the next one first.
type round[T any] struct {
	lines map[string]*line[T]
	next  []*line[T]
}

// line is what waits of one of them, in the order in which it came.
type line[T any] struct {
	who  string
	work []T
}

// Push adds work of somebody. false: most of theirs wait already, and it was not added; 0: there is no such limit.
func (q *Queue[T]) Push(rank Rank, who string, most int, work T) bool {
	r := &q.by[rank]
	l := r.lines[who]
	if l == nil {
		l = &line[T]{who: who}
		if r.lines == nil {
			r.lines = map[string]*line[T]{}
		}
		r.lines[who] = l
		r.next = append(r.next, l)
	}
	if most > 0 && len(l.work) >= most { // then it was there before
		return false
	}
	l.work = append(l.work, work)
	q.n++
	return true
}

// Pop takes what is next. false: nothing waits.
func (q *Queue[T]) Pop() (work T, ok bool) {
	hosts, people := &q.by[Hosts], &q.by[People]
	q.n = max(0, q.n-1)
	switch {
	case len(people.next) == 0:
		q.inRow = 0
		return hosts.pop()
	case len(hosts.next) == 0 || q.inRow >= InARow:
		q.inRow = 0
		return people.pop()
	}
	q.inRow++
	return hosts.pop()
}

// pop takes the first work of who is next, who then is the last.
func (r *round[T]) pop() (work T, ok bool) {
	if len(r.next) == 0 {
		return work, false
	}
	l := r.next[0]
	r.next = r.next[1:]
	work, l.work = l.work[0], l.work[1:]
	if len(l.work) == 0 {
		delete(r.lines, l.who)
	} else {
		r.next = append(r.next, l)
	}
	return work, true
}

// Len is how much waits.
func (q *Queue[T]) Len() int { return q.n }
