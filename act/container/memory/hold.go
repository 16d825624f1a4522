package memory

import (
	"encoding/gob"
	"errors"
	"sync"
	"time"
)

// HolderProcess holds the userfaultfds of a process when it is ordered to. The zero value
// holds none.
type HolderProcess struct {
	mu    sync.Mutex
	uffds *UffdHolder // nil: no order yet
}

// uffdOrder is the order to hold a process's userfaultfds.
type uffdOrder struct{ PID int }

// Answer says how many userfaultfds are held, or why not all are.
type Answer struct {
	Held  int
	Error string
}

// holdEvery is the interval at which the held userfaultfds are updated. It has two effects.
// After the lazy pager has closed a finished process's userfaultfd, the process may wait so
// long, once, at a page that it never had. And if CRIU's process is killed, the userfaultfd of a
// process forked within this time is not held.
const holdEvery = 5 * time.Millisecond

// errUnfinished says that CRIU ends although some memory is not in place yet.
var errUnfinished = errors.New("CRIU gave up before all memory was in its place; see the log of criu lazy-pages")

// Obey carries out orders until the connection ends.
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

// holdProcess holds the userfaultfds that a process has.
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
		_, _ = h.uffds.HoldAll() // the next call repeats failed ones
		h.mu.Unlock()
		time.Sleep(holdEvery)
	}
}

// Parted is called when CRIU wants to end. It returns an error if CRIU still has
// userfaultfds, because then it has not finished.
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

// HoldForever keeps the held userfaultfds until this process is killed. It returns at
// once if there are none.
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
