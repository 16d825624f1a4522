package criu

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/host"
	"pagurus/internal/testkit"
)

// answerLimit is how long any action may take on a busy machine.
const answerLimit = 30 * time.Second

// box is a container in namespaces of its own. Its first process is testdata/subject.c, with a
// TCP connection to this test, which is on another host.
type box struct {
	t         *testing.T
	criu      Criu
	home      *testkit.Host   // its network is the container's
	homes     []*testkit.Host // where the container may go, all with the same addresses; their links are cut
	dir, root string
	out       string // a folder outside, mounted at /out in the container
	pid       int
	conn      net.Conn
	lines     *bufio.Reader
}

// compiled is the first process's program, compiled once for all tests.
var compiled = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "pagurus-criu-subject-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "subject")
	if out, err := exec.Command("gcc", "-O1", "-Wall", "-static", "-pthread", "-o", program, "testdata/subject.c").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("compile the subject: %w: %s", err, out)
	}
	return os.ReadFile(program)
})

// newBox starts a container that can go to so many other homes, and may have a file from outside
// open. The end of the test ends it.
func newBox(t *testing.T, homes int, outside ...*os.File) *box {
	t.Helper()
	testkit.Leftovers(t)
	c := find(t)
	testkit.Root(t, "gcc", "ip")
	program, err := compiled()
	if err != nil {
		t.Fatal(err)
	}
	hosts := testkit.Hosts(t, 2+homes)
	b := &box{t: t, criu: c, home: hosts[0], homes: hosts[2:], dir: t.TempDir()}
	b.alike()
	b.root = filepath.Join(b.dir, "root")
	for _, dir := range []string{"proc", "dev", "tmp", "out"} {
		if err := os.MkdirAll(filepath.Join(b.root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(b.root, "subject"), program, 0o755); err != nil {
		t.Fatal(err)
	}
	b.mount(b.root, b.root, "", unix.MS_BIND, "")
	b.out = filepath.Join(b.dir, "out")
	if err := os.Mkdir(b.out, 0o755); err != nil {
		t.Fatal(err)
	}
	b.mount(b.out, filepath.Join(b.root, "out"), "", unix.MS_BIND, "")
	var listener net.Listener
	hosts[1].Must(func() (err error) {
		listener, err = net.Listen("tcp4", net.JoinHostPort(hosts[1].Addr.String(), "0"))
		return err
	})
	defer listener.Close()
	cmd := exec.Command(filepath.Join(b.root, "subject"), b.root, hosts[1].Addr.String(), fmt.Sprint(listener.Addr().(*net.TCPAddr).Port))
	cmd.Stderr, cmd.ExtraFiles = os.Stderr, outside
	if len(outside) > 0 {
		cmd.Args = append(cmd.Args, "keep")
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS}
	b.home.Must(cmd.Start)
	b.pid = cmd.Process.Pid
	t.Cleanup(b.end)
	listener.(*net.TCPListener).SetDeadline(time.Now().Add(answerLimit))
	if b.conn, err = listener.Accept(); err != nil {
		t.Fatalf("the subject does not connect: %v", err)
	}
	t.Cleanup(func() { b.conn.Close() })
	b.lines = bufio.NewReader(b.conn)
	b.well()
	return b
}

func (b *box) mount(source, target, kind string, flags uintptr, with string) {
	b.t.Helper()
	if err := unix.Mount(source, target, kind, flags, with); err != nil {
		b.t.Fatalf("mount %s: %v", target, err)
	}
	b.t.Cleanup(func() { unix.Unmount(target, unix.MNT_DETACH) })
}

// end kills the container, if it lives, and reaps it.
func (b *box) end() {
	if b.pid == 0 {
		return
	}
	unix.Kill(b.pid, unix.SIGKILL)
	if _, err := unix.Wait4(b.pid, nil, 0, nil); err != nil && !errors.Is(err, unix.ECHILD) {
		b.t.Errorf("wait for the container's first process: %v", err)
	}
	b.pid = 0
}

// ask sends a word over the connection and returns the answer.
func (b *box) ask(word string) string {
	b.t.Helper()
	b.tell(word)
	return b.answer()
}

func (b *box) tell(word string) {
	b.t.Helper()
	if _, err := io.WriteString(b.conn, word+"\n"); err != nil {
		b.t.Fatalf("say %q to the subject: %v", word, err)
	}
}

func (b *box) answer() string {
	b.t.Helper()
	b.conn.SetReadDeadline(time.Now().Add(answerLimit))
	line, err := b.lines.ReadString('\n')
	if err != nil {
		b.t.Fatalf("the subject does not answer: %v", err)
	}
	return strings.TrimSpace(line)
}

// silent fails the test if the subject answers.
func (b *box) silent(when string) {
	b.t.Helper()
	b.conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	if line, err := b.lines.ReadString('\n'); !errors.Is(err, os.ErrDeadlineExceeded) {
		b.t.Fatalf("%s: the subject says %q, %v", when, line, err)
	}
}

// mustBeSuspended fails the test if the container runs.
func (b *box) mustBeSuspended(when string) {
	b.t.Helper()
	beat := func() string {
		text, err := os.ReadFile(filepath.Join(b.out, "beat"))
		if err != nil {
			b.t.Fatal(err)
		}
		return string(text)
	}
	before := beat()
	time.Sleep(200 * time.Millisecond)
	if beat() != before {
		b.t.Fatalf("%s: it runs", when)
	}
}

// run runs a subtest.
func (b *box) run(name string, f func(t *testing.T)) {
	b.t.Helper()
	all := b.t
	defer func() { b.t = all }()
	all.Run(name, func(t *testing.T) {
		b.t = t
		f(t)
	})
}

// well fails the test unless the subject's whole state is unchanged.
func (b *box) well() {
	b.t.Helper()
	if got := b.ask("check"); got != "ok" {
		b.t.Fatalf("the subject lost: %s", got)
	}
}

// images makes an empty folder for images.
func (b *box) images() string {
	b.t.Helper()
	dir, err := os.MkdirTemp(b.dir, "images")
	if err != nil {
		b.t.Fatal(err)
	}
	return dir
}

// dump dumps the container.
func (b *box) dump(ctx context.Context, s DumpSpec) error {
	s.PID, s.Mounts = b.pid, map[string]string{"/out": "results"}
	return b.criu.Dump(ctx, s)
}

// dumped dumps the container and checks that the processes are gone.
func (b *box) dumped(s DumpSpec) {
	b.t.Helper()
	if err := b.dump(b.t.Context(), s); err != nil {
		b.t.Fatal(err)
	}
	b.end()
}

// spec says into what the container is restored.
func (b *box) spec(images string) RestoreSpec {
	return RestoreSpec{Images: images, Root: b.root, Netns: filepath.Join("/run/netns", b.home.Namespace), Mounts: map[string]string{"results": b.out}}
}

func (b *box) restored(s RestoreSpec) {
	b.t.Helper()
	pid, err := b.criu.Restore(b.t.Context(), s)
	if err != nil {
		b.t.Fatal(err)
	}
	b.pid = pid
}

// alike gives all homes the first one's addresses, and cuts their links.
func (b *box) alike() {
	b.t.Helper()
	first := b.home
	mac := strings.Fields(first.Run("ip", "-br", "link", "show", testkit.UplinkName))[2]
	for _, h := range b.homes {
		b.home = h
		b.cut()
		h.Run("ip", "addr", "flush", "dev", testkit.UplinkName)
		h.Run("ip", "link", "set", testkit.UplinkName, "address", mac)
		h.Run("ip", "addr", "add", first.Addr.String()+"/16", "dev", testkit.UplinkName)
	}
	b.home = first
}

// leave cuts the container's link and makes the next home the container's home.
func (b *box) leave() {
	b.t.Helper()
	b.cut()
	b.home, b.homes = b.homes[0], b.homes[1:]
}

// cut takes the home's link out of the Ethernet that connects it to this test, and join puts it
// back.
func (b *box) cut() { b.wire("nomaster") }

func (b *box) join() { b.wire("master", "br0") }

func (b *box) wire(words ...string) {
	b.t.Helper()
	id, port, _ := strings.Cut(b.home.Namespace, "h")
	args := append([]string{"-n", id + "s", "link", "set", "h" + port}, words...)
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		b.t.Fatalf("ip %v: %v: %s", args, err, out)
	}
}

// group is a control group that can be frozen.
type group struct {
	t      *testing.T
	folder string
	frozen map[bool]string // written to freeze and to thaw
	file   string
}

// groups makes a group of each cgroup version that this machine has.
func groups(t *testing.T) map[string]group {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]group{}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		switch {
		case f[2] == "cgroup2":
			all["v2"] = group{t, f[1], map[bool]string{true: "1", false: "0"}, "cgroup.freeze"}
		case f[2] == "cgroup" && strings.Contains(","+f[3]+",", ",freezer,"):
			all["v1"] = group{t, f[1], map[bool]string{true: "FROZEN", false: "THAWED"}, "freezer.state"}
		}
	}
	for version, g := range all {
		g.folder = filepath.Join(g.folder, fmt.Sprintf("pagurus-criu-test-%d", os.Getpid()))
		if err := os.Mkdir(g.folder, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			g.set(false)
			testkit.Until(t, answerLimit, "the control group is empty", func() bool {
				return !errors.Is(os.Remove(g.folder), unix.EBUSY)
			})
		})
		all[version] = g
	}
	if len(all) == 0 {
		t.Fatal("this machine has no control groups that can be frozen")
	}
	return all
}

func (g group) set(frozen bool) {
	g.t.Helper()
	if err := os.WriteFile(filepath.Join(g.folder, g.file), []byte(g.frozen[frozen]), 0); err != nil {
		g.t.Fatal(err)
	}
	if frozen {
		testkit.Until(g.t, answerLimit, "all in the control group stand still", func() bool {
			still, err := host.Freezer(g.folder).Settled()
			return err == nil && still
		})
	}
}

// add puts a container into the group.
func (g group) add(pid int) error {
	all, err := Processes(pid)
	if err != nil {
		return err
	}
	for _, p := range all {
		err := os.WriteFile(filepath.Join(g.folder, "cgroup.procs"), fmt.Appendf(nil, "%d", p), 0)
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}
