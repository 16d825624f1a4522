package fleet

import (
	"fmt"
	"strings"
	"time"
)

// Remains is what is kept of a guest that ended by itself, for people. It is small, because
// it is stored; the host keeps more in Folder.
type Remains struct {
	At       time.Time `json:"at,omitzero"`         // when its host noticed
	Why      string    `json:"why,omitempty"`       // what ended, and why: a sentence without its full stop
	Died     bool      `json:"died,omitempty"`      // it certainly did not shut down: what ran it was killed, or failed, or its kernel panicked. So what its job's program says of its own end counts for nothing
	Reason   string    `json:"reason,omitempty"`    // in QEMU's words: guest-reset, guest-panic, host-error, …
	Killed   bool      `json:"killed,omitempty"`    // it died by a signal to what ran it, and had reached no limit: it would not end so elsewhere
	OOMKills int       `json:"oom_kills,omitempty"` // its processes that the kernel killed because the guest's memory was used up
	Refused  int       `json:"refused,omitempty"`   // processes and threads that could not start because it had MaxTasks
	MaxTasks int       `json:"max_tasks,omitempty"` // how many it may have
	Console  []string  `json:"console,omitempty"`   // the last lines of its console
	Log      []string  `json:"log,omitempty"`       // the last lines of the log of what ran it
	Folder   string    `json:"folder,omitempty"`    // on its host, with the ends of both
}

// lastLine leads in what the guest said last.
const lastLine = "; its last console line: "

// Sentence says what ended, why, and what the guest said last.
func (r Remains) Sentence() string {
	s := r.Why
	if last := len(r.Console) - 1; last >= 0 {
		s += lastLine + r.Console[last]
	}
	return s
}

// WithoutConsole is a cause that may end with a Sentence, without what the guest said.
func WithoutConsole(cause string) string {
	before, _, _ := strings.Cut(cause, lastLine)
	return before
}

// Limits says which limits a guest has reached, and what to do: sentences without their full
// stops.
func (r Remains) Limits() (all []string) {
	for _, says := range []string{r.OutOfMemory(), r.OutOfTasks()} {
		if says != "" {
			all = append(all, says)
		}
	}
	return all
}

// OutOfTasks says that processes could not start, and what to do; empty if all could.
func (r Remains) OutOfTasks() string {
	if r.Refused == 0 {
		return ""
	}
	return fmt.Sprintf("the guest reached its limit of %d processes and threads, so that another could not start: have fewer in each guest, with more `run --guests`", r.MaxTasks)
}

// OutOfMemory says which processes the kernel killed, and what to do; empty if none.
func (r Remains) OutOfMemory() string {
	if r.OOMKills == 0 {
		return ""
	}
	what := "one process of the guest"
	if r.OOMKills > 1 {
		what = fmt.Sprintf("%d processes of the guest", r.OOMKills)
	}
	return fmt.Sprintf("the kernel killed %s because its memory was used up: give guests more with `run --mem`", what)
}
