package memory

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/container/shim"
	"pagurus/internal/testkit"
)

// answerLimit is how long any action may take on a busy machine.
const answerLimit = time.Minute

// program is the built testdata/subject.c.
var program string

func TestMain(m *testing.M) {
	shim.Become(Shims)
	if os.Getenv(holderSubject) != "" {
		openAndClose()
	}
	os.Exit(func() int {
		folder, err := os.MkdirTemp("", "pagurus-pages-test-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(folder) }()
		program = filepath.Join(folder, "subject")
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil { // see reap
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// need fails the test without root, a suitable kernel and the subject.
func need(t testing.TB) {
	t.Helper()
	testkit.Root(t, "gcc")
	if err := Supported(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); err == nil {
		return
	}
	out, err := exec.Command("gcc", "-O1", "-pthread", "-o", program, "testdata/subject.c").CombinedOutput()
	if err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
}

// subject is a process whose memory is tested.
type subject struct {
	t    testing.TB
	cmd  *exec.Cmd
	in   io.WriteCloser
	from *os.File // its output
	out  *bufio.Reader
	pid  int
	over chan error // the result of waiting for it
}

// startSubject starts a subject. The end of the test kills it and its children.
func startSubject(t testing.TB, args ...string) *subject {
	t.Helper()
	need(t)
	s := &subject{t: t, cmd: exec.Command(program, args...), over: make(chan error, 1)}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var err error
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	// Not StdoutPipe, because Wait closes that.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s.cmd.Stdout, s.cmd.Stderr = w, os.Stderr
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	s.from, s.out, s.pid = r, bufio.NewReader(r), s.cmd.Process.Pid
	go func() { s.over <- s.cmd.Wait() }()
	t.Cleanup(func() {
		_ = unix.Kill(-s.pid, unix.SIGKILL)
		testkit.Until(t, answerLimit, "the subject is gone", func() bool {
			reap(s.pid)
			return unix.Kill(-s.pid, 0) != nil
		})
		_ = r.Close()
	})
	return s
}

// reap waits for ended processes of a group whose parent is this process. It replaces the
// system's first process, which may be slow.
func reap(group int) {
	for {
		pid, err := unix.Wait4(-group, nil, unix.WNOHANG, nil)
		if err != nil || pid <= 0 {
			return
		}
	}
}

// says returns the subject's next line.
func (s *subject) says() string {
	s.t.Helper()
	if err := s.from.SetReadDeadline(time.Now().Add(answerLimit)); err != nil {
		s.t.Fatal(err)
	}
	line, err := s.out.ReadString('\n')
	if err != nil {
		s.t.Fatalf("the subject said nothing: %v", err)
	}
	return strings.TrimSpace(line)
}

// do makes the subject execute a command. It returns the result and the slot's address.
func (s *subject) do(format string, args ...any) (result int, at uint64) {
	s.t.Helper()
	if _, err := fmt.Fprintf(s.in, format+"\n", args...); err != nil {
		s.t.Fatal(err)
	}
	line := s.says()
	if line == "ok" {
		return 0, 0
	}
	if _, err := fmt.Sscanf(line, "ok %d %x", &result, &at); err != nil {
		s.t.Fatalf("%s: %s", fmt.Sprintf(format, args...), line)
	}
	return result, at
}

// family lists the subject's processes.
func (s *subject) family() (pids []int, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if group, err := unix.Getpgid(pid); err == nil && group == s.pid {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// suspend suspends all of the subject's processes.
func (s *subject) suspend() []int {
	s.t.Helper()
	if err := unix.Kill(-s.pid, unix.SIGSTOP); err != nil {
		s.t.Fatal(err)
	}
	var pids []int
	testkit.Until(s.t, answerLimit, "the subject stops", func() bool {
		pids, _ = s.family()
		for _, pid := range pids {
			if !suspended(pid) {
				return false
			}
		}
		return len(pids) > 0
	})
	return pids
}

func (s *subject) thaw() {
	s.t.Helper()
	if err := unix.Kill(-s.pid, unix.SIGCONT); err != nil {
		s.t.Fatal(err)
	}
}

// suspended reports whether every thread of a process is stopped, or the process has ended.
func suspended(pid int) bool {
	stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, name := range stats {
		if s := state(name); s != 0 && !strings.ContainsRune("TZX", rune(s)) {
			return false
		}
	}
	return true
}

func state(stat string) byte {
	text, _ := os.ReadFile(stat)
	if i := bytes.LastIndexByte(text, ')'); i >= 0 && i+2 < len(text) {
		return text[i+2]
	}
	return 0
}

// into returns a Send that puts pieces into a store.
func into(store *Store) Send {
	return func(p Piece, content []byte) error { return store.Put(p, content) }
}

// same fails the test unless the store has the exact content of every private page of a
// suspended process. It finds the pages in another way than the package does.
func same(t testing.TB, store *Store, pid int) (pages int) {
	t.Helper()
	p, err := openProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	rows, err := p.folder.areas()
	if err != nil {
		t.Fatal(err)
	}
	areas := slices.Concat(rows...)
	pagemap, err := p.folder.open("pagemap")
	if err != nil {
		t.Fatal(err)
	}
	defer pagemap.Close()
	memory, err := p.folder.open("mem")
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	const present, swapped, guard = 1 << 63, 1 << 62, 1 << 58
	entries := make([]byte, 8*512)
	want, got := make([]byte, PageBytes), make([]byte, PageBytes)
	wrong := 0
	for _, a := range areas {
		for at := a.start; at < a.end; {
			n := min(512, (a.end-at)/PageBytes)
			if _, err := pagemap.ReadAt(entries[:8*n], int64(at/PageBytes*8)); err != nil {
				t.Fatal(err)
			}
			for i := range n {
				e, address := binary.LittleEndian.Uint64(entries[8*i:]), at+i*PageBytes
				if e&(present|swapped) == 0 || e&guard != 0 {
					continue
				}
				if _, err := memory.ReadAt(want, int64(address)); err != nil {
					t.Fatalf("process %d at %#x: %v", pid, address, err)
				}
				pages++
				have, err := store.read(p.number, address, got)
				if err == nil && bytes.Equal(have, want) {
					continue
				}
				if wrong++; wrong < 5 {
					t.Errorf("process %d, page at %#x of the area %x-%x: %v", pid, address, a.start, a.end, err)
				}
			}
			at += n * PageBytes
		}
	}
	if wrong > 0 {
		t.Errorf("process %d: %d of %d pages are wrong", pid, wrong, pages)
	}
	return pages
}
