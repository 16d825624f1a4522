package controller

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/serve/identity"
	"pagurus/serve/wire"
)

// copier is another controller that keeps copies, over a real socket.
type copier struct {
	stash   *stash
	address string
	end     func()
}

// startCopier serves a folder of copies at an address; empty: any.
func startCopier(t *testing.T, a *identity.Authority, dir, address string) *copier {
	t.Helper()
	if address == "" {
		address = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	k := &copier{stash: &stash{dir: dir}, address: l.Addr().String()}
	over := make(chan struct{})
	k.end = func() { stop(); <-over }
	go func() {
		defer close(over)
		err := wire.Serve(ctx, wire.ServeConfig{Listeners: []net.Listener{wire.OverTLS(l, a)}, Between: Between{stash: k.stash}, Log: slog.New(slog.DiscardHandler), Passing: &wire.Passing{
			Calling: a.Calling("k"), IsController: func(c *x509.Certificate) bool { return a.IsController(c, time.Now()) },
			Leads: func(context.Context) (string, bool) { return "", false },
		}})
		if err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(k.end)
	return k
}

// leaderOf is a spool whose copies two copiers have.
func leaderOf(t *testing.T, a *identity.Authority, dir string, term int64, copiers ...*copier) *Controller {
	t.Helper()
	var others []Other
	for i, k := range copiers {
		others = append(others, Other{Name: fmt.Sprint("k", i), Client: wire.CallController(k.address, a.Calling("leader")), Counts: true})
	}
	return New(Config{Spool: dir, Log: slog.New(slog.DiscardHandler), Term: func() int64 { return term }, Others: func() []Other { return others }})
}

func spreading(t *testing.T, c *Controller, offset int64, text string, patience time.Duration) int64 {
	t.Helper()
	st, err := c.spool.stream("j1", fleet.Stdout)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	end, err := st.deliverOutput(ctx, wire.Place{Job: "j1", Stream: fleet.Stdout, Offset: offset}, []byte(text), false)
	if err != nil {
		t.Fatal(err)
	}
	return end
}

// TestCopies: output counts when two of three have it. Who leads next has it all, though its own copy lacks some, and
// what the one that led before still sends is refused.
func TestCopies(t *testing.T) {
	a, err := identity.OpenAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()}
	one, two := startCopier(t, a, dirs[1], ""), startCopier(t, a, dirs[2], "")
	c := leaderOf(t, a, dirs[0], 5, one, two)
	jobs := map[fleet.JobID]fleet.Job{"j1": {ID: "j1"}}
	if err := c.spool.open(jobs); err != nil {
		t.Fatal(err)
	}
	const long = 20 * time.Second
	if end := spreading(t, c, 0, "one, ", long); end != 5 {
		t.Fatalf("%d bytes count", end)
	}
	two.end()
	if end := spreading(t, c, 5, "two, ", long); end != 10 {
		t.Fatalf("with one away %d bytes count", end)
	}
	one.end()
	if end := spreading(t, c, 10, "three", 300*time.Millisecond); end != 10 {
		t.Fatalf("with two away %d bytes count", end)
	}
	st, _ := c.spool.stream("j1", fleet.Stdout)
	if data, _, err := st.read(ended, 0); string(data) != "one, two, " || err != nil {
		t.Fatalf("%q can be read, %v", data, err)
	}
	if have := c.spool.have("j1")[fleet.Stdout]; have != 10 {
		t.Fatalf("the agent is told of %d bytes", have)
	}

	// The second copier, which lacks some, leads next; the one that led is dead.
	one = startCopier(t, a, dirs[1], one.address)
	dead := startCopier(t, a, t.TempDir(), "")
	dead.end() // else it may be one of the most that answer, in time, and knows nothing
	next := leaderOf(t, a, dirs[2], 9, one, dead)
	if err := next.gather(t.Context(), jobs); err != nil {
		t.Fatal(err)
	}
	if err := next.spool.open(jobs); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(dirs[2], "j1", fleet.Stdout)); string(text) != "one, two, " || err != nil {
		t.Fatalf("the next one has %q, %v", text, err)
	}
	if end := spreading(t, next, 10, "three, four", long); end != 21 {
		t.Fatalf("%d bytes count", end)
	}
	if end := spreading(t, c, 10, "three", 300*time.Millisecond); end != 10 {
		t.Fatalf("for the one that led before %d bytes count", end)
	}
}

func TestStash(t *testing.T) {
	dir := t.TempDir()
	s := &stash{dir: dir}
	put := func(term, offset int64, p wire.Piece) (int64, error) {
		return s.KeepPiece(term, wire.Place{Job: "j1", Stream: fleet.Stdout, Offset: offset}, p)
	}
	for i, step := range []struct {
		term, offset int64
		piece        wire.Piece
		want         int64 // -1: refused
	}{
		{3, 0, wire.Piece{Data: []byte("0123456789")}, 10},
		{3, 0, wire.Piece{Data: []byte("0123456789")}, 10}, // again
		{3, 12, wire.Piece{Data: []byte("x")}, 10},         // a gap
		{3, 8, wire.Piece{Data: []byte("89ab"), Over: true}, 12},
		{2, 12, wire.Piece{Data: []byte("old")}, -1},
		{4, 6, wire.Piece{Begins: `{"incarnation":1,"at":{"stdout":6}}`, Data: []byte("new")}, 9}, // cuts what was never acknowledged
		{4, 0, wire.Piece{}, -1},                                                                  // of the incarnation before
		{4, 9, wire.Piece{Begins: `{"incarnation":1,"at":{"stdout":6}}`, Hole: 100}, 109},
	} {
		got, err := put(step.term, step.offset, step.piece)
		if (step.want < 0) != (err != nil) || err == nil && got != step.want {
			t.Fatalf("step %d: %d, %v", i, got, err)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "j1", fleet.Stdout))
	if err != nil || string(text[:9]) != "012345new" || len(text) != 109 {
		t.Fatalf("%q, %v", text, err)
	}
	s = &stash{dir: dir} // another process
	if _, err := put(3, 0, wire.Piece{}); err == nil {
		t.Fatal("an old term counts after a restart")
	}
	if _, err := s.KeepPiece(4, wire.Place{Job: "../x", Stream: fleet.Stdout}, wire.Piece{}); err == nil {
		t.Fatal("a job with a path is kept")
	}
	if held, err := s.Held(4, []fleet.JobID{"j1", "j2"}); err != nil || len(held) != 1 || held[0].Ends[fleet.Stdout] != 109 || held[0].Over[fleet.Stdout] {
		t.Fatalf("%+v, %v", held, err)
	}
	if _, err := s.Held(4, nil); err != nil { // the job may have been submitted meanwhile
		t.Fatal(err)
	}
	old := time.Now().Add(-2 * youngFolder)
	if err := os.Chtimes(filepath.Join(dir, "j1"), old, old); err != nil {
		t.Fatal(err)
	}
	if held, err := s.Held(4, nil); err != nil || len(held) != 0 {
		t.Fatalf("%+v, %v", held, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "j1")); err == nil {
		t.Fatal("a forgotten job's copies stay")
	}
	if err := s.lead(9); err != nil {
		t.Fatal(err)
	}
	if _, err := put(10, 0, wire.Piece{}); err == nil {
		t.Fatal("one that leads keeps copies for another")
	}
}

// TestNotesAreCopied: how much output there was at a checkpoint is at most controllers when its guests go on; who leads
// next cuts off there.
func TestNotesAreCopied(t *testing.T) {
	a, err := identity.OpenAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dirs := []string{t.TempDir(), t.TempDir()}
	one := startCopier(t, a, dirs[1], "")
	c := leaderOf(t, a, dirs[0], 5, one, startCopier(t, a, t.TempDir(), ""))
	jobs := map[fleet.JobID]fleet.Job{"j1": {ID: "j1"}}
	if err := c.spool.open(jobs); err != nil {
		t.Fatal(err)
	}
	const long = 20 * time.Second
	spreading(t, c, 0, "before ", long)
	cut := fleet.Checkpoint{ID: "j1c1", Job: "j1", Phase: fleet.Continuing}
	if err := c.spool.followCheckpoints([]fleet.Checkpoint{cut}); err != nil {
		t.Fatal(err)
	}
	if st, _ := c.spool.stream("j1", fleet.Stdout); !c.spool.copies.told(st, cutLengths(cut.ID)) {
		t.Fatal("most controllers do not have the note")
	}
	// Notes of checkpoints that are no more go everywhere, so that they do not become too many to be sent.
	other := fleet.Checkpoint{ID: "j1c2", Job: "j1", Phase: fleet.Continuing}
	if err := c.spool.followCheckpoints([]fleet.Checkpoint{cut, other}); err != nil {
		t.Fatal(err)
	}
	other.Phase = fleet.Removed
	if err := c.spool.followCheckpoints([]fleet.Checkpoint{cut, other}); err != nil {
		t.Fatal(err)
	}
	spreading(t, c, 7, "after", long)
	gone := false // most may be the others
	for begun := time.Now(); !gone && time.Since(begun) < long; time.Sleep(10 * time.Millisecond) {
		_, err := os.Stat(filepath.Join(dirs[1], "j1", cutLengths(other.ID)))
		gone = err != nil
	}
	if !gone {
		t.Error("another controller keeps the note of a checkpoint that is no more")
	}
	if _, err := os.Stat(filepath.Join(dirs[1], "j1", cutLengths(cut.ID))); err != nil {
		t.Error(err)
	}
	one.end()

	next := leaderOf(t, a, dirs[1], 9, startCopier(t, a, dirs[0], ""))
	if err := next.gather(t.Context(), jobs); err != nil {
		t.Fatal(err)
	}
	jobs["j1"] = fleet.Job{ID: "j1", Incarnation: 1, From: cut.ID, State: fleet.JobStarting}
	if err := next.spool.open(jobs); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dirs[1], "j1", fleet.Stdout))
	if err != nil || string(text) != "before " {
		t.Fatalf("%q, %v", text, err)
	}
	st, _ := next.spool.stream("j1", fleet.Stdout)
	end, err := st.deliverOutput(t.Context(), wire.Place{Job: "j1", Stream: fleet.Stdout, Offset: 7, Incarnation: 1}, []byte("again"), false)
	if err != nil || end != 12 {
		t.Fatal(end, err)
	}
	if text, err := os.ReadFile(filepath.Join(dirs[0], "j1", fleet.Stdout)); err != nil || string(text) != "before again" {
		t.Fatalf("the other one has %q, %v", text, err)
	}
}

// TestCopiesLeaveRoom: another controller keeps no copies where its store would lack room. While most have room output counts;
// else the program waits, and everybody is told for which controllers.
func TestCopiesLeaveRoom(t *testing.T) {
	a, err := identity.OpenAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	one, two := startCopier(t, a, filepath.Join(t.TempDir(), "spool"), ""), startCopier(t, a, t.TempDir(), "")
	leaves := func(k *copier, reserve int64) {
		k.stash.mu.Lock()
		defer k.stash.mu.Unlock()
		k.stash.reserve = reserve
	}
	leaves(one, 1<<60)
	c := leaderOf(t, a, t.TempDir(), 5, one, two)
	if err := c.spool.open(map[fleet.JobID]fleet.Job{"j1": {ID: "j1"}}); err != nil {
		t.Fatal(err)
	}
	if end := spreading(t, c, 0, "one, ", 20*time.Second); end != 5 {
		t.Fatalf("%d bytes count", end)
	}
	leaves(two, 1<<60)
	if end := spreading(t, c, 5, "two", 2*time.Second); end != 5 {
		t.Fatalf("with no room at two of three %d bytes count", end)
	}
	if full := c.Crowded(); full["k0"] != noRoom.Reason || full["k1"] != noRoom.Reason {
		t.Errorf("no room: %v", full)
	}
	if why := c.spool.room.crowded(time.Now())["j1"]; !strings.Contains(why, "controller k0: its disk has no room") || !strings.Contains(why, "controller k1") {
		t.Errorf("the job waits: %q", why)
	}
	leaves(two, 0)
	if end := spreading(t, c, 5, "two", 20*time.Second); end != 8 {
		t.Fatalf("%d bytes count", end)
	}
	if full := c.Crowded(); full["k1"] != "" {
		t.Errorf("no room: %v", full)
	}
}
