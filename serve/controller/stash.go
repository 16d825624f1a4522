package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/internal/note"
	"pagurus/serve/wire"
)

// This file keeps copies of jobs' streams for the controller that leads, in the files in which this one's
// spool finds them when it leads itself.

// youngFolder is the age below which a job's folder stays, though the job is not among those that the one that leads has
// named: it may have been submitted meanwhile.
const youngFolder = time.Minute

// stash is the copies in a folder. Its methods may be called side by side.
type stash struct {
	dir     string
	reserve int64 // bytes that copies leave free on the disk, for the store and others

	mu    sync.Mutex
	term  int64 // the highest in which anything was asked
	leads bool  // this controller does; nothing is kept for others
}

// termFile is beside the spool.
func (s *stash) termFile() string { return s.dir + ".term" }

// enter notes a term, and refuses an older one: what another controller still sends that led before. The
// caller holds the lock.
func (s *stash) enter(term int64) error {
	if s.term == 0 {
		_ = note.Load(s.termFile(), &s.term) // none: nobody has asked yet
	}
	switch {
	case s.leads:
		return &wire.Error{Status: wire.NotLeading, Reason: "this controller leads, or did until now"}
	case term < s.term:
		return &wire.Error{Status: http.StatusGone, Reason: "another controller has led since"}
	case term == s.term:
		return nil
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("keeping copies: %w", err)
	}
	if err := note.Replace(s.termFile(), term); err != nil {
		return fmt.Errorf("keeping copies: %w", err)
	}
	s.term = term
	return nil
}

// lead ends the keeping for others, in this controller's own term.
func (s *stash) lead(term int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter(term); err != nil {
		return err
	}
	s.leads = true
	return nil
}

func outputs() []string { return []string{fleet.Stdout, fleet.Stderr} }

// Held says what is kept of these jobs. What is kept of others goes.
func (s *stash) Held(term int64, jobs []fleet.JobID) ([]wire.Held, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter(term); err != nil {
		return nil, err
	}
	there, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reading the copies: %w", err)
	}
	for _, d := range there {
		info, err := d.Info()
		if err != nil || slices.Contains(jobs, fleet.JobID(d.Name())) || time.Since(info.ModTime()) < youngFolder {
			continue
		}
		if err := os.RemoveAll(filepath.Join(s.dir, d.Name())); err != nil {
			return nil, fmt.Errorf("removing a forgotten job's output: %w", err)
		}
	}
	return s.of(jobs)
}

// of is Held without a term.
func (s *stash) of(jobs []fleet.JobID) (out []wire.Held, err error) {
	for _, job := range jobs {
		if !jobForm.MatchString(string(job)) {
			continue
		}
		h := wire.Held{Job: job, Ends: map[string]int64{}, Over: map[string]bool{}}
		text, err := os.ReadFile(filepath.Join(s.dir, string(job), beginnings))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("reading the copies: %w", err)
		}
		h.Begins = string(text)
		if h.Notes, err = notesIn(filepath.Join(s.dir, string(job))); err != nil {
			return nil, err
		}
		for _, name := range append(outputs(), fleet.Stdin) {
			path := filepath.Join(s.dir, string(job), name)
			if info, err := os.Stat(path); err == nil {
				h.Ends[name] = info.Size()
			}
			if _, err := os.Stat(path + endMark); err == nil {
				h.Over[name] = true
			}
		}
		if len(h.Ends) > 0 || len(h.Over) > 0 || h.Begins != "" {
			out = append(out, h)
		}
	}
	return out, nil
}

// KeepPiece adds a piece to a copy.
func (s *stash) KeepPiece(term int64, at wire.Place, p wire.Piece) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter(term); err != nil {
		return 0, err
	}
	if p.Notes != nil && jobForm.MatchString(string(at.Job)) { // all that there are; nil: they are not known
		if err := dropNotes(filepath.Join(s.dir, string(at.Job)), p.Notes); err != nil {
			return 0, err
		}
	}
	if err := s.roomFor(int64(len(p.Data))); err != nil {
		return 0, err
	}
	end, err := s.keepPiece(at, p)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return 0, noRoom
	}
	return end, err
}

// noRoom is the answer of a controller that keeps no more copies.
var noRoom = &wire.Error{Status: http.StatusInsufficientStorage, Reason: "its disk has no room for copies of output beside what its store needs: free some space there"}

// roomFor refuses bytes that would take what is free for others.
func (s *stash) roomFor(bytes int64) error {
	if bytes == 0 {
		return nil
	}
	free, err := freeIn(s.dir)
	if errors.Is(err, fs.ErrNotExist) { // it is made for the first one
		free, err = freeIn(filepath.Dir(s.dir))
	}
	if err == nil && free-s.reserve < bytes {
		return noRoom
	}
	return err
}

func (s *stash) keepPiece(at wire.Place, p wire.Piece) (end int64, err error) {
	if !jobForm.MatchString(string(at.Job)) {
		return 0, &wire.Error{Status: http.StatusBadRequest, Reason: "that is not a job"}
	}
	folder := filepath.Join(s.dir, string(at.Job))
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return 0, fmt.Errorf("keeping a copy: %w", err)
	}
	if err := s.beginStreams(folder, p.Begins); err != nil {
		return 0, err
	}
	if err := keepNotes(folder, p.Notes); err != nil {
		return 0, err
	}
	path := filepath.Join(folder, at.Stream)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, fmt.Errorf("keeping a copy: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return 0, fmt.Errorf("keeping a copy: %w", err)
	}
	size := info.Size()
	if at.Offset > size {
		return size, nil
	}
	if fresh := at.Offset + int64(len(p.Data)) - size; fresh > 0 {
		if _, err := f.WriteAt(p.Data[int64(len(p.Data))-fresh:], size); err != nil {
			return 0, fmt.Errorf("keeping a copy: %w", errors.Join(err, f.Truncate(size)))
		}
		size += fresh
	}
	if long := at.Offset + int64(len(p.Data)) + p.Hole; p.Hole > 0 && long > size {
		if err := f.Truncate(long); err != nil {
			return 0, fmt.Errorf("keeping a copy: %w", err)
		}
		size = long
	}
	if p.Over {
		if err := note.Write(path+endMark, nil, 0o600); err != nil {
			return 0, fmt.Errorf("keeping a copy: %w", err)
		}
	}
	return size, nil
}

// begunIn reads where an incarnation begins; an empty text is of the first.
func begunIn(text string) (b began) {
	_ = json.Unmarshal([]byte(text), &b) // a text that cannot be read is of the first
	return b
}

// end is where a stream ended when an incarnation began.
func (b began) end(name string) int64 {
	if cut, is := b.Cut[name]; is {
		return cut
	}
	return b.At[name]
}

// notePrefix begins the names of files that are copied as they are: how much output there was at a checkpoint.
const notePrefix = "cut."

// notesIn reads a job's notes, by name.
func notesIn(folder string) (map[string]string, error) {
	found, _ := filepath.Glob(filepath.Join(folder, notePrefix+"*")) // a bad pattern matches nothing
	out := map[string]string{}
	for _, path := range found {
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading notes: %w", err)
		}
		out[filepath.Base(path)] = string(text)
	}
	return out, nil
}

// dropNotes removes those of checkpoints that are no more.
func dropNotes(folder string, but map[string]string) error {
	have, err := notesIn(folder)
	for name := range have {
		if _, stays := but[name]; !stays {
			err = errors.Join(err, os.Remove(filepath.Join(folder, name)))
		}
	}
	return err
}

// keepNotes keeps those that are not there.
func keepNotes(folder string, notes map[string]string) error {
	for name, text := range notes {
		if fleet.CheckpointID(strings.TrimPrefix(name, notePrefix)).Check() != nil || name != filepath.Base(name) || !strings.HasPrefix(name, notePrefix) {
			continue
		}
		path := filepath.Join(folder, name)
		if _, err := os.Stat(path); err == nil {
			continue
		}
		if err := note.Write(path, []byte(text), 0o600); err != nil {
			return fmt.Errorf("keeping notes: %w", err)
		}
	}
	return nil
}

// beginStreams makes the copies those of an incarnation. What an older one wrote after that was to begin was never
// acknowledged.
func (s *stash) beginStreams(folder, text string) error {
	path := filepath.Join(folder, beginnings)
	had, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("keeping a copy: %w", err)
	}
	is, was := begunIn(text), begunIn(string(had))
	switch {
	case is.Incarnation < was.Incarnation:
		return &wire.Error{Status: http.StatusGone, Reason: "the job has begun again since"}
	case is.Incarnation == was.Incarnation:
		return nil
	}
	for _, name := range outputs() {
		stream := filepath.Join(folder, name)
		if info, err := os.Stat(stream); err == nil && info.Size() > is.end(name) {
			if err := os.Truncate(stream, is.end(name)); err != nil {
				return fmt.Errorf("keeping a copy: %w", err)
			}
		}
		if err := os.Remove(stream + endMark); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("keeping a copy: %w", err)
		}
	}
	if err := note.Write(path, []byte(text), 0o600); err != nil {
		return fmt.Errorf("keeping a copy: %w", err)
	}
	return nil
}

// Give gives a piece of a copy.
func (s *stash) Give(at wire.Place) ([]byte, error) {
	if !jobForm.MatchString(string(at.Job)) {
		return nil, &wire.Error{Status: http.StatusBadRequest, Reason: "that is not a job"}
	}
	f, err := os.Open(filepath.Join(s.dir, string(at.Job), at.Stream))
	if err != nil {
		return nil, &wire.Error{Status: http.StatusNotFound, Reason: "there is no copy of that"}
	}
	defer f.Close()
	data := make([]byte, pieceBytes)
	n, err := f.ReadAt(data, at.Offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("reading a copy: %w", err)
	}
	return data[:n], nil
}

// Between is what this controller does for others.
type Between struct {
	*stash
	images Images
}

// Between is what this controller does for the one that leads.
func (c *Controller) Between() Between { return Between{c.stash, c.Config.Images} }

// Images are the images that are here.
func (b Between) Images() ([]fleet.Image, error) { return b.images.List() }

// ImageFile gives the path of a file of an image.
func (b Between) ImageFile(d fleet.Digest, file string) (string, error) {
	return filepath.Join(b.images.Folder(d), file), nil
}

// gatherWhile takes what other controllers have of the output, as long as this one leads.
func (c *Controller) gatherWhile(ctx context.Context, lost <-chan struct{}, jobs map[fleet.JobID]fleet.Job) error {
	whileLeading, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		select {
		case <-lost:
			stop()
		case <-whileLeading.Done():
		}
	}()
	err := c.gather(whileLeading, jobs)
	if err != nil && c.Others != nil && ctx.Err() == nil {
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
	return err
}
