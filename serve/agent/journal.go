// This file keeps the order journal in files, so that the host's next agent keeps its
// promises. It must not know how an order is carried out. Its tests run against files.

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

// journal is the order journal: one file per guest. A driver's Stop does not touch it, since
// a promise outlives the guest.
type journal struct{ Dir string }

// journalEntry holds the promises for one guest.
type journalEntry struct {
	Born    int64          `json:"born,omitempty"`  // of the job; orders of one born earlier are refused
	Stale   bool           `json:"stale,omitempty"` // what is here of the guest may be of a job born earlier
	LastGen uint64         `json:"last_gen"`        // the highest seen; orders with an older one are refused
	Answers []fleet.Report `json:"answers"`         // to orders that ended done or failed, oldest first
}

const (
	// doneMost bounds the remembered done orders. The controller repeats only the last few;
	// an older one would simply run again.
	doneMost = 32
	// ForgetAfter is how long a gone guest's entry is kept, for orders still on their way.
	ForgetAfter = time.Hour
)

// Read gives the entry of g, empty if there is none.
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
		return journalEntry{}, fmt.Errorf("reading the order journal of guest %s: %w; stop the guest by hand and remove the file %s", g, err, l.path(g))
	}
	return p, nil
}

// Write replaces the entry of g. After an error the old one remains.
func (l journal) Write(g fleet.GuestID, p journalEntry) error {
	b, err := json.Marshal(p)
	if err == nil {
		err = os.MkdirAll(l.Dir, 0o755)
	}
	if err == nil { // durably: a promise must survive a power loss where the folder does
		err = note.WriteDurably(l.path(g), b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("writing the order journal of guest %s: %w", g, err)
	}
	return nil
}

// Prune removes the entries of guests that keep rejects and that are unchanged for
// ForgetAfter.
func (l journal) Prune(keep func(fleet.GuestID) bool, now time.Time) {
	entries, err := os.ReadDir(l.Dir)
	if err != nil {
		return // there is none yet
	}
	for _, e := range entries {
		g := fleet.GuestID(strings.TrimSuffix(e.Name(), ".json"))
		info, err := e.Info()
		if err == nil && !keep(g) && now.Sub(info.ModTime()) > ForgetAfter {
			_ = os.Remove(filepath.Join(l.Dir, e.Name())) // the next call tries again
		}
	}
}

func (l journal) path(g fleet.GuestID) string { return filepath.Join(l.Dir, string(g)+".json") }

// Answer gives the recorded answer to o.
func (p journalEntry) Answer(o fleet.Order) (fleet.Report, bool) {
	for _, r := range p.Answers {
		if r.Order == o {
			return r, true
		}
	}
	for _, r := range p.Answers {
		if r.Outcome == fleet.Failed && o.Attempt < r.Order.Attempt && sameBut(o, r.Order) {
			r.Order = o // the controller no longer waits for this try, and its failure is promised
			return r, true
		}
	}
	return fleet.Report{}, false
}

// sameBut reports whether two orders differ only in their attempt.
func sameBut(a, b fleet.Order) bool {
	a.Attempt = b.Attempt
	return a == b
}

// With gives the entry with r added. Answers of older generations are dropped: such orders
// are refused anyway. Of failed attempts only the last is kept, if it failed too.
func (p journalEntry) With(r fleet.Report, gen uint64) journalEntry {
	out := journalEntry{Born: p.Born, Stale: p.Stale, LastGen: max(p.LastGen, gen)}
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
			continue // covered by the newer promise
		}
		out.Answers = append(out.Answers, old)
	}
	return out
}
