// Package audit keeps who did what, when and from where: a line of JSON each, in a file for each month, and more
// where one is full. Files only grow; what is in them is never changed. When all of them take too much room the oldest goes, and a record says
// what went.
//
// It must not know who may do what. Its tests use real files, also some that a power cut left.
package audit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"pagurus/fleet"
)

const (
	month     = "2006-01"
	extension = ".jsonl"
	// syncAfter is how long a record may be in the kernel's memory only. A request does not wait
	// for the disk; what a power cut takes the journal may have.
	syncAfter = time.Second
	lineLimit = 64 << 10
)

// Log is the audit of one controller. Its methods may be called from any goroutine.
type Log struct {
	folder string
	bounds Bounds

	mu      sync.Mutex
	parts   []part   // oldest first; the last one is written
	month   string   // of file
	file    *os.File // nil: none yet
	late    *time.Timer
	gone    []string // parts that were removed; not yet in the audit
	missing missing

	counting sync.WaitGroup // of what was in removed parts
}

// Open makes the folder, which only root may enter.
func Open(folder string, b Bounds) (*Log, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("opening the audit: %w", err)
	}
	parts, err := list(folder)
	if err != nil {
		return nil, fmt.Errorf("opening the audit: %w", err)
	}
	return &Log{folder: folder, bounds: b, parts: parts}, nil
}

// Append adds a record, and removes the oldest ones if it would take too much room. After an error it may be there in part, which readers
// pass over.
func (l *Log) Append(r fleet.AuditRecord) error {
	line, err := encode(r)
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	err = l.makeRoom(int64(len(line)))
	if err == nil {
		err = l.turn(r.At)
	}
	if err == nil {
		err = l.write(line, l.notes(r.At))
	}
	if err != nil {
		l.missing.add(r.At, err)
		return fmt.Errorf("audit: %w", err)
	}
	if l.late == nil {
		file := l.file
		l.late = time.AfterFunc(syncAfter, func() { l.sync(file) })
	}
	return nil
}

// write adds a line, after what there is to say of the audit itself.
func (l *Log) write(line []byte, notes []fleet.AuditRecord) error {
	text, err := encode(notes...)
	if err != nil {
		return err
	}
	n, err := l.file.Write(append(text, line...))
	l.parts[len(l.parts)-1].bytes += int64(n)
	if err != nil {
		return errors.Join(err, l.shut()) // the next begins on a line of its own
	}
	l.gone, l.missing = nil, missing{}
	return nil
}

func (l *Log) sync(file *os.File) {
	l.mu.Lock()
	l.late = nil
	l.mu.Unlock()
	_ = file.Sync() // a closed one was synced then
}

// turn opens the file of a record: another one where a month ends, or a part is full.
func (l *Log) turn(at time.Time) error {
	is, most := at.UTC().Format(month), l.bounds.partBytes()
	if l.file != nil && is == l.month && l.parts[len(l.parts)-1].bytes < most {
		return nil
	}
	if err := l.shut(); err != nil {
		return err
	}
	name := newest(l.parts, at, most)
	file, err := os.OpenFile(filepath.Join(l.folder, name), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	if err := mend(file); err != nil {
		return errors.Join(err, file.Close())
	}
	info, err := file.Stat()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	l.parts = append(slices.DeleteFunc(l.parts, func(p part) bool { return p.name == name }), part{name, info.Size()})
	l.month, l.file = is, file
	return nil
}

// mend ends a line that was cut off.
func mend(file *os.File) error {
	info, err := file.Stat()
	if err != nil || info.Size() == 0 {
		return err
	}
	last := []byte{0}
	if _, err := file.ReadAt(last, info.Size()-1); err != nil || last[0] == '\n' {
		return err
	}
	_, err = file.Write([]byte{'\n'})
	return err
}

func (l *Log) shut() error {
	if l.file == nil {
		return nil
	}
	err := errors.Join(l.file.Sync(), l.file.Close())
	l.file = nil
	return err
}

// Close writes everything to the disk. The log may be used again.
func (l *Log) Close() error {
	l.counting.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	var err error
	if l.file != nil && len(l.gone) > 0 {
		err = l.write(nil, l.notes(time.Now()))
	}
	return errors.Join(err, l.shut())
}

// Read gives each record since a time, oldest first, until each returns an error. Lines that are
// no records are passed over and counted.
func (l *Log) Read(ctx context.Context, since time.Time, each func(fleet.AuditRecord) error) (damaged int, err error) {
	names, err := filepath.Glob(filepath.Join(l.folder, "*"+extension))
	if err != nil {
		return 0, err
	}
	slices.Sort(names)
	first := since.UTC().Format(month) + extension
	for _, name := range names {
		if filepath.Base(name) < first {
			continue
		}
		n, err := readFile(ctx, name, since, each)
		damaged += n
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return damaged, fmt.Errorf("reading the audit: %w", err)
		}
	}
	return damaged, nil
}

func readFile(ctx context.Context, name string, since time.Time, each func(fleet.AuditRecord) error) (damaged int, err error) {
	file, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	lines := bufio.NewReaderSize(file, lineLimit)
	for ctx.Err() == nil {
		line, err := lines.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull): // the rest is no record either
			damaged++
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = lines.ReadSlice('\n')
			}
			continue
		case errors.Is(err, io.EOF) && len(line) == 0:
			return damaged, nil
		case err != nil && !errors.Is(err, io.EOF):
			return damaged, err
		}
		var r fleet.AuditRecord
		if json.Unmarshal(bytes.TrimSpace(line), &r) != nil || r.At.IsZero() {
			damaged++
			continue
		}
		if r.At.Before(since) {
			continue
		}
		if err := each(r); err != nil {
			return damaged, err
		}
	}
	return damaged, ctx.Err()
}
