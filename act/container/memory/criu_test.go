package memory

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/internal/testkit"
)

// criuProgram is where scripts/setup puts a CRIU that is new enough.
const criuProgram = "/opt/pagurus-criu/bin/criu"

func criuCommand(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	path := criuProgram
	if _, err := os.Stat(path); err != nil {
		if path, err = exec.LookPath("criu"); err != nil {
			t.Fatal("this test needs CRIU; scripts/setup installs it")
		}
	}
	return exec.CommandContext(t.Context(), path, args...)
}

// kept is a family of processes that check their own memory.
type kept struct {
	t testing.TB
	*subject
	file string
	way  func(net.Conn) net.Conn // to CRIU
}

func keepMemory(t testing.TB, mib int) *kept {
	t.Helper()
	file := filepath.Join(t.TempDir(), "account")
	k := &kept{t, nil, file, func(c net.Conn) net.Conn { return c }}
	k.subject = startSubject(t, "keep", file, strconv.Itoa(mib))
	k.goesOn()
	return k
}

// account returns what a process wrote last: its steps and its PID. It fails the test if the
// process found an error.
func account(t testing.TB, file string) (steps, pid int) {
	t.Helper()
	text, _ := os.ReadFile(file) // it may not exist yet
	var word string
	if n, _ := fmt.Sscan(string(text), &word, &steps, &pid); n < 3 {
		return -1, 0
	}
	if word != "good" {
		t.Fatalf("%s says %s", file, text)
	}
	return steps, pid
}

// goesOn waits until both processes have checked their memory a few more times.
func (k *kept) goesOn() {
	k.t.Helper()
	for _, file := range []string{k.file, k.file + ".child"} {
		begun, _ := account(k.t, file)
		testkit.Until(k.t, time.Minute, "the processes go on", func() bool {
			steps, _ := account(k.t, file)
			return steps >= max(begun, 0)+3
		})
	}
}

// pids returns the family's PIDs.
func (k *kept) pids() []int {
	_, child := account(k.t, k.file+".child")
	return []int{k.pid, child}
}

// dump dumps the family with --lazy-pages and ends it.
func (k *kept) dump(images string) {
	k.t.Helper()
	port := freePort(k.t)
	r, w, err := os.Pipe()
	if err != nil {
		k.t.Fatal(err)
	}
	defer r.Close()
	cmd := criuCommand(k.t, "dump", "-t", strconv.Itoa(k.pid), "-D", images, "-o", "dump.log", "-v2", "--lazy-pages",
		"--address", "127.0.0.1", "--port", strconv.Itoa(port), "--status-fd", "3")
	cmd.ExtraFiles = []*os.File{w}
	if err := cmd.Start(); err != nil {
		k.t.Fatal(err)
	}
	_ = w.Close()
	if n, err := r.Read(make([]byte, 1)); n != 1 {
		_ = cmd.Wait()
		k.t.Fatalf("criu dump did not get ready: %v\n%s", err, tail(filepath.Join(images, "dump.log")))
	}
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		k.t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(ask(commandClose, 0, 0, 0)); err != nil {
		k.t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 4)); err != nil {
		k.t.Fatal(err)
	}
	_ = conn.Close()
	if err := cmd.Wait(); err != nil {
		k.t.Fatalf("criu dump: %v\n%s", err, tail(filepath.Join(images, "dump.log")))
	}
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func tail(log string) []byte {
	text, _ := os.ReadFile(log)
	return text[max(0, len(text)-3000):]
}

// gone waits until the PIDs are free again.
func (k *kept) gone(pids []int) {
	k.t.Helper()
	for _, pid := range pids {
		testkit.Until(k.t, 20*time.Second, "the dumped processes are gone", func() bool {
			reap(k.pid)
			return unix.Kill(pid, 0) != nil
		})
	}
}

func (k *kept) restore(images string, more ...string) {
	k.t.Helper()
	cmd := criuCommand(k.t, append([]string{"restore", "-d", "-D", images, "-o", "restore.log", "-v2"}, more...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		k.t.Fatalf("criu restore: %v: %s\n%s", err, out, tail(filepath.Join(images, "restore.log")))
	}
}

// lazily restores the family from the store while it runs.
func (k *kept) lazily(images string, store *Store) {
	k.t.Helper()
	wait := k.beginLazily(images, store)
	k.goesOn()
	wait()
}

// beginLazily lets the family run before its memory has arrived. wait waits until it has.
func (k *kept) beginLazily(images string, store *Store) (wait func()) {
	k.t.Helper()
	conn, theirs, err := SocketPair()
	if err != nil {
		k.t.Fatal(err)
	}
	cmd := criuCommand(k.t, "lazy-pages", "-D", images, "-o", "lazy.log", "-v2", "--page-server", "--ps-socket", "3")
	cmd.ExtraFiles = []*os.File{theirs}
	if err := cmd.Start(); err != nil {
		k.t.Fatal(err)
	}
	_ = theirs.Close()
	served := make(chan error, 1)
	go func() {
		err := store.Serve(context.Background(), k.way(conn))
		if err != nil { // then the processes make no progress, which other checks may notice first
			fmt.Fprintf(os.Stderr, "%s: %v\n%s\n", k.t.Name(), err, tail(filepath.Join(images, "lazy.log")))
		}
		served <- err
	}()
	testkit.Until(k.t, 20*time.Second, "criu lazy-pages listens", func() bool {
		_, err := os.Stat(filepath.Join(images, "lazy-pages.socket"))
		return err == nil
	})
	k.restore(images, "--lazy-pages")
	k.thaw()
	return func() {
		k.t.Helper()
		if err := <-served; err != nil {
			k.t.Errorf("%v\n%s", err, tail(filepath.Join(images, "lazy.log")))
		}
		if err := cmd.Wait(); err != nil {
			k.t.Errorf("criu lazy-pages: %v\n%s", err, tail(filepath.Join(images, "lazy.log")))
		}
		_ = conn.Close()
	}
}

// imagesFolder makes a folder in memory, as in a move.
func imagesFolder(t testing.TB) string {
	t.Helper()
	folder, err := os.MkdirTemp("/dev/shm", "pagurus-pages-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	return folder
}

// TestCRIU: processes that change their memory all the time are copied, dumped and restored by
// an unmodified CRIU, and find their memory unchanged.
func TestCRIU(t *testing.T) {
	testkit.Leftovers(t)
	for name, lazy := range map[string]bool{"lazily": true, "from whole images": false} {
		t.Run(name, func(t *testing.T) {
			k := keepMemory(t, 20)
			for range 2 { // the second time, the restored processes
				images, store := imagesFolder(t), newStore(t)
				pids := k.pids()
				tr := track(t, pids...)
				for range 3 {
					onePass(t, tr, store, pids...)
				}
				lastPass(t, tr, store, k.suspend()...)
				k.dump(images)
				k.gone(pids)
				if lazy {
					k.lazily(images, store)
				} else {
					if err := store.Complete(images); err != nil {
						t.Fatal(err)
					}
					if n := store.HeldBytes(); n > 1<<20 {
						t.Errorf("%d bytes are still held", n)
					}
					k.restore(images)
					k.thaw()
					k.goesOn()
				}
				if err := store.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// slow is a connection with a limited sending rate, in bytes per second.
type slow struct {
	net.Conn
	bytesPerSecond int
}

func (s slow) Write(b []byte) (int, error) {
	time.Sleep(time.Duration(len(b)) * time.Second / time.Duration(s.bytesPerSecond))
	return s.Conn.Write(b)
}

// TestCRIUForks: processes that fork before their memory has arrived have all of it, in parent
// and child.
func TestCRIUForks(t *testing.T) {
	testkit.Leftovers(t)
	k := keepMemory(t, 8)
	k.way = func(c net.Conn) net.Conn { return slow{c, 4 << 20} }
	images, store, pids := imagesFolder(t), newStore(t), k.pids()
	tr := track(t, pids...)
	onePass(t, tr, store, pids...)
	lastPass(t, tr, store, k.suspend()...)
	k.dump(images)
	k.gone(pids)
	wait := k.beginLazily(images, store)
	if err := unix.Kill(k.pid, unix.SIGUSR1); err != nil { // makes it fork
		t.Fatal(err)
	}
	testkit.Until(t, time.Minute, "the child has looked at all its memory", func() bool {
		steps, _ := account(t, k.file+".forked")
		return steps >= 0
	})
	k.goesOn()
	wait()
}

// TestCRIUMissesAPage: if a page is missing, nothing wrong is restored.
func TestCRIUMissesAPage(t *testing.T) {
	testkit.Leftovers(t)
	k := keepMemory(t, 4)
	images, store := imagesFolder(t), newStore(t)
	tr := track(t, k.pids()...)
	lastPass(t, tr, store, k.suspend()...)
	k.dump(images)
	text, err := os.ReadFile(filepath.Join(images, fmt.Sprintf("pagemap-%d.img", k.pid)))
	if err != nil {
		t.Fatal(err)
	}
	m, err := parsePagemap(text)
	if err != nil {
		t.Fatal(err)
	}
	var missing uint64
	for _, e := range m.Entries {
		if e.Missing() && e.Pages > 16 { // pages that were sent and are not in the dump
			missing = e.Address + 8*PageBytes
		}
	}
	if missing == 0 {
		t.Fatal("no page to leave out")
	}
	if err := store.Put(Piece{Process: uint32(k.pid), What: Gone, Address: missing, Bytes: PageBytes}, nil); err != nil {
		t.Fatal(err)
	}
	err = store.Complete(images)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%#x", missing)) {
		t.Errorf("without the page at %#x: %v", missing, err)
	}
}
