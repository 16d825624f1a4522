package etcd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// commitForEver is the child that is killed: it prints the number of every job whose
// commit was answered.
func commitForEver(dir string) {
	ctx := context.Background()
	c := EmbedConfig{Dir: dir}
	if p := strings.Split(os.Getenv("PAGURUS_TEST_PEER"), ","); len(p) == 5 {
		c.Peer = Peer{Name: p[0], Listen: p[1], Advertise: p[1], Files: PeerFiles{p[2], p[3], p[4], peerName}}
	}
	s, err := Embed(ctx, c)
	if err != nil {
		fmt.Println("error:", err)
		return
	}
	snap, err := s.Load(ctx)
	for i := len(snap.Jobs); err == nil; i++ {
		rev := snap.Revision
		c := fleet.Changeset{Jobs: []fleet.Job{job(fmt.Sprint("j", i))}, Guests: []fleet.Guest{{ID: fleet.GuestID(fmt.Sprint("j", i, "g0"))}}}
		if rev, err = s.Commit(ctx, rev, c); err == nil {
			snap = snap.Apply(c, rev)
			fmt.Println(i)
		}
	}
	fmt.Println("error:", err)
}

// TestKilled: after kill -9 every answered commit is stored, and none partially.
func TestKilled(t *testing.T) {
	ctx := contract(t)
	dir := t.TempDir()
	for round := range 3 {
		child := exec.CommandContext(ctx, os.Args[0])
		child.Env = append(os.Environ(), "PAGURUS_TEST_STORE="+dir)
		last := killedAfter(t, child, 40+round*7)
		s := opened(t, ctx, dir)
		snap := loaded(t, ctx, s)
		if n := len(snap.Jobs); last < 0 || n != last+1 && n != last+2 {
			t.Fatalf("round %d: %d jobs answered, %d found", round, last+1, n)
		}
		if len(snap.Guests) != len(snap.Jobs) {
			t.Fatalf("%d guests of %d jobs: half a changeset", len(snap.Guests), len(snap.Jobs))
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// killedAfter runs a child that commits for ever, kills it after some commits, and returns the last that
// was answered.
func killedAfter(t *testing.T, child *exec.Cmd, commits int) (last int) {
	t.Helper()
	last = -1
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for n := 0; lines.Scan(); n++ {
		i, err := strconv.Atoi(lines.Text())
		if err != nil {
			t.Errorf("the child: %s", lines.Text())
			break
		}
		last = i
		if n == commits {
			child.Process.Kill() // its last output is still read
		}
	}
	child.Wait()
	return last
}

// tinyDisk mounts a file system of this size.
func tinyDisk(t *testing.T, bytes int64) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("pagurus-test", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)); err != nil {
		t.Skipf("cannot mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func fill(t *testing.T, path string, leave int64) {
	t.Helper()
	free, err := freeBytes(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	if free <= leave {
		return
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, free-leave); err != nil {
		t.Fatal(err)
	}
}

// TestNearlyFullDisk: changes are refused in one sentence, reading goes on, and all works
// again once there is space.
func TestNearlyFullDisk(t *testing.T) {
	ctx := contract(t)
	disk := tinyDisk(t, 128<<20)
	s := opened(t, ctx, filepath.Join(disk, "store"))
	snap := loaded(t, ctx, s)
	ballast := filepath.Join(disk, "ballast")
	fill(t, ballast, 2<<20)
	change := fleet.Changeset{Jobs: []fleet.Job{job("j1")}}
	for range 3 {
		_, err := s.Commit(ctx, snap.Revision, change)
		if err == nil || !strings.Contains(err.Error(), "is full") || !strings.Contains(err.Error(), "free some space") {
			t.Fatalf("got %v", err)
		}
		same(t, loaded(t, ctx, s), snap)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	rev := committed(t, ctx, s, snap.Revision, change)
	same(t, loaded(t, ctx, s), snap.Apply(change, rev))
}

// TestFullDisk: when the disk becomes full during a write, which would end a process with
// plain etcd, this one survives and reports it; answered commits are stored.
func TestFullDisk(t *testing.T) {
	ctx := contract(t)
	disk := tinyDisk(t, 128<<20)
	dir := filepath.Join(disk, "store")
	s := opened(t, ctx, dir)
	s.member.reserve = 0 // disables the check that TestNearlyFullDisk tests
	snap := loaded(t, ctx, s)
	fill(t, filepath.Join(disk, "ballast"), 0)
	big := strings.Repeat("x", 1<<20)
	answered := 0
	var err error
	for i := 0; i < 200 && err == nil; i++ {
		j := job(fmt.Sprint("j", i))
		j.Cause = big
		c := fleet.Changeset{Jobs: []fleet.Job{j}}
		rev, cerr := s.Commit(ctx, snap.Revision, c)
		if err = cerr; err == nil {
			snap = snap.Apply(c, rev)
			answered++
		}
	}
	if err == nil || !strings.Contains(err.Error(), "full") {
		t.Fatalf("after %d commits: %v", answered, err)
	}
	if _, err := s.Commit(ctx, snap.Revision, fleet.Changeset{GoneJobs: []fleet.JobID{"j0"}}); err == nil || strings.Contains(err.Error(), "did not answer") {
		t.Fatalf("a stopped store answered %v", err)
	}
	t.Logf("after %d commits: %v", answered, err)
	soon, cancel := context.WithTimeout(ctx, 2*roomEvery)
	defer cancel()
	if err := s.RoomAgain(soon); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("room on a full disk: %v", err)
	}
	if err := os.Remove(filepath.Join(disk, "ballast")); err != nil {
		t.Fatal(err)
	}
	if err := s.RoomAgain(ctx); err != nil {
		t.Error(err)
	}
	// In reality another process follows; the folder may be locked in this one.
	if err := s.Close(); err == nil {
		again := loaded(t, ctx, opened(t, ctx, dir))
		if n := len(again.Jobs); n != answered && n != answered+1 {
			t.Fatalf("%d answered, %d found", answered, n)
		}
		return
	}
	copied := filepath.Join(t.TempDir(), "store")
	if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	again := loaded(t, ctx, opened(t, ctx, copied))
	if n := len(again.Jobs); n != answered && n != answered+1 {
		t.Fatalf("%d answered, %d found", answered, n)
	}
}

func TestNoRoomToStart(t *testing.T) {
	ctx := contract(t)
	disk := tinyDisk(t, 8<<20)
	if _, err := Embed(ctx, EmbedConfig{Dir: filepath.Join(disk, "store")}); err == nil || !strings.Contains(err.Error(), "is full") {
		t.Fatalf("got %v", err)
	}
}

// TestStartCancelled: a cancelled start leaves nothing running and no locked folder,
// however far it had come.
func TestStartCancelled(t *testing.T) {
	ctx := contract(t)
	dir := t.TempDir()
	for _, patience := range []time.Duration{0, 5 * time.Millisecond, 50 * time.Millisecond, 150 * time.Millisecond} {
		soon, cancel := context.WithTimeout(ctx, patience)
		s, err := Embed(soon, EmbedConfig{Dir: dir})
		cancel()
		if err == nil { // it was fast
			err = s.Close()
		} else if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("after %v: %v", patience, err)
		}
		began := time.Now()
		s = opened(t, ctx, dir)
		loaded(t, ctx, s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		t.Logf("after %v: %v; opened and closed in %v", patience, err, time.Since(began))
	}
}

func TestCancelled(t *testing.T) {
	ctx := contract(t)
	s := opened(t, ctx, t.TempDir())
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := s.Load(ended); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	loaded(t, ctx, s)
}
