package audit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// Bounds say how much room the audit takes.
type Bounds struct {
	Most    int64 // bytes; then the oldest file goes; 0: no limit
	Reserve int64 // bytes of the disk that stay free: the store may be there
}

// The audit is in parts of a sixteenth of what it may take, since what goes is a whole part. For the sake of a full disk parts go as well, but
// not the last eighth: somebody who can fill a disk would remove what shows who it was.
const (
	parts     = 16
	keptParts = 2
	partLeast = 64 << 10
	partMost  = 64 << 20
)

// part is one file of the audit.
type part struct {
	name  string // of the file
	bytes int64
}

func (b Bounds) partBytes() int64 {
	if b.Most == 0 {
		return partMost
	}
	return min(max(b.Most/parts, partLeast), partMost)
}

// list gives the files that there are, oldest first.
func list(folder string) (out []part, err error) {
	names, err := filepath.Glob(filepath.Join(folder, "*"+extension))
	if err != nil {
		return nil, err
	}
	slices.Sort(names) // a month's first has no number, which is before those that have one
	for _, name := range names {
		if info, err := os.Stat(name); err == nil {
			out = append(out, part{filepath.Base(name), info.Size()})
		}
	}
	return out, nil
}

// newest names the file for a record of a time: the month's last, or the one after it if that is full.
func newest(all []part, at time.Time, most int64) string {
	month := at.UTC().Format(month)
	name, number, bytes := month+extension, 0, int64(0)
	for _, p := range all {
		if strings.HasPrefix(p.name, month) {
			name, bytes = p.name, p.bytes
			_, _ = fmt.Sscanf(strings.TrimPrefix(p.name, month), numbered, &number)
		}
	}
	if bytes >= most {
		name = fmt.Sprintf(month+numbered, number+1)
	}
	return name
}

// numbered is what follows the month in the name of its second file and later ones.
const numbered = ".p%06d" + extension

// errNoRoom: the disk has no more room for the audit.
var errNoRoom = errors.New("the disk has too little room left for the audit: free some space there; until then only the controller's log says what is done")

// makeRoom removes the oldest parts as long as the audit takes too much, or leaves too little of the disk. The newest part stays.
// errNoRoom: there is none, and nothing may be written.
func (l *Log) makeRoom(more int64) error {
	for {
		all, total := l.parts, int64(0)
		for _, p := range all {
			total += p.bytes
		}
		free, err := free(l.folder)
		if err != nil {
			return err
		}
		tooMuch, tooFull := l.bounds.Most > 0 && total+more > l.bounds.Most, free < l.bounds.Reserve+more
		switch {
		case !tooMuch && !tooFull:
			return nil
		case len(all) <= 1 && !tooFull:
			return nil // what is left is bounded by the size of a part
		case len(all) <= 1, !tooMuch && total-all[0].bytes < keptParts*l.bounds.partBytes():
			return errNoRoom
		}
		if err := l.removeOldest(filepath.Join(l.folder, all[0].name)); err != nil {
			return err
		}
		l.parts = slices.Delete(all, 0, 1)
	}
}

// removeOldest removes a file, and counts afterwards what was in it: nobody waits for that. An earlier version had months of any size.
func (l *Log) removeOldest(path string) error {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		l.gone = append(l.gone, filepath.Base(path))
		return nil
	}
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return errors.Join(err, file.Close())
	}
	l.counting.Go(func() {
		says := summary(file)
		_ = file.Close() // it was only read
		l.mu.Lock()
		defer l.mu.Unlock()
		l.gone = append(l.gone, says)
	})
	return nil
}

// free is how many bytes of a folder's disk are free.
func free(folder string) (int64, error) {
	var disk unix.Statfs_t
	if err := unix.Statfs(folder, &disk); err != nil {
		return 0, fmt.Errorf("looking how much room %s has: %w", folder, err)
	}
	return int64(disk.Bavail) * disk.Bsize, nil
}

// summary says what is in a file: how many records, and from when to when.
func summary(file io.Reader) string {
	var first, last time.Time
	n, lines := 0, bufio.NewReaderSize(file, lineLimit)
	for {
		line, err := lines.ReadSlice('\n')
		if at := timeOf(line); !at.IsZero() {
			if n == 0 {
				first = at
			}
			n, last = n+1, at
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return fmt.Sprintf("%d records from %s to %s", n, first.UTC().Format(time.RFC3339), last.UTC().Format(time.RFC3339))
		}
	}
}

// timeOf is the time at which a record begins, as Append writes it; zero: it is none.
func timeOf(line []byte) time.Time {
	const begins = `{"at":"`
	rest, is := bytes.CutPrefix(line, []byte(begins))
	text, _, ends := bytes.Cut(rest, []byte{'"'})
	if !is || !ends {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339Nano, string(text))
	if err != nil {
		return time.Time{}
	}
	return at
}

// missing is what could not be kept, and why not.
type missing struct {
	n           int
	first, last time.Time
	why         error
}

func (m *missing) add(at time.Time, why error) {
	if m.n == 0 {
		m.first = at
	}
	m.n, m.last, m.why = m.n+1, at, why
}

// notes are the records of the audit about itself: what was removed, and what is missing.
func (l *Log) notes(at time.Time) (out []fleet.AuditRecord) {
	for _, what := range l.gone {
		out = append(out, fleet.AuditRecord{At: at, Did: fleet.AuditRemoved, On: what})
	}
	if m := l.missing; m.n > 0 {
		out = append(out, fleet.AuditRecord{At: at, Did: fleet.AuditMissing, Failed: m.why.Error(), On: fmt.Sprintf("%d records from %s to %s", m.n, m.first.UTC().Format(time.RFC3339), m.last.UTC().Format(time.RFC3339))})
	}
	return out
}

// encode makes lines of records.
func encode(records ...fleet.AuditRecord) (out []byte, err error) {
	for _, r := range records {
		line, err := json.Marshal(r)
		if err != nil {
			return nil, err
		}
		out = append(append(out, line...), '\n')
	}
	return out, nil
}
