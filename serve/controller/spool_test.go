package controller

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/serve/wire"
)

func streamOf(t *testing.T, s *spool, name string) *stream {
	t.Helper()
	s.know("j1", 1, 0)
	st, err := s.stream("j1", name)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func wrote(t *testing.T, st *stream, offset int64, words string, eof bool) int64 {
	t.Helper()
	next, err := st.write(offset, []byte(words), eof)
	if err != nil {
		t.Fatal(err)
	}
	return next
}

func has(t *testing.T, st *stream, offset int64, want string, end bool) {
	t.Helper()
	data, over, err := st.read(ended, offset)
	if err != nil || string(data) != want || over != end {
		t.Errorf("at %d: %q, ended %v, %v; not %q, %v", offset, data, over, err, want, end)
	}
}

// TestOffsets: however pieces are repeated or reordered, the stream is what the program
// wrote.
func TestOffsets(t *testing.T) {
	dir := t.TempDir()
	st := streamOf(t, newSpool(dir), fleet.Stdout)
	has(t, st, 0, "", false)
	steps := []struct {
		offset int64
		words  string
		eof    bool
		next   int64
	}{
		{3, "later", false, 0},          // bytes before it are missing
		{0, "hello", false, 5},          // the beginning
		{0, "hello", false, 5},          // again
		{2, "llo, w", false, 8},         // partly known
		{0, "he", false, 8},             // all known
		{0, "he", true, 8},              // not the stream's end
		{9, "", true, 8},                // an end that is not reached
		{8, "", false, 8},               // a query
		{8, "orld", true, 12},           // the end
		{12, "and more", false, 12},     // after it
		{0, "something else", true, 12}, // far too late
	}
	for _, s := range steps {
		if next := wrote(t, st, s.offset, s.words, s.eof); next != s.next {
			t.Errorf("%+v: next is %d", s, next)
		}
	}
	for range 2 { // the second time as a restarted controller
		has(t, st, 0, "hello, world", true)
		has(t, st, 7, "world", true)
		has(t, st, 12, "", true)
		if _, _, err := st.read(ended, 13); err == nil {
			t.Error("read beyond the end")
		}
		again := newSpool(dir)
		if err := again.open(map[fleet.JobID]fleet.Job{"j1": {ID: "j1"}}); err != nil {
			t.Fatal(err)
		}
		st = streamOf(t, again, fleet.Stdout)
	}
}

func TestReaderWaits(t *testing.T) {
	s := newSpool(t.TempDir())
	st := streamOf(t, s, fleet.Stdout)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	got := make(chan string)
	go func() {
		offset := int64(0)
		for over := false; !over; {
			var data []byte
			var err error
			if data, over, err = st.read(ctx, offset); err != nil {
				t.Error(err)
				over = true
			}
			offset += int64(len(data))
			got <- string(data)
		}
		close(got)
	}()
	wrote(t, st, 0, "one", false)
	if w := <-got; w != "one" {
		t.Errorf("%q", w)
	}
	wrote(t, st, 3, "two", true)
	rest := ""
	for w := range got {
		rest += w
	}
	if rest != "two" {
		t.Errorf("%q", rest)
	}
	// The job's end releases a reader.
	other := streamOf(t, s, fleet.Stderr)
	released := make(chan bool)
	go func() {
		_, over, _ := other.read(ctx, 0)
		released <- over
	}()
	s.finish("j1")
	if !<-released {
		t.Error("not ended")
	}
	// Forgetting the job does too, and leaves nothing.
	if err := s.forget("j1"); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(s.dir); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	has(t, st, 0, "", true)
	if next := wrote(t, st, 0, "late", false); next != 6 {
		t.Errorf("a forgotten stream took bytes: %d", next)
	}
}

// TestLargeOutput is read by pieces.
func TestLargeOutput(t *testing.T) {
	st := streamOf(t, newSpool(t.TempDir()), fleet.Stdout)
	all := bytes.Repeat([]byte("0123456789abcdef"), pieceBytes/16*5/2)
	if _, err := st.write(0, all, true); err != nil {
		t.Fatal(err)
	}
	var got []byte
	for over := false; !over; {
		data, end, err := st.read(ended, int64(len(got)))
		if err != nil || len(data) == 0 || len(data) > pieceBytes {
			t.Fatalf("%d bytes, %v", len(data), err)
		}
		got, over = append(got, data...), end
	}
	if !bytes.Equal(got, all) {
		t.Error("not what was written")
	}
}

// TestInputWaits: a program that does not read cannot fill the disk.
func TestInputWaits(t *testing.T) {
	st := streamOf(t, newSpool(t.TempDir()), fleet.Stdin)
	wrote(t, st, 0, strings.Repeat("x", aheadBytes), false)
	if st.awaitReader(ended) {
		t.Fatal("took more")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	free := make(chan bool)
	go func() { free <- st.awaitReader(ctx) }()
	st.took(10)
	if !<-free {
		t.Fatal("still full")
	}
}

func TestForgottenJobsAreRemoved(t *testing.T) {
	dir := t.TempDir()
	s := newSpool(dir)
	for _, id := range []fleet.JobID{"j1", "j2", "j3"} {
		s.know(id, 1, 0)
		st, err := s.stream(id, fleet.Stdout)
		if err != nil {
			t.Fatal(err)
		}
		wrote(t, st, 0, string(id), false)
	}
	again := newSpool(dir)
	if err := again.open(map[fleet.JobID]fleet.Job{"j1": {ID: "j1"}, "j2": {ID: "j2", State: fleet.JobEnded}}); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[fleet.JobID]bool{"j1": false, "j2": true} {
		st, _ := again.stream(id, fleet.Stdout)
		has(t, st, 0, string(id), want)
	}
	if _, err := os.Stat(filepath.Join(dir, "j3")); !errors.Is(err, os.ErrNotExist) {
		t.Error("j3 is still there")
	}
	for _, bad := range []fleet.JobID{"", ".", "..", "a/b", "../../etc"} {
		if _, err := again.stream(bad, fleet.Stdout); err == nil {
			t.Errorf("%q got a folder", bad)
		}
		if err := again.forget(bad); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(dir); err != nil {
		t.Fatal("forgot too much")
	}
}

// TestOutputThatIsLong: the beginning of an endless stream is kept, then one line says that the
// rest is lost. The program goes on, also after a controller's restart.
func TestOutputThatIsLong(t *testing.T) {
	dir := t.TempDir()
	s := newSpool(dir)
	s.kept = 10
	st := streamOf(t, s, fleet.Stdout)
	wrote(t, st, 0, "0123456789", false)
	has(t, st, 10, "", false) // the stored maximum, all written so far
	if next := wrote(t, st, 8, "89abc", false); next != 13 {
		t.Errorf("next is %d", next)
	}
	const far = 13 + 1<<40 // a program that has written for days
	if err := os.Truncate(st.path, far); err != nil {
		t.Fatal(err)
	}
	again := newSpool(dir)
	again.kept = 10
	again.know("j1", 1, 0)
	if have := again.have("j1")[fleet.Stdout]; have != far {
		t.Errorf("agents go on at %d", have)
	}
	for _, st := range []*stream{st, streamOf(t, again, fleet.Stdout)} {
		has(t, st, 0, "0123456789", false)
		has(t, st, 10, dropped, false)
		has(t, st, 12, dropped[2:], false)
		has(t, st, int64(10+len(dropped)), "", false)
	}
	st = streamOf(t, again, fleet.Stdout)
	if next := wrote(t, st, far, "more", true); next != far+4 {
		t.Errorf("next is %d", next)
	}
	has(t, st, 10, dropped, true)
	var info unix.Stat_t
	if err := unix.Stat(st.path, &info); err != nil || info.Blocks > 64 {
		t.Errorf("it takes %d blocks, %v", info.Blocks, err)
	}
	in := streamOf(t, s, fleet.Stdin)
	wrote(t, in, 0, "0123456789abc", true)
	has(t, in, 0, "0123456789abc", true)
}

// TestReserve: output leaves the store its reserve, and waits meanwhile.
func TestReserve(t *testing.T) {
	s := newSpool(t.TempDir())
	s.room.reserve, s.kept = 1<<62, 5 // more than any disk has
	st := streamOf(t, s, fleet.Stdout)
	_, err := st.write(0, []byte("hello"), false)
	if e := (*wire.Error)(nil); !errors.As(err, &e) || e.Status != http.StatusInsufficientStorage || !strings.Contains(e.Reason, "free some space") {
		t.Fatalf("got %v", err)
	}
	has(t, st, 0, "", false)
	s.room.reserve = 1
	wrote(t, st, 0, "hello", false)
	s.room.reserve = 1 << 62 // dropped bytes need no space
	wrote(t, st, 5, ", world", true)
	has(t, st, 5, dropped, true)
}

// TestFullDisk: data that does not fit is not taken at all, and fits once there is space.
func TestFullDisk(t *testing.T) {
	if testing.Short() {
		t.Skip("contract ring: make test")
	}
	dir := t.TempDir()
	if err := unix.Mount("pagurus-test", dir, "tmpfs", 0, fmt.Sprintf("size=%d", 1<<20)); err != nil {
		t.Skipf("cannot mount a tmpfs: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	st := streamOf(t, newSpool(dir), fleet.Stdout)
	half := strings.Repeat("x", 600<<10)
	wrote(t, st, 0, half, false)
	_, err := st.write(int64(len(half)), []byte(half), true)
	if e := (*wire.Error)(nil); !errors.As(err, &e) || e.Status != http.StatusInsufficientStorage || !strings.Contains(e.Reason, "free some space") {
		t.Fatalf("got %v", err)
	}
	if info, err := os.Stat(st.path); err != nil || info.Size() != int64(len(half)) {
		t.Fatalf("%v, %v", info.Size(), err)
	}
	has(t, st, int64(len(half)), "", false)
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, fmt.Sprintf("size=%d", 4<<20)); err != nil {
		t.Fatal(err)
	}
	if next := wrote(t, st, int64(len(half)), half, true); next != int64(2*len(half)) {
		t.Errorf("next is %d", next)
	}
}

// Whoever writes to a job while it is forgotten: nothing of it is left, and nothing counted.
func TestForgottenWhileItIsWritten(t *testing.T) {
	dir := t.TempDir()
	s := newSpool(dir)
	for round := range 200 {
		id := fleet.JobID(fmt.Sprint("j", round))
		s.know(id, 1, 0)
		var writing sync.WaitGroup
		for _, name := range []string{fleet.Stdin, fleet.Stdout, fleet.Stderr} {
			writing.Go(func() {
				for i := range int64(20) { // as Streams.Write does, which has looked whether there is the job
					st, err := s.stream(id, name)
					if err != nil {
						if e := (*wire.Error)(nil); !errors.As(err, &e) || e.Status != http.StatusNotFound {
							t.Error(err)
						}
						return
					}
					_, _ = st.write(i, []byte("x"), i == 19)
				}
			})
		}
		if err := s.forget(id); err != nil {
			t.Error(err)
		}
		writing.Wait()
		if _, err := os.Stat(filepath.Join(dir, string(id))); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("%s is there again", id)
		}
	}
	if len(s.jobs)+len(s.room.jobs) > 0 || s.room.all != 0 {
		t.Errorf("%d jobs are there, with %d bytes", len(s.jobs), s.room.all)
	}
}
