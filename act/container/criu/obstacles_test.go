package criu

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestObstacles: obstacles are found before a dump, and the dump that they prevent says the
// same. The container keeps running.
func TestObstacles(t *testing.T) {
	for _, c := range []struct {
		open        string
		found, said string // parts of what Obstacles and Dump say; "-": nothing, it can be moved
	}{
		{"device memory", "subject (process 1 in the container) uses /dev/infiniband/uverbs0", "`mpirun --mca pml ob1 --mca btl ^openib`, and for UCX `UCX_TLS=tcp,sm`"},
		{"device", "/dev/fuse", "/dev/fuse"},
		{"io_uring", "io_uring", "io_uring"},
		{"counter", "perf_event", "perf_event"},
		{"vsock", "vsock", "vsock"},
		{"multipath", "multipath", "GODEBUG=multipathtcp=0"},
		{"large ghost", "subject (process 1 in the container) has deleted /tmp/large, but has it open, and its 65 MiB", "65 MiB"},
		{"tracer", "subject (process 2 in the container) is being debugged: end the debugger, subject (process 6 in the container)", "debugged"},
		{"nested namespace", "process numbers", "process numbers"},
		{"waiting connection", "", "accepted"},
		{"doomed segment", "", "-"},
		{"file /proc/self/maps", "", "-"},
		{"file /dev/pts/0", "", "-"},
	} {
		t.Run(c.open, func(t *testing.T) {
			b := newBox(t, 0)
			if got := Obstacles(b.pid, 0); len(got) > 0 {
				t.Fatalf("before, Obstacles says %q", got)
			}
			if got := b.ask("open " + c.open); got != "ok" {
				t.Fatal(got)
			}
			found := strings.Join(Obstacles(b.pid, 0), "\n")
			if !strings.Contains(found, c.found) || c.found == "" && found != "" {
				t.Errorf("Obstacles says %q", found)
			}
			if all := strings.Join(Obstacles(b.pid, 1<<30), "\n"); c.open == "large ghost" && all != "" {
				t.Errorf("of a dump that takes large files along Obstacles says %q", all)
			}
			err := b.dump(t.Context(), DumpSpec{Images: b.images(), Running: true})
			switch {
			case c.said == "-" && err != nil, c.said != "-" && (err == nil || !strings.Contains(err.Error(), c.said)):
				t.Errorf("Dump says %v", err)
			}
			b.well()
			if c.said == "-" {
				images := b.images()
				b.dumped(DumpSpec{Images: images, frozen: func() error { b.cut(); return nil }})
				s := b.spec(images)
				s.Resuming = func(int) error { b.join(); return nil }
				b.restored(s)
				b.well()
			}
		})
	}
}

// TestOutside: a file was opened before its process was in the container.
func TestOutside(t *testing.T) {
	f, err := os.Open("/etc/hostname")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := newBox(t, 0, f)
	const want = "/etc/hostname open, as descriptor 3, which lies outside the container"
	if got := Obstacles(b.pid, 0); len(got) == 0 || !strings.Contains(got[0], want) {
		t.Errorf("Obstacles says %q", got)
	}
	if err := b.dump(t.Context(), DumpSpec{Images: b.images(), Running: true}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Dump says %v", err)
	}
	b.well()
}

// TestUntold: a folder from outside is mounted in a container, and the dump is not told.
func TestUntold(t *testing.T) {
	b := newBox(t, 0)
	err := b.criu.Dump(t.Context(), DumpSpec{PID: b.pid, Images: b.images(), Running: true})
	if err == nil || !strings.Contains(err.Error(), "/out is mounted in it from outside") {
		t.Errorf("Dump says %v", err)
	}
	b.well()
}

// TestSharedSegment: this test has no System V memory of its own, but uses its host's.
func TestSharedSegment(t *testing.T) {
	id, err := unix.SysvShmGet(unix.IPC_PRIVATE, os.Getpagesize(), unix.IPC_CREAT|0o600)
	if err != nil {
		t.Fatal(err)
	}
	memory, err := unix.SysvShmAttach(id, 0, 0)
	if _, end := unix.SysvShmCtl(id, unix.IPC_RMID, nil); err != nil || end != nil {
		t.Fatal(err, end)
	}
	has := func() bool {
		return strings.Contains(strings.Join(Obstacles(os.Getpid(), 0), "\n"), "System V memory")
	}
	if !has() {
		t.Errorf("Obstacles says %q", Obstacles(os.Getpid(), 0))
	}
	if err := unix.SysvShmDetach(memory); err != nil {
		t.Fatal(err)
	}
	if has() {
		t.Error("it is still said when the memory is gone")
	}
}
