package memory

import (
	"encoding/gob"
	"errors"
	"sync"
	"time"
)

// Holder has a Grip on a process when it is told to. The zero Holder holds nothing.
type Holder struct {
	mu   sync.Mutex
	grip *Grip // nil: it was not told to
}

// holdOrder is to hold a process's userfaultfds, too.
type holdOrder struct{ PID int }

// Answer says how many are held, or why not all are.
type Answer struct {
	Held  int
	Error string
}

// holdEvery is how often is looked what the process has. A process that it is done with
// waits so long, once, if it then touches what it never had; and one that forked no
// longer ago is not held when CRIU's is killed.
const holdEvery = 5 * time.Millisecond

// errUnfinished says that CRIU takes its leave with memory still to be put in its place.
var errUnfinished = errors.New("CRIU gave up before all memory was in its place; see the log of criu lazy-pages")

// Obey does as it is told until nobody is there to tell.
func (h *Holder) Obey(orders *gob.Decoder, answers *gob.Encoder) {
	for {
		var q holdOrder
		if orders.Decode(&q) != nil {
			return
		}
		var a Answer
		held, err := h.take(q.PID)
		if a.Held = held; err != nil {
			a.Error = err.Error()
		}
		if answers.Encode(a) != nil {
			return
		}
	}
}

// take holds what a process has.
func (h *Holder) take(pid int) (held int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.grip == nil {
		if h.grip, err = gripOf(pid); err != nil {
			return 0, err
		}
		go h.watch()
	}
	return h.grip.Look()
}

func (h *Holder) watch() {
	for {
		h.mu.Lock()
		_, _ = h.grip.Look() // what it could not get it tries again
		h.mu.Unlock()
		time.Sleep(holdEvery)
	}
}

// Parted is asked when CRIU wants to end: what it still has then it was not done with.
func (h *Holder) Parted() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.grip == nil {
		return nil
	}
	held, err := h.grip.Look()
	if err == nil && held > 0 {
		err = errUnfinished
	}
	return err
}

// StandStill keeps what is held until this process is ended.
func (h *Holder) StandStill() {
	for h.holds() {
		time.Sleep(time.Minute)
	}
}

func (h *Holder) holds() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.grip != nil && h.grip.Held() > 0
}
