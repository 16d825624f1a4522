package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// steerPath is where the job's programs say when a move is cheap, and ask for what concerns their own job.
const steerPath = runDir + "/job.sock"

// What programs may do at once.
const (
	mostCallers   = 256                             // connections; few of them wait for answers (fleet.MostWishes), and more wait until one ends
	mostDisturbed = 64                              // processes that said that moves should not begin
	mostOwners    = 256                             // processes that are known to have scratch memory
	wishesAtOnce  = 5                               // then one a second
	callerLimit   = fleet.WishLimit + 2*time.Second // for a line to come, or an answer to be taken
)

// steering is what the programs of this guest say and ask for. It lives in the guest's memory, so it moves with it.
// Times are of the wall clock: another one stops, or jumps, when a container moves.
type steering struct {
	mu      sync.Mutex
	version uint64
	changed chan struct{} // closed with each change; nil: nobody waits
	wishes  []fleet.Wish
	waiting map[uint64]chan fleet.WishAnswer
	marks   fleet.Marks // Cheaps
	cheapAt time.Time
	notNow  map[int32]disturbed // by process
	markers map[int32]marker    // by process
	crowd   bool                // there were more of them than are kept
	scratch map[int32]scratch   // by process
	awaited awaited
	remark  *fleet.Remark
	saidAt  time.Time // the remark
	tokens  float64
	counted time.Time // the tokens
	began   time.Time // from which uptime counts
}

func newSteering() *steering {
	return &steering{waiting: map[uint64]chan fleet.WishAnswer{}, notNow: map[int32]disturbed{}, markers: map[int32]marker{}, scratch: map[int32]scratch{}, tokens: wishesAtOnce, began: time.Now()}
}

// disturbed is how long moves should not begin for a process. It counts by two clocks: the wall clock may be set back, and the other one
// may stand still or jump back when a container moves.
type disturbed struct {
	at   time.Time     // of the wall clock
	up   time.Duration // of the other one
	most time.Duration
}

// left is how much of it is left, by the clock of which more has passed.
func (d disturbed) left(now time.Time, up time.Duration) time.Duration {
	return d.most - max(now.Sub(d.at), up-d.up)
}

// uptime is the clock that nobody sets.
func (s *steering) uptime() time.Duration { return time.Since(s.began) }

// Said returns what programs say and ask for, once that is another version than known.
func (m *member) Said(ctx context.Context, known uint64) (fleet.Said, error) {
	return m.steering.said(ctx, known)
}

// Answer gives programs answers.
func (m *member) Answer(_ context.Context, answers []fleet.WishAnswer) error {
	m.steering.answer(answers)
	return nil
}

func (s *steering) said(ctx context.Context, known uint64) (fleet.Said, error) {
	for {
		s.mu.Lock()
		if s.version != known {
			defer s.mu.Unlock()
			return s.nowLocked(time.Now().Round(0), s.uptime()), nil
		}
		if s.changed == nil {
			s.changed = make(chan struct{})
		}
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return fleet.Said{}, ctx.Err()
		}
	}
}

// nowLocked is what is said now.
func (s *steering) nowLocked(now time.Time, up time.Duration) fleet.Said {
	out := fleet.Said{Version: s.version, Wishes: slices.Clone(s.wishes), Marks: s.marks}
	if s.marks.Cheaps > 0 {
		out.Marks.CheapAgo = max(0, now.Sub(s.cheapAt))
		out.Marks.Cheap = s.restLocked()
	}
	for _, d := range s.notNow {
		out.Marks.NotFor = max(out.Marks.NotFor, d.left(now, up))
	}
	s.countScratchLocked(&out.Marks, now, up)
	if s.remark != nil {
		r := *s.remark
		r.Ago = max(0, now.Sub(s.saidAt))
		out.Remark = &r
	}
	return out.Bounded()
}

// changedLocked tells who waits that something else is said.
func (s *steering) changedLocked() {
	s.version++
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

func (s *steering) answer(answers []fleet.WishAnswer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range answers {
		if waits := s.waiting[a.ID]; waits != nil {
			select {
			case waits <- a:
			default: // it has one
			}
		}
		s.dropLocked(a.ID)
	}
}

// dropLocked ends a wish.
func (s *steering) dropLocked(id uint64) {
	n := len(s.wishes)
	s.wishes = slices.DeleteFunc(s.wishes, func(w fleet.Wish) bool { return w.ID == id })
	if len(s.wishes) != n {
		s.changedLocked()
	}
}

// listen serves the job's programs at a path, until this process ends.
func (s *steering) listen(path string) error {
	os.Remove(path)
	listener, err := net.Listen("unix", path)
	if err == nil {
		err = os.Chmod(path, 0o666) // whoever can reach it is of the job
	}
	if err != nil {
		return fmt.Errorf("listening for the job's programs: %w", err)
	}
	go s.serve(listener)
	return nil
}

func (s *steering) serve(listener net.Listener) {
	callers := make(chan struct{}, mostCallers)
	for {
		callers <- struct{}{} // nobody is refused whose line was not read: it may be a mark, which takes no time
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			<-callers
			time.Sleep(time.Second) // perhaps out of file descriptors, which passes
			continue
		}
		go func() {
			defer func() { <-callers }()
			s.attend(conn)
		}()
	}
}

// attend answers one call of a program. A bug in it must not end the guest.
func (s *steering) attend(conn net.Conn) {
	defer conn.Close()
	defer func() {
		if p := recover(); p != nil {
			say("bug in answering a program: %v", p)
		}
	}()
	_ = conn.SetReadDeadline(time.Now().Add(callerLimit))
	line, err := bufio.NewReaderSize(conn, steerBytes).ReadSlice('\n')
	answer := fleet.WishAnswer{Code: fleet.WishInvalid, Text: fmt.Sprintf("a call is one line of at most %d bytes", steerBytes)}
	if err == nil {
		answer = s.obey(process(conn), strings.TrimSuffix(string(line), "\n"))
	}
	_ = conn.SetWriteDeadline(time.Now().Add(callerLimit))
	_, _ = conn.Write(steerReply(answer)) // if the program is gone, nobody needs it
}

// process is who calls; 0: not known.
func process(conn net.Conn) (pid int32) {
	c, is := conn.(*net.UnixConn)
	if !is {
		return 0
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if who, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = who.Pid
		}
	})
	return pid
}

// obey does what a line says.
func (s *steering) obey(pid int32, line string) fleet.WishAnswer {
	c, err := readSteer(line)
	if err != nil {
		return fleet.WishAnswer{Code: fleet.WishInvalid, Text: err.Error()}
	}
	now := time.Now().Round(0)
	s.mu.Lock()
	switch {
	case c.cheap, c.gave, c.bytes != nil:
		defer s.mu.Unlock()
		return s.markLocked(pid, c, now)
	case c.notNow != nil:
		if no := s.disturbLocked(pid, *c.notNow, now); no != "" {
			s.mu.Unlock()
			return fleet.WishAnswer{Code: fleet.WishBusy, Text: no}
		}
	case c.remark != nil:
		s.remark, s.saidAt = c.remark, now
	default:
		s.mu.Unlock()
		return s.ask(c.wish, now)
	}
	defer s.mu.Unlock()
	s.changedLocked()
	return fleet.WishAnswer{}
}

// disturbLocked notes until when moves should not begin for a process.
func (s *steering) disturbLocked(pid int32, d time.Duration, now time.Time) (no string) {
	up := s.uptime()
	for of, one := range s.notNow {
		if one.left(now, up) <= 0 {
			delete(s.notNow, of)
		}
	}
	if _, known := s.notNow[pid]; !known && len(s.notNow) >= mostDisturbed {
		return fmt.Sprintf("%d processes of this guest have moves wait already", mostDisturbed)
	}
	s.notNow[pid] = disturbed{now, up, min(d, fleet.MostNotNow)}
	m := s.markers[pid]
	s.noteMarkerLocked(pid, marker{cheap: m.cheap, ends: m.ends || m.cheap, busy: true})
	if of, has := s.scratch[pid]; has {
		of.rests = false
		s.scratch[pid] = of
	}
	return ""
}

// marker is a process that marks moments.
type marker struct {
	cheap bool // it marked a cheap one
	ends  bool // and has said since when one was over, by having moves wait
	busy  bool // which is the last that it said
}

func (s *steering) noteMarkerLocked(pid int32, m marker) {
	if _, known := s.markers[pid]; !known && len(s.markers) >= mostDisturbed {
		s.crowd = true
		return
	}
	s.markers[pid] = m
}

// restLocked reports whether all processes that mark cheap moments say when these are over, and none has said so of its last one.
func (s *steering) restLocked() bool {
	maps.DeleteFunc(s.markers, func(pid int32, _ marker) bool { return errors.Is(unix.Kill(int(pid), 0), unix.ESRCH) })
	for _, m := range s.markers {
		if !m.ends || m.busy {
			return false
		}
	}
	return len(s.markers) > 0 && !s.crowd
}

// ask passes a wish on and waits for its answer.
func (s *steering) ask(w fleet.Wish, now time.Time) fleet.WishAnswer {
	answer := make(chan fleet.WishAnswer, 1)
	s.mu.Lock()
	if since := now.Sub(s.counted); since > 0 || s.counted.After(now) {
		s.tokens = min(wishesAtOnce, s.tokens+max(0, since.Seconds()))
		s.counted = now
	}
	if s.tokens < 1 || len(s.wishes) >= fleet.MostWishes {
		s.mu.Unlock()
		return fleet.WishAnswer{Code: fleet.WishBusy, Text: "programs of this guest ask too often: once a second, and a few times at once"}
	}
	s.tokens--
	w.ID = rand.Uint64()
	s.waiting[w.ID] = answer
	s.wishes = append(s.wishes, w)
	s.changedLocked()
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.waiting, w.ID)
		s.dropLocked(w.ID)
	}()
	late := time.NewTimer(w.Patience())
	defer late.Stop()
	select {
	case a := <-answer:
		return a
	case <-late.C:
		return fleet.WishAnswer{Code: fleet.WishLate, Text: fmt.Sprintf("the controller did not answer within %s", w.Patience())}
	}
}
