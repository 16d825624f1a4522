package wire

import "sync"

// queue has the messages of a session that wait, in order. It takes memory only for those that are there: a controller has thousands
// of sessions, and a channel would hold room for all that may ever wait.
type queue[T any] struct {
	most      int   // so many messages may wait
	mostBytes int64 // and so many bytes of them, or one message of any length; 0: any

	put, took chan struct{} // of capacity 1: it has a message, or room

	mu    sync.Mutex
	queue []waiting[T]
	bytes int64
}

// waiting is a message with its length on the wire.
type waiting[T any] struct {
	message T
	bytes   int64
}

func newQueue[T any](most int, mostBytes int64) *queue[T] {
	return &queue[T]{most: most, mostBytes: mostBytes, put: make(chan struct{}, 1), took: make(chan struct{}, 1)}
}

// push appends a message, unless there is no room.
func (q *queue[T]) push(m T, bytes int64) bool {
	q.mu.Lock()
	fits := q.fits(bytes)
	if fits {
		q.queue = append(q.queue, waiting[T]{m, bytes})
		q.bytes += bytes
	}
	room := q.fits(1)
	q.mu.Unlock()
	if fits {
		wake(q.put)
		if room {
			wake(q.took) // another one may wait for room
		}
	}
	return fits
}

func (q *queue[T]) fits(bytes int64) bool {
	return len(q.queue) < q.most && (q.mostBytes == 0 || len(q.queue) == 0 || q.bytes+bytes <= q.mostBytes)
}

// pop takes the oldest message. false: there is none.
func (q *queue[T]) pop() (m T, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queue) == 0 {
		return m, false
	}
	first := q.queue[0]
	q.queue[0] = waiting[T]{} // which may be long
	q.queue, q.bytes = q.queue[1:], q.bytes-first.bytes
	if len(q.queue) == 0 {
		q.queue = nil
	}
	wake(q.took)
	return first.message, true
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
