package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"pagurus/fleet"
	"pagurus/internal/note"
)

// The limits of what is kept of guests that ended by themselves: guests, bytes of the end
// of each file, and what of that is reported and stored.
const (
	remainsKept  = 32
	remainsBytes = 64 << 10
	remainsLines = 12
	remainsWidth = 240
)

// The names in the folder of a guest's remains. A told note was reported: the controller
// has it, so it is for people only.
const (
	remainsNote  = "ended.json"
	remainsTold  = "told.json"
	consoleCopy  = "console.log"
	mechanismLog = "mechanism.log"
)

// RemainsFolder is where a host's drivers keep what is left of guests that ended by
// themselves, in its run folder, so that the next agent finds it.
const RemainsFolder = "ended"

// Remains is a folder for what is left of guests that ended by themselves. Without a Dir
// nothing is kept.
type Remains struct{ Dir string }

// Explain completes what is known of a guest's end from the end of its console.
type Explain func(r *fleet.Remains, console string)

// KeepRemains keeps the ends of a guest's console and log, which may be nil, and
// completes what is known of its end. After an error less is kept.
func (k Remains) KeepRemains(id fleet.GuestID, console, log *os.File, explain Explain) (r fleet.Remains, _ error) {
	r.At = time.Now()
	said := map[string][]byte{}
	for name, f := range map[string]*os.File{consoleCopy: console, mechanismLog: log} {
		if f != nil {
			said[name] = end(f, remainsBytes)
		}
	}
	r.Console, r.Log = reported(said[consoleCopy]), reported(said[mechanismLog])
	explain(&r, string(said[consoleCopy]))
	if k.Dir == "" {
		return r, nil
	}
	r.Folder = filepath.Join(k.Dir, string(id))
	err := os.RemoveAll(r.Folder)
	if err == nil {
		err = os.MkdirAll(r.Folder, 0o700)
	}
	for name, text := range said {
		if err == nil {
			err = os.WriteFile(filepath.Join(r.Folder, name), text, 0o600)
		}
	}
	if err == nil {
		err = note.Replace(filepath.Join(r.Folder, remainsNote), r)
	}
	if err = errors.Join(err, k.prune()); err != nil {
		return r, fmt.Errorf("keep what guest %s said last: %w", id, err)
	}
	return r, nil
}

// reported are the lines to report and store.
func reported(text []byte) []string {
	all := lastLines(text, remainsLines)
	for i, line := range all {
		if len(line) > remainsWidth {
			cut := remainsWidth
			for cut > 0 && line[cut]&0xc0 == 0x80 { // inside a character
				cut--
			}
			all[i] = line[:cut] + "…"
		}
	}
	return all
}

// Find returns what was kept of a guest and not told yet; nil if there is nothing.
func (k Remains) Find(id fleet.GuestID) *fleet.Remains {
	var r fleet.Remains
	if k.Dir == "" || id.Check() != nil || note.Load(filepath.Join(k.Dir, string(id), remainsNote), &r) != nil {
		return nil
	}
	return &r
}

// Told keeps a guest's remains for people only.
func (k Remains) Told(id fleet.GuestID) {
	if k.Dir != "" {
		at := filepath.Join(k.Dir, string(id))
		_ = os.Rename(filepath.Join(at, remainsNote), filepath.Join(at, remainsTold)) // mostly there is none
	}
}

// prune removes the oldest remains beyond the limit.
func (k Remains) prune() error {
	all, err := os.ReadDir(k.Dir)
	if err != nil {
		return err
	}
	age := map[string]time.Time{}
	for _, e := range all {
		if info, err := e.Info(); err == nil {
			age[e.Name()] = info.ModTime()
		}
	}
	slices.SortFunc(all, func(a, b fs.DirEntry) int { return age[b.Name()].Compare(age[a.Name()]) })
	for _, e := range all[min(len(all), remainsKept):] {
		err = errors.Join(err, os.RemoveAll(filepath.Join(k.Dir, e.Name())))
	}
	return err
}
