package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"

	"pagurus/fleet"
	"pagurus/serve/wire"
)

const (
	pieceBytes = 1 << 20 // the most that one read returns
	// aheadBytes bounds the input that the guest has not yet asked for: a program that reads
	// slowly must not fill the disk.
	aheadBytes = 4 << 20
	// keptBytes bounds each stored output stream: a program that never stops writing must
	// not fill the disk.
	keptBytes = 4 << 30
	endMark   = ".eof"
)

// dropped is the text at the end of a stream that was cut.
const dropped = "\npagurus: the program wrote more than is kept of its output; the rest is lost\n"

// spool keeps jobs' streams in files, DIR/JOB/STREAM. An empty file beside a stream marks
// its end. A controller's restart loses nothing. Files are not synced: output may be lost
// when its machine loses power.
type spool struct {
	dir    string
	kept   int64   // the most bytes of each output stream
	room   *room   // counts all streams
	copies *copies // at other controllers; nil: there are none
	mu     sync.Mutex
	jobs   map[fleet.JobID]map[string]*stream // of the jobs that there are, of others none is made
}

// stream is one growing file. wake is closed and replaced at every change that a reader or
// writer may wait for.
//
// Bytes beyond most are accepted and dropped, so that the program goes on: the file grows by
// a hole, which takes no space and keeps the agents' offset.
type stream struct {
	path  string
	job   fleet.JobID
	all   *room // the spool's
	most  int64 // bytes that are stored
	mu    sync.Mutex
	known bool  // size and eof are read from the files
	size  int64 // length, including dropped bytes
	eof   bool
	gone  bool  // the job is forgotten
	ended bool  // the end is marked in a file
	taken int64 // stdin: the guest's offset

	copies     *copies // at other controllers; nil: there are none
	agreed     int64   // how much most controllers have
	agreedOver bool    // most have the end
	begins     string  // the text of the file of beginnings

	incarnation int   // of the job, that writes it
	base        int64 // where that begins

	wake chan struct{}
}

func newSpool(dir string) *spool {
	return &spool{dir: dir, kept: keptBytes, room: newRoom(dir), jobs: map[fleet.JobID]map[string]*stream{}}
}

// know makes place for a job's streams. bytes is what an earlier controller left.
func (s *spool) know(job fleet.JobID, uid uint32, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.jobs[job] == nil {
		s.jobs[job] = map[string]*stream{}
	}
	s.room.own(job, uid, bytes)
}

// followJobs makes the spool one of these jobs, when it is not known what changed: it forgets others, and ends the streams of those
// that have ended.
func (s *spool) followJobs(jobs map[fleet.JobID]fleet.Job) (err error) {
	s.mu.Lock()
	here := slices.Collect(maps.Keys(s.jobs))
	s.mu.Unlock()
	for _, id := range here {
		if _, there := jobs[id]; !there {
			err = errors.Join(err, s.forget(id))
		}
	}
	for id, j := range jobs {
		s.know(id, j.Spec.UID, 0)
		if j.State == fleet.JobEnded {
			s.finish(id)
		} else {
			err = errors.Join(err, s.followIncarnation(j))
		}
	}
	return err
}

// open removes folders without a job, ends the streams of ended jobs, and counts what is there.
func (s *spool) open(jobs map[fleet.JobID]fleet.Job) error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("opening the spool: %w", err)
	}
	there, err := os.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("opening the spool: %w", err)
	}
	for _, d := range there {
		id := fleet.JobID(d.Name())
		if _, known := jobs[id]; known {
			bytes, err := s.left(id)
			if err != nil {
				return err
			}
			s.know(id, jobs[id].Spec.UID, bytes)
			continue
		}
		if err := os.RemoveAll(filepath.Join(s.dir, d.Name())); err != nil {
			return fmt.Errorf("removing a forgotten job's output: %w", err)
		}
	}
	return s.followJobs(jobs)
}

var jobForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]*$`) // a safe file name

// stream finds a stream of a job that there is.
func (s *spool) stream(job fleet.JobID, name string) (*stream, error) {
	if !jobForm.MatchString(string(job)) {
		return nil, fmt.Errorf("job %q cannot have a folder of its own", job)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.jobs[job] == nil { // it may have been forgotten since the caller looked
		return nil, &wire.Error{Status: http.StatusNotFound, Reason: fmt.Sprintf("there is no job %s: `pagurus job ls` lists them", job)}
	}
	st := s.jobs[job][name]
	if st == nil {
		st = &stream{path: filepath.Join(s.dir, string(job), name), job: job, all: s.room, most: s.most(name), copies: s.copies, wake: make(chan struct{})}
		s.jobs[job][name] = st
	}
	return st, nil
}

// most is how many bytes of a stream are stored.
func (s *spool) most(name string) int64 {
	if name == fleet.Stdin {
		return math.MaxInt64 // a program needs all of its input; its room bounds it
	}
	return s.kept
}

// have returns the length of a job's output streams.
func (s *spool) have(job fleet.JobID) map[string]int64 {
	out := map[string]int64{}
	for _, name := range []string{fleet.Stdout, fleet.Stderr} {
		if st, err := s.stream(job, name); err == nil {
			st.mu.Lock()
			if st.findStored() == nil { // else the agent asks again before it sends anything
				out[name] = max(st.safe()-st.base, 0)
			}
			st.mu.Unlock()
		}
	}
	return out
}

// finish ends all of a job's streams.
func (s *spool) finish(job fleet.JobID) {
	s.room.rest(job)
	for _, name := range []string{fleet.Stdin, fleet.Stdout, fleet.Stderr} {
		if st, err := s.stream(job, name); err == nil { // else it is forgotten
			st.mu.Lock()
			st.eof = true // in memory only: the ended job itself implies it
			st.changed()
			st.mu.Unlock()
		}
	}
}

// forget removes all of a job's streams.
func (s *spool) forget(job fleet.JobID) error {
	s.mu.Lock()
	streams := maps.Clone(s.jobs[job])
	delete(s.jobs, job)
	s.mu.Unlock()
	for _, st := range streams {
		st.mu.Lock()
		st.gone, st.eof = true, true
		st.changed()
		st.mu.Unlock()
		if st.copies != nil {
			st.copies.forget(st)
		}
	}
	if !jobForm.MatchString(string(job)) {
		return nil
	}
	err := os.RemoveAll(filepath.Join(s.dir, string(job)))
	if err == nil {
		s.room.drop(job)
	}
	return err
}

// changed wakes waiting calls; the caller holds the lock.
func (st *stream) changed() {
	close(st.wake)
	st.wake = make(chan struct{})
}

// findStored reads once what an earlier controller left.
func (st *stream) findStored() error {
	if st.known {
		return nil
	}
	info, err := os.Stat(st.path)
	switch {
	case err == nil:
		st.size = info.Size()
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("checking %s: %w", st.path, err)
	}
	if _, err := os.Stat(st.path + endMark); err == nil {
		st.eof, st.ended = true, true
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("checking %s: %w", st.path, err)
	}
	st.known = true
	return nil
}

// wait returns true after a change, or false when ctx ended first. The caller holds the
// lock, and again afterwards.
func (st *stream) wait(ctx context.Context) bool {
	wake := st.wake
	st.mu.Unlock()
	defer st.mu.Lock()
	select {
	case <-wake:
		return true
	case <-ctx.Done():
		return false
	}
}

// read gives bytes from offset on, and waits for some until ctx ends.
func (st *stream) read(ctx context.Context, offset int64) (data []byte, ended bool, err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if err := st.findStored(); err != nil {
		return nil, false, err
	}
	// Who has read more saw what came after a checkpoint from which the job goes on: it comes again.
	for offset >= st.shown() && !st.over() && st.wait(ctx) {
	}
	if st.gone {
		return nil, true, nil
	}
	if offset > st.shown() {
		if !st.over() {
			return nil, false, nil
		}
		return nil, false, &wire.Error{Status: http.StatusRequestedRangeNotSatisfiable, Reason: fmt.Sprintf("there are only %d bytes so far: begin there", st.shown())}
	}
	if offset < st.shown() {
		if data, err = st.piece(offset); err != nil {
			return nil, false, err
		}
		data = data[:min(int64(len(data)), st.shown()-offset)]
	}
	return data, st.over() && offset+int64(len(data)) == st.shown(), nil
}

// over reports whether nothing will be readable that is not.
func (st *stream) over() bool { return st.eof && (st.gone || st.safe() == st.size) }

// shown is the number of readable bytes.
func (st *stream) shown() int64 {
	if st.safe() > st.most {
		return st.most + int64(len(dropped))
	}
	return st.safe()
}

func (st *stream) piece(offset int64) ([]byte, error) {
	if offset >= st.most {
		return []byte(dropped[offset-st.most:]), nil
	}
	f, err := os.Open(st.path)
	if err != nil {
		return nil, fmt.Errorf("reading output: %w", err)
	}
	defer f.Close()
	data := make([]byte, min(pieceBytes, min(st.size, st.most)-offset))
	if _, err := io.ReadFull(io.NewSectionReader(f, offset, int64(len(data))), data); err != nil {
		return nil, fmt.Errorf("reading %s: %w", st.path, err)
	}
	return data, nil
}

// write adds the new part of data and returns the stream's end. After an error nothing was
// added.
func (st *stream) write(offset int64, data []byte, eof bool) (int64, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if err := st.findStored(); err != nil {
		return 0, err
	}
	if st.eof || st.gone || offset > st.size {
		return st.size, nil
	}
	end := offset + int64(len(data))
	if fresh := end - st.size; fresh > 0 {
		if err := st.add(data[int64(len(data))-fresh:]); err != nil {
			return 0, err
		}
		st.size = end
		st.changed()
	}
	if eof && end == st.size {
		if err := st.mark(); err != nil {
			return 0, err
		}
		st.eof, st.ended = true, true
		st.changed()
	}
	return st.size, nil
}

// add appends data, up to the stored maximum.
func (st *stream) add(data []byte) error {
	kept := data[:max(0, min(int64(len(data)), st.most-st.size))]
	if len(kept) > 0 {
		if err := st.all.takeRoom(st.job, int64(len(kept))); err != nil {
			return err
		}
	}
	err := st.extend(kept, int64(len(data)))
	if err != nil {
		st.all.giveBack(st.job, int64(len(kept)))
	}
	return st.all.explained(st.job, int64(len(kept)), err)
}

// extend writes kept at the stream's end, and makes the file longer by bytes.
func (st *stream) extend(kept []byte, bytes int64) error {
	f, err := st.create(st.path)
	if err != nil {
		return err
	}
	if _, err = f.WriteAt(kept, st.size); err == nil && int64(len(kept)) < bytes {
		err = f.Truncate(st.size + bytes)
	}
	if err != nil {
		err = errors.Join(err, f.Truncate(st.size)) // no partial write remains
	}
	return errors.Join(err, f.Close())
}

func (st *stream) mark() error {
	f, err := st.create(st.path + endMark)
	if err == nil {
		err = f.Close()
	}
	return st.all.explained(st.job, 0, err)
}

func (st *stream) create(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
}

// awaitReader waits until the guest's offset is near the end. false: it is not in time.
func (st *stream) awaitReader(ctx context.Context) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	for st.size-st.taken >= aheadBytes && !st.eof {
		if !st.wait(ctx) {
			return false
		}
	}
	return true
}

// took notes the guest's offset.
func (st *stream) took(offset int64) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if offset > st.taken {
		st.taken = offset
		st.changed()
	}
}
