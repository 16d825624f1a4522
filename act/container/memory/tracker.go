package memory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Tracker finds out which pages of some processes' private memory were written since they
// were last sent. Its methods must not be called concurrently.
//
// It needs a userfaultfd of each process, which only the process itself can open. So each
// process is made to open one, once. One of its threads is stopped for less than a
// millisecond and then continues as before. A system call in which the thread waits may
// end with EINTR, as it may after CRIU's own stop. Some processes cannot be tracked:
// those that hang in the kernel, are traced by another process, run 32-bit code, or share
// memory with a tracked process. They are left alone, and all their memory is sent at the
// last pass.
//
// Tracked memory and memory mapped since the last pass are separate mappings. A program that
// moves both by one mremap gets EFAULT. From Linux 6.17 on, a part may have been moved then.
//
// When the Tracker is closed or this process is killed, nothing of it is left in the
// processes. But huge pages that they wrote to meanwhile stay split until the kernel
// makes them huge again.
type Tracker struct {
	kinds   kinds
	tracked map[int]*process // by PID on this host
	stopped time.Duration
	room    room
}

// Track starts to track processes, given by their PIDs in the caller's pid namespace. It
// is not an error if a process has ended or ends meanwhile. The processes must not be
// frozen. After an error none is tracked. The error wraps ErrUnsupported if the kernel
// cannot track.
func Track(ctx context.Context, pids []int) (*Tracker, error) {
	if err := Supported(); err != nil {
		return nil, err
	}
	guards, err := knowsGuards()
	if err != nil {
		return nil, err
	}
	t := &Tracker{kinds: makeKinds(guards), tracked: map[int]*process{}, room: makeRoom()}
	err = t.find(pids, func(Piece) error { return nil })
	if err == nil {
		err = t.adopt(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// Stopped returns the longest time for which tracking has stopped a thread.
func (t *Tracker) Stopped() time.Duration { return t.stopped }

// Untracked returns which processes are not tracked, and why.
func (t *Tracker) Untracked() map[int]string {
	out := map[int]string{}
	for pid, p := range t.tracked {
		if p.uffd < 0 && p.why != "" {
			out[pid] = p.why
		}
	}
	return out
}

// Pass sends the pages written since the last pass, while the processes run. The first
// pass sends all memory. pids are the processes that exist now; new ones are tracked from
// now on. After an error some memory that counts as sent was not sent. Then only Close,
// and Track with an empty target, can start again.
func (t *Tracker) Pass(ctx context.Context, pids []int, send Send) (Passed, error) {
	s := newPass(ctx, t.kinds, t.room, send)
	err := t.find(pids, func(p Piece) error { return send(p, nil) })
	if err == nil {
		err = t.adopt(ctx)
	}
	if err == nil {
		err = t.sweep(s)
	}
	if err == nil {
		s.done.RemainingBytes, err = t.Dirty(ctx)
	}
	return s.done, err
}

// Last sends the rest while the processes are frozen. It ends tracking, also after an
// error. New processes are sent whole. The processes must not run again before CRIU has
// dumped them; if they do, the sent memory cannot be used.
func (t *Tracker) Last(ctx context.Context, pids []int, send Send) (Passed, error) {
	return t.finish(ctx, pids, send, false)
}

// LeaveLazy is like Last, but sends only the addresses of the rest. The target fetches
// these pages from the processes, which must not change until that is done.
func (t *Tracker) LeaveLazy(ctx context.Context, pids []int, send Send) (Passed, error) {
	return t.finish(ctx, pids, send, true)
}

func (t *Tracker) finish(ctx context.Context, pids []int, send Send, owing bool) (Passed, error) {
	s := newPass(ctx, t.kinds, t.room, send)
	s.last, s.lazy = true, owing
	err := t.find(pids, func(p Piece) error { return send(p, nil) })
	if err == nil {
		err = t.sweep(s)
	}
	return s.done, errors.Join(err, t.Close())
}

// Dirty returns how many bytes a pass would send now, including those that only the last
// pass would send. It changes nothing.
func (t *Tracker) Dirty(ctx context.Context) (int64, error) {
	s, total := newPass(ctx, t.kinds, t.room, nil), int64(0)
	for _, p := range t.inOrder() {
		n, err := s.count(p)
		if err != nil && !errors.Is(err, errEnded) {
			return 0, fmt.Errorf("scan the memory of process %d: %w", p.pid, err)
		}
		total += n
	}
	return total, nil
}

// Close ends tracking. It may be called again.
func (t *Tracker) Close() error {
	for pid, p := range t.tracked {
		p.close()
		delete(t.tracked, pid)
	}
	return nil
}

func (t *Tracker) inOrder() []*process {
	list := slices.Collect(maps.Values(t.tracked))
	slices.SortFunc(list, func(a, b *process) int { return a.pid - b.pid })
	return list
}

// find updates the list of known processes. What was sent of a process that has ended
// counts as gone.
func (t *Tracker) find(pids []int, send func(Piece) error) error {
	for _, p := range t.inOrder() {
		if slices.Contains(pids, p.pid) && p.alive() {
			continue
		}
		if err := t.end(p, send); err != nil {
			return err
		}
	}
	for _, pid := range pids {
		if t.tracked[pid] != nil {
			continue
		}
		p, err := openProcess(pid)
		if errors.Is(err, errEnded) {
			continue
		}
		if err != nil {
			return fmt.Errorf("find process %d: %w", pid, err)
		}
		t.tracked[pid] = p
	}
	return nil
}

// end forgets a process that has ended.
func (t *Tracker) end(p *process, send func(Piece) error) error {
	p.close()
	delete(t.tracked, p.pid)
	return send(Piece{Process: p.number, What: Gone, Bytes: spaceEnd})
}

// adopt starts to track the processes that are not tracked yet.
func (t *Tracker) adopt(ctx context.Context) error {
	var pids []int
	for _, p := range t.inOrder() {
		if p.uffd >= 0 || p.asked >= mostAsked {
			continue
		}
		if err := t.alone(p); err != nil {
			p.why = err.Error()
			continue
		}
		pids = append(pids, p.pid)
	}
	if len(pids) == 0 {
		return nil
	}
	list, err := borrow(ctx, pids)
	if err != nil {
		return err
	}
	for _, l := range list {
		t.stopped = max(t.stopped, l.Stopped)
		if err := t.trackUffd(t.tracked[l.PID], l); err != nil {
			t.tracked[l.PID].why = err.Error()
			l.drop()
		}
	}
	return nil
}

// trackUffd tracks a process with the userfaultfd that was taken from it.
func (t *Tracker) trackUffd(p *process, l takenUffd) error {
	p.asked++
	if l.Error != "" {
		return errors.New(l.Error)
	}
	if err := t.alone(p); err != nil { // two new processes may share their memory
		return err
	}
	if !p.alive() { // and its PID may have been another process's when that was stopped
		return errEnded
	}
	if err := agreeUffd(l.uffd); err != nil {
		return err
	}
	p.uffd, p.passed, p.why = l.uffd, false, ""
	return nil
}

// alone returns an error if a process shares its memory with a tracked one.
func (t *Tracker) alone(p *process) error {
	for _, q := range t.tracked {
		if q == p || q.uffd < 0 {
			continue
		}
		same, err := p.shares(q)
		if err != nil {
			return fmt.Errorf("compare its memory with that of process %d: %w", q.pid, err)
		}
		if same {
			return fmt.Errorf("it shares its memory with process %d", q.pid)
		}
	}
	return nil
}

// sweep makes a pass over every process.
func (t *Tracker) sweep(s *pass) error {
	for _, p := range t.inOrder() {
		err := s.over(p)
		switch {
		case errors.Is(err, errForgotten):
		case errors.Is(err, errEnded):
			if err := t.end(p, func(piece Piece) error { return s.send(piece, nil) }); err != nil {
				return err
			}
		case err != nil:
			return fmt.Errorf("copy the memory of process %d: %w", p.pid, err)
		}
	}
	return nil
}
