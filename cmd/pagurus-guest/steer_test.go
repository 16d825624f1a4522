package main

import (
	"bytes"
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// steered is a guest's socket for programs.
func steered(t *testing.T) (*steering, func(line string) string) {
	t.Helper()
	s, dial := steeredBy(t)
	return s, func(line string) string {
		conn, err := dial()
		if err != nil {
			t.Error(err)
			return ""
		}
		defer conn.Close()
		_, _ = conn.Write([]byte(line + "\n"))
		var b bytes.Buffer
		_, _ = b.ReadFrom(conn)
		return b.String()
	}
}

// steeredBy is a guest's socket for programs, to which dial connects.
func steeredBy(t *testing.T) (s *steering, dial func() (net.Conn, error)) {
	t.Helper()
	s, at := newSteering(), filepath.Join(t.TempDir(), "s")
	if err := s.listen(at); err != nil {
		t.Fatal(err)
	}
	return s, func() (net.Conn, error) { return net.Dial("unix", at) }
}

func TestProgramsAskAndTheHostAnswers(t *testing.T) {
	s, call := steered(t)
	got := make(chan string, 1)
	go func() { got <- call("pagurus1 move job rank 3") }()
	said, err := s.said(limited(t), 0)
	if err != nil || len(said.Wishes) != 1 {
		t.Fatalf("%+v, %v", said, err)
	}
	w := said.Wishes[0]
	if w.Verb != fleet.WishMove || !w.Whole || w.Aim != fleet.AimRank || w.Rank != 3 || w.ID == 0 {
		t.Errorf("%+v", w)
	}
	again, err := s.said(limited(t), 0) // another host asks: what is not answered is still there
	if err != nil || len(again.Wishes) != 1 || again.Wishes[0] != w {
		t.Errorf("%+v, %v", again, err)
	}
	a := fleet.WishAnswer{ID: w.ID, Code: fleet.WishRefused, Text: "no\nroom", Rows: []string{"host h1"}}
	s.answer([]fleet.WishAnswer{{ID: 1}, a, a})
	if reply := <-got; reply != "pagurus1 3 no room\nhost h1\n\n" {
		t.Errorf("%q", reply)
	}
	if said, err = s.said(limited(t), said.Version); err != nil || len(said.Wishes) != 0 {
		t.Errorf("%+v, %v", said, err)
	}
	short, stop := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer stop()
	if said, err := s.said(short, said.Version); err == nil {
		t.Errorf("nothing is new, and %+v is said", said)
	}
}

func TestProgramsAskForGuests(t *testing.T) {
	s, call := steered(t)
	go call("pagurus1 grow guests 3 2000")
	said, err := s.said(limited(t), 0)
	if err != nil || len(said.Wishes) != 1 {
		t.Fatalf("%+v, %v", said, err)
	}
	w := said.Wishes[0]
	if w.Verb != fleet.WishGrow || w.Count != 3 || w.Ranks != 0 || w.Within != 2*time.Second || w.Patience() != fleet.WishLimit+2*time.Second {
		t.Errorf("%+v", w)
	}
	go call("pagurus1 grow ranks 70000 600000") // more than any job has
	go call("pagurus1 grow ranks 70 600000")
	testkit.Until(t, 10*time.Second, "both are heard", func() bool {
		said, err := s.said(limited(t), 0)
		return err == nil && len(said.Wishes) == 2 && said.Wishes[1].Ranks == 70
	})
}

func TestMarksAndRemarks(t *testing.T) {
	s, call := steered(t)
	for _, line := range []string{"pagurus1 not-now 30000", "pagurus1 remark ill a disk is slow"} {
		if got := call(line); got != "pagurus1 0 \n\n" {
			t.Errorf("%s: %q", line, got)
		}
	}
	said, err := s.said(limited(t), 0)
	if err != nil || said.Marks.NotFor < 20*time.Second || said.Marks.NotFor > 30*time.Second || said.Marks.Cheaps != 0 || said.Remark == nil || said.Remark.Text != "a disk is slow" || said.Remark.Level != "ill" {
		t.Errorf("%+v, %v", said, err)
	}
	call("pagurus1 cheap") // of the same process
	if said, err = s.said(limited(t), said.Version); err != nil || said.Marks.NotFor != 0 || said.Marks.Cheaps != 1 || said.Marks.CheapAgo > 10*time.Second {
		t.Errorf("%+v, %v", said, err)
	}
	call("pagurus1 not-now 4000000000")
	if said, err = s.said(limited(t), said.Version); err != nil || said.Marks.NotFor > fleet.MostNotNow {
		t.Errorf("%+v, %v", said, err)
	}
}

// All ranks of a guest may mark at once, as after a barrier, while others have not said yet what they want.
func TestManyProgramsMarkAtOnce(t *testing.T) {
	s, dial := steeredBy(t)
	begin := func(line string) net.Conn {
		conn, err := dial()
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write([]byte(line))
		return conn
	}
	done := func(conn net.Conn) {
		t.Helper()
		defer conn.Close()
		var b bytes.Buffer
		if _, _ = b.ReadFrom(conn); b.String() != "pagurus1 0 \n\n" {
			t.Errorf("%q", b.String())
		}
	}
	done(begin("pagurus1 not-now 30000\n"))
	var all []net.Conn
	for range mostCallers - 1 {
		all = append(all, begin("pagurus1 ch"))
	}
	done(begin("pagurus1 cheap\n"))
	for range 100 { // those beyond the bound wait for the others
		all = append(all, begin("pagurus1 cheap\n"))
	}
	for _, conn := range all[:mostCallers-1] {
		_, _ = conn.Write([]byte("eap\n"))
	}
	for _, conn := range all {
		done(conn)
	}
	if said, err := s.said(limited(t), 0); err != nil || said.Marks.Cheaps != 100+mostCallers || said.Marks.NotFor != 0 {
		t.Errorf("%+v, %v", said, err)
	}
}

// Moves do not wait for longer than was said, whichever clock is set back or jumps.
func TestClocksThatAreSet(t *testing.T) {
	at := time.Now().Round(0)
	d := disturbed{at, time.Hour, 30 * time.Second}
	for _, c := range []struct {
		what       string
		wall, up   time.Duration // that passed
		wantedLeft time.Duration
	}{
		{"at once", 0, 0, 30 * time.Second},
		{"later", 10 * time.Second, 10 * time.Second, 20 * time.Second},
		{"the wall clock is set back", -time.Hour, 31 * time.Second, -time.Second},
		{"the other one jumps back", 31 * time.Second, -time.Hour, -time.Second},
		{"the wall clock is set forward", time.Hour, time.Second, 30*time.Second - time.Hour},
	} {
		if left := d.left(at.Add(c.wall), time.Hour+c.up); left != c.wantedLeft {
			t.Errorf("%s: %s are left", c.what, left)
		}
	}
}

func TestProgramsThatAskTooOftenAreTold(t *testing.T) {
	s, call := steered(t)
	replies := make(chan string, 30)
	for range 30 {
		go func() { replies <- call("pagurus1 where") }()
	}
	busy, done := 0, 0
	testkit.Until(t, 20*time.Second, "each is answered", func() bool {
		select {
		case r := <-replies:
			if done++; strings.HasPrefix(r, "pagurus1 4 ") {
				busy++
			}
			return done == cap(replies)
		case <-time.After(100 * time.Millisecond): // the others wait
		}
		said, err := s.said(limited(t), 0)
		if err != nil || len(said.Wishes) > fleet.MostWishes {
			t.Errorf("%+v, %v", said, err)
		}
		for _, w := range said.Wishes {
			s.answer([]fleet.WishAnswer{{ID: w.ID}})
		}
		return false
	})
	if busy < 10 { // a busy machine takes a second or two, and for each one more is taken
		t.Errorf("%d are busy", busy)
	}
}

func TestCallsThatAreNone(t *testing.T) {
	_, call := steered(t)
	for _, line := range []string{"", "hello", "pagurus2 where", "pagurus1", "pagurus1 fly", "pagurus1 where now", "pagurus1 move", "pagurus1 move me", "pagurus1 move you away", "pagurus1 move me rank", "pagurus1 move me rank -1",
		"pagurus1 move me away 3", "pagurus1 move me sideways", "pagurus1 cost", "pagurus1 grow", "pagurus1 grow guests 1", "pagurus1 grow guests 0 1000", "pagurus1 grow guests 17 1000", "pagurus1 grow hosts 1 1000", "pagurus1 grow guests 1 0", "pagurus1 grow ranks 3 600001", "pagurus1 grow guests -1 9",
		"pagurus1 not-now", "pagurus1 not-now -5", "pagurus1 not-now x", "pagurus1 remark", "pagurus1 remark ill", "pagurus1 remark loud x", "pagurus1 remark ill \x1b[2J",
		strings.Repeat("x", 600)} {
		if got := call(line); !strings.HasPrefix(got, "pagurus1 2 ") || !strings.HasSuffix(got, "\n\n") {
			t.Errorf("%q: %q", line, got)
		}
	}
}

// FuzzSteer: whatever a program writes, it gets one whole answer.
func FuzzSteer(f *testing.F) {
	for _, line := range []string{"pagurus1 where", "pagurus1 move me rank 7", "pagurus1 move job better", "pagurus1 not-now 100", "pagurus1 cheap", "pagurus1 remark note x", "pagurus1 cost job", "pagurus1 grow ranks 3 2000", "\x00"} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		c, err := readSteer(line)
		if err == nil && !c.cheap && c.notNow == nil && c.remark == nil && !c.wish.Sound() {
			t.Errorf("%q is %+v", line, c)
		}
		reply := string(steerReply(fleet.WishAnswer{Code: fleet.WishInvalid, Text: line, Rows: []string{line, line + line}}))
		if !strings.HasPrefix(reply, "pagurus1 2 ") || !strings.HasSuffix(reply, "\n\n") || strings.Count(reply, "\n\n") != 1 || len(reply) > 8<<10 {
			t.Errorf("%q: %q", line, reply)
		}
	})
}

// A program that says when its cheap moments are over is taken at its word, and what it gave back counts as long as the moment lasts.
func TestACheapMomentThatLasts(t *testing.T) {
	s, call := steered(t)
	marks := func(want fleet.Marks) {
		t.Helper()
		said, err := s.said(limited(t), 0)
		if said.Marks.CheapAgo, said.Marks.NotFor = 0, 0; err != nil || said.Marks != want {
			t.Errorf("%+v, %v, want %+v", said.Marks, err, want)
		}
	}
	says := func(line string) {
		t.Helper()
		if got := call(line); !strings.HasPrefix(got, "pagurus1 0 ") {
			t.Errorf("%s: %q", line, got)
		}
	}
	s.await(fleet.Awaited{For: "c1 copy"})
	says("pagurus1 cheap 5000000")
	says("pagurus1 gave 5000000")
	marks(fleet.Marks{Cheaps: 1, Scratch: 5000000, For: "c1 copy"}) // nobody knows how long that lasts
	says("pagurus1 not-now 1000")
	marks(fleet.Marks{Cheaps: 1, Scratch: 5000000, For: "c1 copy"})
	says("pagurus1 cheap 5000000")
	says("pagurus1 gave 5000000")
	marks(fleet.Marks{Cheaps: 2, Scratch: 5000000, For: "c1 copy", Cheap: true})
	s.await(fleet.Awaited{For: "c1 switch"})
	marks(fleet.Marks{Cheaps: 2, Scratch: 5000000, For: "c1 switch", Cheap: true})
	s.markers[1<<30] = marker{cheap: true} // its process has ended
	for _, other := range []marker{{cheap: true}, {busy: true}, {cheap: true, ends: true, busy: true}} {
		s.markers[1] = other
		marks(fleet.Marks{Cheaps: 2, Scratch: 5000000, For: "c1 switch"})
	}
	s.markers[1] = marker{cheap: true, ends: true}
	marks(fleet.Marks{Cheaps: 2, Scratch: 5000000, For: "c1 switch", Cheap: true})
	says("pagurus1 not-now 1000")
	marks(fleet.Marks{Cheaps: 2, Scratch: 5000000, Held: 5000000, For: "c1 switch"})
}

// A program with scratch memory is told to give it back where a move waits, and its moment counts when it has.
func TestScratchMemoryIsGivenBackForAMove(t *testing.T) {
	s, call := steered(t)
	says := func(line, want string) {
		t.Helper()
		if got := call(line); got != want {
			t.Errorf("%s: %q", line, got)
		}
	}
	const fine, give = "pagurus1 0 \n\n", "pagurus1 0 \ngive 1\n\n"
	marks := func(want fleet.Marks) {
		t.Helper()
		said, err := s.said(limited(t), 0)
		if said.Marks.CheapAgo = 0; err != nil || said.Marks != want {
			t.Errorf("%+v, %v, want %+v", said.Marks, err, want)
		}
	}
	says("pagurus1 scratch 5000000", fine)
	says("pagurus1 cheap 5000000", fine)
	marks(fleet.Marks{Cheaps: 1, Scratch: 5000000, Held: 5000000})
	s.await(fleet.Awaited{For: "c1 copy"})
	marks(fleet.Marks{Cheaps: 1, Scratch: 5000000, Held: 5000000, For: "c1 copy"})
	says("pagurus1 cheap 6000000", give)
	marks(fleet.Marks{Cheaps: 1, Scratch: 6000000, Held: 6000000, For: "c1 copy"})
	says("pagurus1 gave 5900000", fine)
	marks(fleet.Marks{Cheaps: 2, Scratch: 6000000, For: "c1 copy"})
	says("pagurus1 cheap 6000000", give) // it was written again
	s.await(fleet.Awaited{For: "c1 switch"})
	marks(fleet.Marks{Cheaps: 2, Scratch: 6000000, Held: 6000000, For: "c1 switch"})
	says("pagurus1 cheap", fine) // it has none any more
	marks(fleet.Marks{Cheaps: 3, For: "c1 switch"})
	s.await(fleet.Awaited{})
	says("pagurus1 cheap 6000000", fine)
	s.await(fleet.Awaited{For: "c2 copy"})
	s.awaited.told.at = s.awaited.told.at.Add(-2 * fleet.AwaitedKept) // nobody tells again
	says("pagurus1 cheap 6000000", fine)
	marks(fleet.Marks{Cheaps: 5, Scratch: 6000000, Held: 6000000})
	for _, bad := range []string{"scratch", "scratch -1", "scratch x", "cheap -1", "cheap 1 2", "gave", "gave 99999999999999999999"} {
		if got := call("pagurus1 " + bad); !strings.HasPrefix(got, "pagurus1 2 ") {
			t.Errorf("%s: %q", bad, got)
		}
	}
	s.scratch[1<<30] = scratch{bytes: 7} // its process has ended
	marks(fleet.Marks{Cheaps: 5, Scratch: 6000000, Held: 6000000})
}
