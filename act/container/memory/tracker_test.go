package memory

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/internal/testkit"
)

func track(t testing.TB, pids ...int) *Tracker {
	t.Helper()
	tr, err := Track(t.Context(), pids)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	})
	if why := tr.Untracked(); len(why) > 0 {
		t.Fatalf("not tracked: %v", why)
	}
	return tr
}

func newStore(t testing.TB) *Store {
	s := NewStore()
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func onePass(t testing.TB, tr *Tracker, store *Store, pids ...int) Passed {
	t.Helper()
	done, err := tr.Pass(t.Context(), pids, into(store))
	if err != nil {
		t.Fatal(err)
	}
	return done
}

func lastPass(t testing.TB, tr *Tracker, store *Store, pids ...int) Passed {
	t.Helper()
	done, err := tr.Last(t.Context(), pids, into(store))
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// sentOf returns how many pages of an address range one pass sends.
func sentOf(t testing.TB, tr *Tracker, store *Store, pid int, a area) (pages int) {
	t.Helper()
	_, err := tr.Pass(t.Context(), []int{pid}, func(p Piece, content []byte) error {
		if from, to := max(p.Address, a.start), min(p.Address+p.Bytes, a.end); from < to && p.What != Gone {
			pages += int((to - from) / PageBytes)
		}
		return store.Put(p, content)
	})
	if err != nil {
		t.Fatal(err)
	}
	return pages
}

// TestPassSendsWhatWasWritten: a pass sends exactly the written pages, small or huge.
func TestPassSendsWhatWasWritten(t *testing.T) {
	testkit.Leftovers(t)
	for name, huge := range map[string]int{"small pages": -1, "huge pages": 1} {
		t.Run(name, func(t *testing.T) {
			const pages = 4096
			s := startSubject(t, "obey")
			_, at := s.do("map 0 %d %d", pages, huge)
			a := area{at, at + pages*PageBytes}
			s.do("fill 0 1")
			tr, store := track(t, s.pid), newStore(t)
			sent := func(want int, what string) {
				t.Helper()
				if got := sentOf(t, tr, store, s.pid, a); got != want {
					t.Errorf("%s: %d pages were sent, want %d", what, got, want)
				}
			}
			sent(pages, "all")
			sent(0, "nothing")
			s.do("look 0")
			sent(0, "only read")
			s.do("touch 0 100 7")
			sent(41, "every hundredth")
			s.do("into 0 1000 50")
			sent(50, "written by the kernel")
			s.do("touch 0 1 7")
			s.do("touch 0 1 8")
			sent(pages, "all, twice")
			s.do("fork 0 5") // the child writes everything, in its own copy
			sent(0, "by a child")
			s.do("drop 0")
			sent(0, "dropped")
			s.do("look 0")
			sent(0, "read after that")
			s.do("touch 0 512 1")
			if got := sentOf(t, tr, store, s.pid, a); huge < 0 && got != 8 || got < 8 {
				t.Errorf("written after that: %d pages were sent", got)
			}
			pids := s.suspend()
			lastPass(t, tr, store, pids...)
			for _, pid := range pids {
				same(t, store, pid)
			}
		})
	}
}

// TestHugePagesStay: a pass does not split huge pages. Only pages that are written later become
// small.
func TestHugePagesStay(t *testing.T) {
	s := startSubject(t, "obey")
	s.do("map 0 8192 1")
	s.do("fill 0 1")
	huge := func() (kib int) {
		t.Helper()
		err := mustFolder(t, s.pid).read("smaps_rollup", func(line []byte) {
			_, _ = fmt.Sscanf(string(line), "AnonHugePages: %d kB", &kib)
		})
		if err != nil {
			t.Fatal(err)
		}
		return kib
	}
	before := huge()
	if before == 0 {
		t.Skip("this machine has no huge pages to give just now")
	}
	tr, store := track(t, s.pid), newStore(t)
	for range 2 {
		onePass(t, tr, store, s.pid)
		if now := huge(); now < before {
			t.Errorf("of %d KiB of huge pages %d are left", before, now)
		}
	}
	s.do("touch 0 4096 1")
	if now := huge(); now < before-2*2048 {
		t.Errorf("of %d KiB of huge pages %d are left after two were written to", before, now)
	}
}

// TestMemoryThatChangesPlace: memory that was mapped again, moved or unmapped never has the
// content that was there before.
func TestMemoryThatChangesPlace(t *testing.T) {
	testkit.Leftovers(t)
	s := startSubject(t, "obey")
	var at [8]uint64
	for i := range at {
		_, at[i] = s.do("map %d 64 -1", i)
		s.do("fill %d %d", i, i+1)
	}
	tr, store := track(t, s.pid), newStore(t)
	onePass(t, tr, store, s.pid)
	onePass(t, tr, store, s.pid)
	s.do("again 0") // the same place, empty
	s.do("again 1") // the same place, with something else
	s.do("fill 1 77")
	s.do("move 2 3") // content that was sent elsewhere and not written since
	s.do("unmap 4")
	s.do("drop 5")
	s.do("zero 6")
	s.do("rights 7 0") // no access
	onePass(t, tr, store, s.pid)
	for _, gone := range []int{2, 4} {
		if _, err := store.read(uint32(s.pid), at[gone], make([]byte, PageBytes)); err == nil {
			t.Errorf("slot %d is gone and still there", gone)
		}
	}
	s.do("again 1") // and now at the last moment
	s.do("touch 1 3 0")
	s.do("again 0")
	s.do("look 0")
	s.do("map 9 32 -1")
	s.do("fill 9 9")
	pids := s.suspend()
	done := lastPass(t, tr, store, pids...)
	same(t, store, s.pid)
	if done.SentBytes < 32*PageBytes {
		t.Errorf("the last pass sent %d bytes", done.SentBytes)
	}
	// A page that was scanned and never written is zero, and does not have the earlier content.
	b, err := store.read(uint32(s.pid), at[0], make([]byte, PageBytes))
	if err != nil || !slices.Equal(b, zeros[:]) {
		t.Errorf("what was mapped again is not zeros: %v", err)
	}
}

// TestMappedAnewMeanwhile: a part of an area is mapped again during a pass over the area. The
// kernel stops the scan there, but earlier pages of the same window already count as sent.
func TestMappedAnewMeanwhile(t *testing.T) {
	testkit.Leftovers(t)
	for _, passes := range []int{1, 2, 3} { // the part is mapped again during the last of them
		t.Run(fmt.Sprint(passes), func(t *testing.T) {
			const pages, patched = 4 * windowBytes / PageBytes, 16
			s := startSubject(t, "obey")
			_, at := s.do("map 0 %d -1", pages)
			s.do("fill 0 1")
			tr, store := track(t, s.pid), newStore(t)
			for range passes - 1 {
				onePass(t, tr, store, s.pid)
				s.do("fill 0 2")
			}
			// The last whole window of the area, and its middle.
			window := (at+pages*PageBytes)/windowBytes*windowBytes - windowBytes
			middle := (window - at + windowBytes/2) / PageBytes
			sent := false
			_, err := tr.Pass(t.Context(), []int{s.pid}, func(p Piece, content []byte) error {
				if !sent && p.Address >= at && p.Address < window {
					s.do("patch 0 %d %d", middle, patched)
					s.do("touch 0 %d 0", patched)
					sent = true
				}
				return store.Put(p, content)
			})
			if err != nil || !sent {
				t.Fatalf("nothing was mapped again: %v", err)
			}
			lastPass(t, tr, store, s.suspend()...)
			same(t, store, s.pid)
		})
	}
}

// TestMovesMeanwhile: memory that is mapped again during a pass, and now begins before or ends
// after an area that the pass knows, can be moved as one.
func TestMovesMeanwhile(t *testing.T) {
	testkit.Leftovers(t)
	for _, before := range []int{0, 16} {
		for _, after := range []int{0, 16} {
			for _, passes := range []int{1, 2} { // the memory is mapped again during the last of them
				t.Run(fmt.Sprint(before, after, passes), func(t *testing.T) {
					s := startSubject(t, "obey")
					s.do("map 1 128 -1")
					_, at := s.do("map 0 128 0")
					s.do("fill 0 1")
					s.do("narrow 0 %d %d", before, after)
					at += uint64(before) * PageBytes
					tr, store := track(t, s.pid), newStore(t)
					for range passes - 1 {
						onePass(t, tr, store, s.pid)
					}
					s.do("map 2 4 0") // so that the pass sends something
					s.do("fill 2 2")
					anew := false
					_, err := tr.Pass(t.Context(), []int{s.pid}, func(p Piece, content []byte) error {
						if !anew && p.Address < at {
							anew = true
							s.do("widen 0 %d %d", before, after)
							s.do("fill 0 3")
						}
						return store.Put(p, content)
					})
					if err != nil || !anew {
						t.Fatalf("nothing was mapped again: %v", err)
					}
					s.do("move 0 1")
					s.do("touch 1 1 0")
					onePass(t, tr, store, s.pid)
					lastPass(t, tr, store, s.suspend()...)
					same(t, store, s.pid)
				})
			}
		}
	}
}

// TestGuardsAndRights: inaccessible pages do not end a pass.
func TestGuardsAndRights(t *testing.T) {
	s := startSubject(t, "obey")
	s.do("map 0 64 -1")
	s.do("fill 0 1")
	guards, err := knowsGuards()
	if err != nil {
		t.Fatal(err)
	}
	if guards {
		s.do("guard 0 3")
	}
	s.do("map 1 64 -1")
	s.do("fill 1 1")
	s.do("rights 1 0")
	tr, store := track(t, s.pid), newStore(t)
	onePass(t, tr, store, s.pid)
	lastPass(t, tr, store, s.suspend()...)
	same(t, store, s.pid)
}

// TestChurn: whatever processes do to their memory, with threads and children, the received
// memory is equal to theirs when they are suspended.
func TestChurn(t *testing.T) {
	testkit.Leftovers(t)
	for seed := range 8 {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			s := startSubject(t, "churn", fmt.Sprint(time.Now().UnixNano()+int64(seed)))
			t.Log(s.cmd.Args)
			time.Sleep(20 * time.Millisecond)
			pids, err := s.family()
			if err != nil {
				t.Fatal(err)
			}
			tr, err := Track(t.Context(), pids)
			if err != nil {
				t.Fatal(err)
			}
			store := newStore(t)
			for range 6 {
				if pids, err = s.family(); err != nil {
					t.Fatal(err)
				}
				t.Logf("%+v", onePass(t, tr, store, pids...))
				testkit.Until(t, answerLimit, "something is written", func() bool {
					select {
					case err := <-s.over:
						t.Fatalf("the subject has ended: %v", err)
					default:
					}
					n, err := tr.Dirty(t.Context())
					return err == nil && n > 1<<20
				})
			}
			pids = s.suspend()
			t.Logf("last: %+v", lastPass(t, tr, store, pids...))
			checked := 0
			for _, pid := range pids {
				if f, err := openFolder(pid); err == nil {
					if (&process{folder: f}).alive() {
						checked += same(t, store, pid)
					}
					f.close()
				}
			}
			if checked < 500 {
				t.Errorf("only %d pages were compared", checked)
			}
		})
	}
}

func mustFolder(t *testing.T, pid int) folder {
	f, err := openFolder(pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.close)
	return f
}

// TestTrackingDisturbsNothing: a process that must open a userfaultfd again and again, and whose
// memory is always protected, does not notice. The test takes a fixed time, and on a busy
// machine until that has happened several times.
func TestTrackingDisturbsNothing(t *testing.T) {
	const while, times = 2 * time.Second, 5
	testkit.Leftovers(t)
	for _, how := range []string{"check", "sequences"} {
		t.Run(how, func(t *testing.T) {
			s := startSubject(t, how)
			if got := s.says(); got != "ready" {
				if strings.HasPrefix(got, "good") {
					t.Skip(got)
				}
				t.Fatal(got)
			}
			begun, rounds, longest := time.Now(), 0, time.Duration(0)
			for ; rounds < times || time.Since(begun) < while; rounds++ {
				tr, err := Track(t.Context(), []int{s.pid})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := tr.Pass(t.Context(), []int{s.pid}, func(Piece, []byte) error { return nil }); err != nil {
					t.Fatal(err)
				}
				for pid, why := range tr.Untracked() {
					t.Errorf("process %d is not tracked: %s", pid, why)
				}
				longest = max(longest, tr.Stopped())
				if err := tr.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.in.Close(); err != nil {
				t.Fatal(err)
			}
			got := s.says()
			t.Logf("tracked %d times, stopped for at most %v; it says: %s", rounds, longest, got)
			if !strings.HasPrefix(got, "good") {
				t.Errorf("the process was disturbed: %s", got)
			}
		})
	}
}

// TestWaiters: processes that wait for the process, such as its parent, do not see that it was
// stopped.
func TestWaiters(t *testing.T) {
	s := startSubject(t, "obey") // another process waits for it all the time
	for range 20 {
		if err := track(t, s.pid).Close(); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-s.over:
		t.Fatalf("its parent was told that it ended: %v", err)
	default:
	}
	s.do("map 0 1 0")
	if err := unix.Kill(s.pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-s.over; err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("its parent was told %v", err)
	}
}

// TestAwkwardProcesses: some processes would be killed by a filter for a userfaultfd, may do
// nothing, are suspended, hang, or have ended in part or entirely.
func TestAwkwardProcesses(t *testing.T) {
	testkit.Leftovers(t)
	t.Run("filter", func(t *testing.T) {
		s := startSubject(t, "obey")
		s.do("map 0 64 -1")
		s.do("deny")
		tr, store := track(t, s.pid), newStore(t)
		onePass(t, tr, store, s.pid)
		s.do("fill 0 1")
		lastPass(t, tr, store, s.suspend()...)
		same(t, store, s.pid)
	})
	t.Run("nobody", func(t *testing.T) {
		s := startSubject(t, "obey")
		s.do("map 0 64 -1")
		s.do("nobody")
		tr, store := track(t, s.pid), newStore(t)
		onePass(t, tr, store, s.pid)
		s.do("into 0 3 20")
		s.do("touch 0 7 9")
		lastPass(t, tr, store, s.suspend()...)
		same(t, store, s.pid)
	})
	t.Run("stopped", func(t *testing.T) {
		s := startSubject(t, "obey")
		s.do("map 0 64 -1")
		s.do("fill 0 1")
		s.suspend()
		tr, store := track(t, s.pid), newStore(t)
		onePass(t, tr, store, s.pid)
		testkit.Until(t, answerLimit, "it is stopped again", func() bool { return suspended(s.pid) })
		s.thaw()
		s.do("touch 0 2 1")
		lastPass(t, tr, store, s.suspend()...)
		same(t, store, s.pid)
	})
	t.Run("headless", func(t *testing.T) { // CRIU does not dump such a process
		s := startSubject(t, "obey")
		s.do("leave")
		testkit.Until(t, answerLimit, "its first thread has ended", func() bool { return state(fmt.Sprintf("/proc/%d/stat", s.pid)) == 'Z' })
		tr, err := Track(t.Context(), []int{s.pid})
		if err != nil {
			t.Fatal(err)
		}
		store := newStore(t)
		onePass(t, tr, store, s.pid)
		lastPass(t, tr, store, s.pid)
		s.do("map 0 64 -1")
	})
	t.Run("hanging", func(t *testing.T) {
		s := startSubject(t, "obey")
		s.do("map 0 64 -1")
		s.do("fill 0 1")
		if _, err := fmt.Fprintln(s.in, "hang"); err != nil {
			t.Fatal(err)
		}
		testkit.Until(t, answerLimit, "it hangs", func() bool { return state(fmt.Sprintf("/proc/%d/stat", s.pid)) == 'D' })
		tr, err := Track(t.Context(), []int{s.pid})
		if err != nil {
			t.Fatal(err)
		}
		if why := tr.Untracked(); !strings.Contains(why[s.pid], errBusy.Error()) {
			t.Errorf("not tracked: %v", why)
		}
		store := newStore(t)
		if done := onePass(t, tr, store, s.pid); done.SentBytes != 0 || done.RemainingBytes < 64*PageBytes {
			t.Errorf("the pass says %+v", done)
		}
		if _, err := fmt.Fprint(s.in, "x"); err != nil {
			t.Fatal(err)
		}
		s.says()
		s.do("touch 0 3 1")
		if done := onePass(t, tr, store, s.pid); done.SentBytes < 64*PageBytes {
			t.Errorf("the pass says %+v", done)
		}
		lastPass(t, tr, store, s.suspend()...)
		same(t, store, s.pid)
	})
	t.Run("ended", func(t *testing.T) {
		s := startSubject(t, "obey")
		tr, store := track(t, s.pid), newStore(t)
		onePass(t, tr, store, s.pid)
		_ = unix.Kill(s.pid, unix.SIGKILL)
		<-s.over
		onePass(t, tr, store, s.pid)
		if n := store.HeldBytes(); n != 0 {
			t.Errorf("%d bytes of a process that ended are kept", n)
		}
		lastPass(t, tr, store, s.pid)
		if _, err := Track(t.Context(), []int{s.pid}); err != nil {
			t.Errorf("a process that ended: %v", err)
		}
	})
}

// TestSharedMemory: of two processes with the same memory one is tracked, and both are correct
// in the end.
func TestSharedMemory(t *testing.T) {
	testkit.Leftovers(t)
	s := startSubject(t, "obey")
	s.do("map 0 64 -1")
	s.do("fill 0 1")
	child, _ := s.do("share")
	for _, order := range [][]int{{s.pid, child}, {child, s.pid}} {
		tr, err := Track(t.Context(), order)
		if err != nil {
			t.Fatal(err)
		}
		if why := tr.Untracked(); len(why) != 1 {
			t.Errorf("not tracked: %v", why)
		}
		store := newStore(t)
		for n := range 3 {
			onePass(t, tr, store, order...)
			s.do("touch 0 3 %d", n)
		}
		lastPass(t, tr, store, s.suspend()...)
		same(t, store, s.pid)
		same(t, store, child)
		s.thaw()
	}
}

// TestAnotherProgram: nothing remains of the old memory of a process that executes another
// program.
func TestAnotherProgram(t *testing.T) {
	testkit.Leftovers(t)
	s := startSubject(t, "obey")
	_, at := s.do("map 0 512 -1")
	s.do("fill 0 1")
	tr, store := track(t, s.pid), newStore(t)
	onePass(t, tr, store, s.pid)
	s.do("exec")
	s.do("map 0 256 -1")
	s.do("fill 0 2")
	onePass(t, tr, store, s.pid)
	if _, err := store.read(uint32(s.pid), at, make([]byte, PageBytes)); err == nil {
		t.Error("memory of the program before is kept")
	}
	onePass(t, tr, store, s.pid) // it is tracked again
	if why := tr.Untracked(); len(why) > 0 {
		t.Errorf("not tracked: %v", why)
	}
	if n, err := tr.Dirty(t.Context()); err != nil || n > 64*PageBytes {
		t.Errorf("%d bytes are left: %v", n, err)
	}
	lastPass(t, tr, store, s.suspend()...)
	same(t, store, s.pid)
	// Once more, just before the last pass.
	s.thaw()
	tr = track(t, s.pid)
	store = newStore(t)
	onePass(t, tr, store, s.pid)
	s.do("exec")
	s.do("map 0 128 -1")
	s.do("fill 0 3")
	lastPass(t, tr, store, s.suspend()...)
	same(t, store, s.pid)
}

// TestNewProcesses: a process that appears between passes is tracked. A process that appears at
// the end is sent whole.
func TestNewProcesses(t *testing.T) {
	testkit.Leftovers(t)
	s := startSubject(t, "obey")
	s.do("map 0 128 -1")
	s.do("fill 0 1")
	tr, store := track(t, s.pid), newStore(t)
	onePass(t, tr, store, s.pid)
	first, _ := s.do("fork 0 2")
	onePass(t, tr, store, s.pid, first)
	s.do("fork 0 3")
	pids := s.suspend()
	if len(pids) != 3 {
		t.Fatalf("processes %v", pids)
	}
	lastPass(t, tr, store, pids...)
	for _, pid := range pids {
		if n := same(t, store, pid); n < 128 {
			t.Errorf("process %d: only %d pages", pid, n)
		}
	}
}

// TestDirty: Dirty returns what a pass would send, and changes nothing.
func TestDirty(t *testing.T) {
	s := startSubject(t, "obey")
	s.do("map 0 1024 -1")
	s.do("fill 0 1")
	tr, store := track(t, s.pid), newStore(t)
	dirty := func(least, most int64) {
		t.Helper()
		for range 2 {
			n, err := tr.Dirty(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if n < least*PageBytes || n > most*PageBytes {
				t.Errorf("%d pages are left, want from %d to %d", n/PageBytes, least, most)
			}
		}
	}
	dirty(1024, 1200)
	if done := onePass(t, tr, store, s.pid); done.RemainingBytes > 64*PageBytes {
		t.Errorf("the pass says %+v", done)
	}
	dirty(0, 64)
	s.do("touch 0 2 1")
	dirty(512, 600)
	onePass(t, tr, store, s.pid)
	dirty(0, 64)
}

// TestZeros: pages that contain only zeros are not sent.
func TestZeros(t *testing.T) {
	s := startSubject(t, "obey")
	_, at := s.do("map 0 1024 -1")
	s.do("zero 0")
	s.do("touch 0 512 1")
	tr, store := track(t, s.pid), newStore(t)
	filled := 0
	_, err := tr.Pass(t.Context(), []int{s.pid}, func(p Piece, content []byte) error {
		if p.What == Filled && p.Address < at+1024*PageBytes && p.Address+p.Bytes > at {
			filled += int(p.Bytes / PageBytes)
		}
		return store.Put(p, content)
	})
	if err != nil || filled != 2 {
		t.Errorf("%d pages were sent, want 2: %v", filled, err)
	}
	lastPass(t, tr, store, s.suspend()...)
	same(t, store, s.pid)
}

// TestPassEnds: a pass ends when its Send fails or its context ends.
func TestPassEnds(t *testing.T) {
	s := startSubject(t, "obey")
	s.do("map 0 4096 -1")
	s.do("fill 0 1")
	before := open(t, s.pid)
	tr := track(t, s.pid)
	broken := errors.New("broken")
	if _, err := tr.Pass(t.Context(), []int{s.pid}, func(Piece, []byte) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	n := 0
	_, err := tr.Pass(ctx, []int{s.pid}, func(Piece, []byte) error { n++; stop(); return nil })
	if !errors.Is(err, context.Canceled) || n != 1 {
		t.Errorf("%v after %d pieces", err, n)
	}
	if _, err := tr.Last(t.Context(), []int{s.pid}, func(Piece, []byte) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	if n, err := tr.Dirty(t.Context()); err != nil || n != 0 {
		t.Errorf("after the last pass %d bytes are left: %v", n, err)
	}
	s.do("touch 0 1 1")
	if now := open(t, s.pid); now != before {
		t.Errorf("the process had %d open files and has %d", before, now)
	}
}

// open counts a process's open files.
func open(t *testing.T, pid int) int {
	t.Helper()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

// TestOwnNumber: a process that is ending may already have lost its number.
func TestOwnNumber(t *testing.T) {
	for _, c := range []struct {
		words []string
		want  uint32
		err   error
	}{
		{[]string{"70", "7"}, 7, nil},
		{[]string{"70"}, 70, nil},
		{[]string{"0"}, 0, errEnded},
		{nil, 0, errEnded},
		{[]string{"x"}, 0, strconv.ErrSyntax},
	} {
		if got, err := ownNumber(c.words); got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%q: %d, %v, want %d, %v", c.words, got, err, c.want, c.err)
		}
	}
}

func TestWithout(t *testing.T) {
	for _, c := range []struct{ before, now, gone []area }{
		{nil, []area{{1, 2}}, nil},
		{[]area{{1, 9}}, nil, []area{{1, 9}}},
		{[]area{{1, 9}}, []area{{1, 9}}, nil},
		{[]area{{1, 9}}, []area{{0, 20}}, nil},
		{[]area{{1, 9}}, []area{{3, 5}}, []area{{1, 3}, {5, 9}}},
		{[]area{{1, 9}}, []area{{0, 2}, {3, 4}, {8, 12}}, []area{{2, 3}, {4, 8}}},
		{[]area{{1, 3}, {4, 6}, {9, 10}}, []area{{2, 5}, {20, 30}}, []area{{1, 2}, {5, 6}, {9, 10}}},
		{[]area{{1, 3}, {4, 6}}, []area{{0, 1}, {3, 4}, {6, 7}}, []area{{1, 3}, {4, 6}}},
	} {
		if got := without(c.before, c.now); !slices.Equal(got, c.gone) {
			t.Errorf("%v without %v: %v, want %v", c.before, c.now, got, c.gone)
		}
	}
}

func TestParseArea(t *testing.T) {
	for line, want := range map[string]bool{
		"7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n":                                       true,
		"7f0000000000-7f0000001000 rw-p 00000000 00:00 0                          [heap]\n":        true,
		"7f0000000000-7f0000001000 ---p 00000000 00:00 0                          [anon: a]\n":     true,
		"7f0000000000-7f0000001000 rw-p 00000000 00:05 77                         /dev/zero\n":     true,
		"7f0000000000-7f0000001000 rw-s 00000000 00:00 0 \n":                                       false,
		"7f0000000000-7f0000001000 rw-p 00000000 08:01 77                         /bin/x\n":        false,
		"7f0000000000-7f0000001000 r-xp 00000000 00:00 0                          [vdso]\n":        false,
		"7f0000000000-7f0000001000 r--p 00000000 00:00 0                          [vvar_vclock]\n": false,
		"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n":    false,
		"ffffffffff600000-ffffffffff601000 rw-p 00000000 00:00 0 \n":                               false,
		"":                                   false,
		"x-y rw-p 0 0 0 ":                    false,
		"2000-1000 rw-p 00000000 00:00 0 \n": false,
	} {
		a, ok := parseArea([]byte(line))
		if ok != want || ok && a != (area{0x7f0000000000, 0x7f0000001000}) {
			t.Errorf("%q: %v, %t", line, a, ok)
		}
	}
}
