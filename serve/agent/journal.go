// This file keeps what an agent has promised, in files, so that the next
// agent of the host keeps it too.
//
// It must not know how an order is carried out. Its tests run against files.

package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"pagurus/fleet"
	"pagurus/internal/note"
)

// journal is what an agent promised, one page a guest, in files. A driver's
// Stop leaves it alone: the promise outlives the guest.
type journal struct{ Dir string }

// journalEntry is what was promised for one guest.
type journalEntry struct {
	LastGen uint64         `json:"last_gen"` // the highest seen; orders with an older one are refused
	Answers []fleet.Report `json:"answers"`  // of orders that ended done or failed, oldest first
}

const (
	// doneMost is how many done orders are remembered. Only the last few can
	// ever be asked for again; one too old is simply carried out again.
	doneMost = 32
	// ForgetAfter is how long the page of a guest that is gone is kept, for
	// orders still on their way.
	ForgetAfter = time.Hour
)

// Read gives the page of g, empty if there is none.
func (l journal) Read(g fleet.GuestID) (journalEntry, error) {
	b, err := os.ReadFile(l.path(g))
	if errors.Is(err, fs.ErrNotExist) {
		return journalEntry{}, nil
	}
	var p journalEntry
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	if err != nil {
		return journalEntry{}, fmt.Errorf("reading what was promised for guest %s: %w; stop the guest by hand and remove the file %s", g, err, l.path(g))
	}
	return p, nil
}

// Write replaces the page of g. After an error the old one stands.
func (l journal) Write(g fleet.GuestID, p journalEntry) error {
	b, err := json.Marshal(p)
	if err == nil {
		err = os.MkdirAll(l.Dir, 0o755)
	}
	if err == nil { // durably: a promise must survive a loss of power where the folder does
		err = note.WriteDurably(l.path(g), b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("recording what was promised for guest %s: %w", g, err)
	}
	return nil
}

// Prune removes the pages of guests that keep says are gone and that have been
// gone for long.
func (l journal) Prune(keep func(fleet.GuestID) bool, now time.Time) {
	entries, err := os.ReadDir(l.Dir)
	if err != nil {
		return // there is none yet
	}
	for _, e := range entries {
		g := fleet.GuestID(strings.TrimSuffix(e.Name(), ".json"))
		info, err := e.Info()
		if err == nil && !keep(g) && now.Sub(info.ModTime()) > ForgetAfter {
			_ = os.Remove(filepath.Join(l.Dir, e.Name())) // tried again the next time
		}
	}
}

func (l journal) path(g fleet.GuestID) string { return filepath.Join(l.Dir, string(g)+".json") }

// Answer gives what was answered to o before.
func (p journalEntry) Answer(o fleet.Order) (fleet.Report, bool) {
	for _, r := range p.Answers {
		if r.Order == o {
			return r, true
		}
	}
	for _, r := range p.Answers {
		if r.Outcome == fleet.Failed && o.Attempt < r.Order.Attempt && sameBut(o, r.Order) {
			r.Order = o // nobody waits for this try any more, and that it fails is promised
			return r, true
		}
	}
	return fleet.Report{}, false
}

// sameBut reports whether two orders differ in nothing but the try.
func sameBut(a, b fleet.Order) bool {
	a.Attempt = b.Attempt
	return a == b
}

// With gives the page that also remembers r. Of older generations nothing
// needs to be: they are refused for their generation. Of the tries that failed
// the last is enough, if it failed too.
func (p journalEntry) With(r fleet.Report, gen uint64) journalEntry {
	out := journalEntry{LastGen: max(p.LastGen, gen)}
	done := 0
	for _, old := range p.Answers {
		if old.Outcome == fleet.Done {
			done++
		}
	}
	for _, old := range append(p.Answers[:len(p.Answers):len(p.Answers)], r) {
		if old.Outcome == fleet.Done && done >= doneMost {
			done--
			continue
		}
		if old.Order.Gen != 0 && old.Order.Gen < out.LastGen {
			continue
		}
		if old.Outcome == fleet.Failed && r.Outcome == fleet.Failed && old.Order.Attempt < r.Order.Attempt && sameBut(old.Order, r.Order) {
			continue // the newer promise stands for it
		}
		out.Answers = append(out.Answers, old)
	}
	return out
}
