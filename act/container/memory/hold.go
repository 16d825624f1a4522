package memory

import (
	"encoding/gob"
	"errors"
	"sync"
	"time"
)

// HolderProcess has a Grip on a process when it is told to. The zero Holder holds nothing.
type HolderProcess struct {
	mu    sync.Mutex
	uffds *UffdHolder // nil: it was not told to
}

// uffdOrder is to hold a process's userfaultfds, too.
type uffdOrder struct{ PID int }

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
func (h *HolderProcess) Obey(orders *gob.Decoder, answers *gob.Encoder) {
	for {
		var q uffdOrder
		if orders.Decode(&q) != nil {
			return
		}
		var a Answer
		held, err := h.holdProcess(q.PID)
		if a.Held = held; err != nil {
			a.Error = err.Error()
		}
		if answers.Encode(a) != nil {
			return
		}
	}
}

// takeUffd holds what a process has.
func (h *HolderProcess) holdProcess(pid int) (held int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.uffds == nil {
		if h.uffds, err = newUffdHolder(pid); err != nil {
			return 0, err
		}
		go h.watch()
	}
	return h.uffds.HoldAll()
}

func (h *HolderProcess) watch() {
	for {
		h.mu.Lock()
		_, _ = h.uffds.HoldAll() // what it could not get it tries again
		h.mu.Unlock()
		time.Sleep(holdEvery)
	}
}

// Parted is asked when CRIU wants to end: what it still has then it was not done with.
func (h *HolderProcess) Parted() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.uffds == nil {
		return nil
	}
	held, err := h.uffds.HoldAll()
	if err == nil && held > 0 {
		err = errUnfinished
	}
	return err
}

// HoldForever keeps what is held until this process is ended.
func (h *HolderProcess) HoldForever() {
	for h.holds() {
		time.Sleep(time.Minute)
	}
}

func (h *HolderProcess) holds() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.uffds != nil && h.uffds.Held() > 0
}
