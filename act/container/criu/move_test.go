package criu

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pagesHeld is how much room the processes' memory takes in images, in bytes.
func pagesHeld(t *testing.T, images string) (bytes int64) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(images, "pages-*.img"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		var st unix.Stat_t
		if err := unix.Stat(name, &st); err != nil {
			t.Fatal(err)
		}
		bytes += st.Blocks * 512
	}
	return bytes
}

// TestMove: the restored container has everything that a process can have, unchanged. It does
// not run before it may, and data that was sent to it meanwhile arrives.
func TestMove(t *testing.T) {
	all := groups(t)
	b := newBox(t, 0)
	if got := b.ask("open file /out"); got != "ok" {
		t.Fatal(got)
	}
	for version, g := range all {
		b.run(version, func(t *testing.T) {
			for n := range 2 {
				images := b.images()
				var steps []string
				b.dumped(DumpSpec{Images: images, frozen: func() error {
					steps = append(steps, "frozen")
					b.cut()
					return nil
				}})
				b.tell("check") // is sent again and again until the container is restored
				g.set(true)
				s := b.spec(images)
				s.Once = n == 1
				full := pagesHeld(t, images)
				s.Resuming = func(pid int) error {
					steps = append(steps, "resuming")
					b.join()
					return g.add(pid)
				}
				b.restored(s)
				if left := pagesHeld(t, images); full == 0 || (left < full/4) != s.Once {
					t.Errorf("of %d KiB of memory in the images %d are left; restored once only: %v", full>>10, left>>10, s.Once)
				}
				if got := strings.Join(steps, " "); got != "frozen resuming" {
					t.Errorf("the steps were: %s", got)
				}
				if st, err := readStat(b.pid); err != nil || st.parent != os.Getpid() {
					t.Errorf("the first process's parent is %d, not this: %v", st.parent, err)
				}
				b.silent("frozen")
				g.set(false)
				if got := b.answer(); got != "ok" {
					t.Fatalf("the subject lost: %s", got)
				}
				if got := b.ask("pid"); got != "1" {
					t.Errorf("the first process is number %s", got)
				}
				b.well()
				left, err := os.ReadDir(filepath.Join(images, ".path"))
				if err == nil {
					t.Errorf("left among the images: %v", left)
				}
			}
		})
	}
}

// TestRollback: a container that was dumped and not killed stays frozen. When thawed it
// continues with its connection, and it can be dumped again.
func TestRollback(t *testing.T) {
	all := groups(t)
	b := newBox(t, 0)
	for version, g := range all {
		b.run(version, func(t *testing.T) {
			if err := g.add(b.pid); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				g.set(true)
				if err := b.dump(t.Context(), DumpSpec{Images: b.images(), Running: true, Freezer: g.folder}); err != nil {
					t.Fatal(err)
				}
				b.tell("check")
				b.silent("dumped and left")
				g.set(false)
				if got := b.answer(); got != "ok" {
					t.Fatalf("the subject lost: %s", got)
				}
			}
		})
	}
}

// tracer returns the CRIU that holds the container.
func (b *box) tracer() (int, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.pid))
	if err != nil {
		return 0, err
	}
	pid := 0
	fmt.Sscan(field(status, "TracerPid:"), &pid)
	if pid == 0 {
		return 0, errors.New("nobody holds the container")
	}
	return pid, nil
}

// TestKilled: a CRIU that is killed before it examines connections, or because it hangs while it
// holds all of them, leaves the container unchanged.
func TestKilled(t *testing.T) {
	all := groups(t)
	b := newBox(t, 0)
	defer func(d time.Duration) { refuseLimit = d }(refuseLimit)
	refuseLimit = 300 * time.Millisecond
	for version, g := range all {
		if err := g.add(b.pid); err != nil {
			t.Fatal(err)
		}
		for _, frozen := range []bool{true, false} {
			for _, s := range []DumpSpec{{}, {Running: true}, {Running: true, Copied: true}} {
				b.run(fmt.Sprintf("%s, frozen %v, hangs %v, copied %v", version, frozen, s.Running, s.Copied), func(t *testing.T) {
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					fault := func() error {
						pid, err := b.tracer()
						if err != nil {
							return err
						}
						if !s.Running {
							return unix.Kill(pid, unix.SIGKILL)
						}
						cancel()
						return unix.Kill(pid, unix.SIGSTOP)
					}
					if !s.Running {
						s.frozen = fault
					} else {
						s.ready = fault
					}
					g.set(frozen)
					s.Images, s.Freezer = b.images(), g.folder
					if err := b.dump(ctx, s); !errors.Is(err, errKilled) {
						t.Fatalf("it says %v", err)
					}
					b.tell("check")
					if frozen {
						b.silent("frozen before")
						g.set(false)
					}
					if got := b.answer(); got != "ok" {
						t.Fatalf("the subject lost: %s", got)
					}
				})
			}
		}
	}
	// It can still be moved, with code that CRIU left in it.
	images := b.images()
	b.dumped(DumpSpec{Images: images})
	b.restored(b.spec(images))
	b.well()
}

// TestNoRoom: a dump without enough room fails with that reason, and the container keeps
// running.
func TestNoRoom(t *testing.T) {
	b := newBox(t, 0)
	for _, kib := range []int{4, 16, 64, 256, 1024} {
		images := b.images()
		b.mount("images", images, "tmpfs", 0, fmt.Sprintf("size=%dk", kib))
		err := b.dump(t.Context(), DumpSpec{Images: images, Running: true})
		if err == nil || !strings.Contains(err.Error(), "room") {
			t.Errorf("%d KiB: %v", kib, err)
		}
		b.well()
	}
}

// TestCancelled: a dump whose context ends, or that is refused, leaves the container running.
func TestCancelled(t *testing.T) {
	b := newBox(t, 0)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("it is late")
	err := b.dump(ctx, DumpSpec{Images: b.images(), frozen: func() error { cancel(why); return nil }})
	if !errors.Is(err, why) {
		t.Errorf("cancelled: %v", err)
	}
	b.well()
	if err := b.dump(ctx, DumpSpec{Images: b.images()}); !errors.Is(err, why) {
		t.Errorf("cancelled before: %v", err)
	}
	err = b.dump(t.Context(), DumpSpec{Images: b.images(), frozen: func() error { return why }})
	if !errors.Is(err, why) {
		t.Errorf("refused: %v", err)
	}
	b.well()
}

// TestLazy: a container runs before its memory has arrived.
func TestLazy(t *testing.T) {
	b := newBox(t, 1)
	if got := b.ask("grow 64"); got != "ok" {
		t.Fatal(got)
	}
	images := b.images()
	b.dumped(DumpSpec{Images: images, frozen: func() error { b.leave(); return nil }})
	pager, err := b.criu.startLazyPager(t.Context(), images, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer pager.Close()
	s := b.spec(images)
	s.Lazy = true
	s.Resuming = func(int) error { b.join(); return nil }
	b.restored(s)
	b.well()
	if err := pager.Wait(); err != nil {
		t.Error(err)
	}
	b.well()
}

// TestLazyPagerListens: a pager that was started is listening.
func TestLazyPagerListens(t *testing.T) {
	b := newBox(t, 1)
	images := b.images()
	b.dumped(DumpSpec{Images: images, frozen: func() error { b.leave(); return nil }})
	for range 20 {
		pager, err := b.criu.startLazyPager(t.Context(), images, nil)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.Dial("unix", filepath.Join(images, lazyPagerSocket))
		if err != nil {
			t.Error(err)
		} else {
			conn.Close()
		}
		if err := pager.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestNotRestored: a restore that fails or is refused leaves nothing, and its images can be used
// again.
func TestNotRestored(t *testing.T) {
	b := newBox(t, 3)
	images := b.images()
	b.dumped(DumpSpec{Images: images, frozen: func() error { b.cut(); return nil }})
	no := errors.New("not now")
	ctx, cancel := context.WithCancelCause(t.Context())
	for _, c := range []struct {
		name   string
		ctx    context.Context
		change func(*RestoreSpec)
		want   string
		late   bool // sockets existed, and disturb the next restore
	}{
		{"no root", t.Context(), func(s *RestoreSpec) { s.Root = filepath.Join(b.dir, "none") }, "does not exist here", false},
		{"no network", t.Context(), func(s *RestoreSpec) { s.Netns = "/run/netns/none" }, "network", false},
		{"another network", t.Context(), func(s *RestoreSpec) { s.Netns = "/proc/thread-self/ns/net" }, "address", false},
		{"no images", t.Context(), func(s *RestoreSpec) { s.Images = b.images() }, "images", false},
		{"not resumed", t.Context(), func(s *RestoreSpec) { s.Resuming = func(int) error { return no } }, no.Error(), true},
		{"cancelled late", ctx, func(s *RestoreSpec) { s.Resuming = func(int) error { cancel(no); return nil } }, no.Error(), true},
	} {
		b.run(c.name, func(t *testing.T) {
			s := b.spec(images)
			c.change(&s)
			pid, err := b.criu.Restore(c.ctx, s)
			if err == nil || !strings.Contains(strings.ToLower(err.Error()), c.want) {
				t.Errorf("process %d, %v", pid, err)
			}
			t.Log(err)
			if left := children(t); left != "" {
				t.Errorf("processes %s are left", left)
			}
			if c.late {
				b.leave()
			}
		})
	}
	b.tell("check")
	s := b.spec(images)
	s.Resuming = func(int) error { b.join(); return nil }
	b.restored(s)
	if got := b.answer(); got != "ok" {
		t.Fatalf("the subject lost: %s", got)
	}
}

// children returns this process's children, ended or not.
func children(t *testing.T) string {
	t.Helper()
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{} // an ending thread passes its children to another, whose list may have been read already
	for _, path := range lists {
		text, _ := os.ReadFile(path)
		for _, pid := range strings.Fields(string(text)) {
			all[pid] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(all)), " ")
}

// TestRestoreKilled: a CRIU that is killed during a restore leaves nothing.
func TestRestoreKilled(t *testing.T) {
	b := newBox(t, 3)
	images := b.images()
	b.dumped(DumpSpec{Images: images})
	for range 3 {
		s := b.spec(images)
		s.Resuming = func(pid int) error {
			for _, word := range strings.Fields(children(t)) {
				var child int
				fmt.Sscan(word, &child)
				if child != pid {
					return unix.Kill(child, unix.SIGKILL)
				}
			}
			return errors.New("there is no criu")
		}
		begun := time.Now()
		if _, err := b.criu.Restore(t.Context(), s); !errors.Is(err, errKilled) {
			t.Errorf("it says %v", err)
		}
		if time.Since(begun) > answerLimit {
			t.Errorf("it took %s to notice", time.Since(begun))
		}
		if left := children(t); left != "" {
			t.Errorf("processes %s are left", left)
		}
		b.leave()
	}
}

// TestKilledWaiting: a CRIU that is killed while it waits is replaced, and one that is never
// used ends.
func TestKilledWaiting(t *testing.T) {
	b := newBox(t, 0)
	d, err := b.criu.PrepareDump(DumpSpec{PID: b.pid, Images: b.images()})
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
	b.well()
	images := b.images()
	b.dumped(DumpSpec{Images: images, frozen: func() error { b.cut(); return nil }})
	s := b.spec(images)
	s.Resuming = func(int) error { b.join(); return nil }
	for _, used := range []bool{false, true} {
		r, err := b.criu.PrepareRestore(s)
		if err != nil {
			t.Fatal(err)
		}
		if used {
			unix.Kill(r.call.pid, unix.SIGKILL)
			<-r.call.ended
			if b.pid, err = r.Do(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		r.Close()
		if left := children(t); used != (left == strconv.Itoa(b.pid)) || !used && left != "" {
			t.Errorf("processes %s are left", left)
		}
	}
	b.well()
}

// TestRestoreKilledEarly: the death of a CRIU that was killed as soon as it had made a process
// is noticed, although that process holds CRIU's files. Nothing is left.
func TestRestoreKilledEarly(t *testing.T) {
	b := newBox(t, 8)
	images := b.images()
	b.dumped(DumpSpec{Images: images})
	for range 8 {
		r, err := b.criu.PrepareRestore(b.spec(images))
		if err != nil {
			t.Fatal(err)
		}
		leader, before := r.call.pid, children(t)
		restoring, done := context.WithCancel(t.Context())
		struck := make(chan bool, 1)
		go func() { struck <- killEarly(t, restoring, leader, before) }()
		begun := time.Now()
		pid, err := r.Do(t.Context())
		done()
		r.Close()
		caught := <-struck
		if err == nil { // it was too fast
			_ = unix.Kill(pid, unix.SIGKILL)
			b.leave()
			continue
		}
		if !caught || !errors.Is(err, errKilled) {
			t.Errorf("killed %v, it says %v", caught, err)
		}
		if time.Since(begun) > answerLimit {
			t.Errorf("it took %s to notice", time.Since(begun))
		}
		if left := inSession(leader); len(left) > 0 {
			t.Errorf("of session %d processes %v are left", leader, left)
		}
		return
	}
	t.Error("no CRIU was caught making processes")
}

// killEarly kills CRIU once there is a new process, made beside it. It reports whether there was
// one before the restore ended.
func killEarly(t *testing.T, restoring context.Context, leader int, before string) bool {
	for restoring.Err() == nil {
		if children(t) != before {
			return unix.Kill(leader, unix.SIGKILL) == nil
		}
	}
	return false
}

// inSession returns the live processes of a session.
func inSession(leader int) (all []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*") // a constant pattern is well-formed
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		if st, err := readStat(pid); err == nil && st.session == leader && st.state != "Z" {
			all = append(all, pid)
		}
	}
	return all
}
