package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/host/jail"
	"pagurus/act/libpagurus"
	"pagurus/act/share/handle"
	"pagurus/fleet"
)

// TestMain lets the test binary stand for the guest agent when that runs itself again, and
// removes what the contract tests built.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == execName {
		os.Exit(execProgram(os.Args[1:]))
	}
	if os.Args[0] == emptyName {
		os.Exit(emptyFree(os.Args[1:]))
	}
	for _, shims := range []map[string]func([]string) error{jail.Shims, handle.Shims} { // of the file server's jail
		if become := shims[os.Args[0]]; become != nil {
			fmt.Fprintln(os.Stderr, become(os.Args[1:]))
			os.Exit(1)
		}
	}
	code := m.Run()
	os.Remove(builtPath)
	os.Exit(code)
}

// crew gives children that are reaped while the test runs.
func crew(t *testing.T) *children {
	c := newChildren()
	stop := make(chan struct{})
	var reaper sync.WaitGroup
	reaper.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
				c.reapAll()
			}
		}
	})
	t.Cleanup(func() { close(stop); reaper.Wait() })
	return c
}

// enlisted gives a member with enough setup for launching.
func enlisted(t *testing.T) *member {
	m := newMember(crew(t), t.TempDir())
	done := make(chan struct{})
	close(done)
	m.setting = &setting{done: done}
	m.home = account{user: user{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}, name: "user", dir: t.TempDir(), shell: "/bin/sh"}
	return m
}

func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// finish fetches all of a program's output and its exit.
func finish(t *testing.T, m *member, id string) (stdout, stderr string, exit fleet.Exit) {
	t.Helper()
	ctx := limited(t)
	all := map[string]*bytes.Buffer{fleet.Stdout: {}, fleet.Stderr: {}}
	for _, name := range []string{fleet.Stdout, fleet.Stderr} { // a program that writes much to the first waits for its reader
		for got := all[name]; ; {
			data, eof, err := m.Read(ctx, id, name, int64(got.Len()))
			if err != nil {
				t.Fatalf("reading %s of %s: %v", name, id, err)
			}
			got.Write(data)
			if eof {
				break
			}
		}
	}
	exit, err := m.Wait(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	return all[fleet.Stdout].String(), all[fleet.Stderr].String(), exit
}

func TestEnds(t *testing.T) {
	m := enlisted(t)
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for i, c := range []struct {
		args   []string
		dir    string
		exit   fleet.Exit
		stdout string
		stderr string
	}{
		{args: []string{"sh", "-c", "pwd; exit 3"}, exit: fleet.Exit{Code: 3}, stdout: dir},
		{args: []string{"sh", "-c", "kill -KILL $$"}, exit: fleet.Exit{Code: 137, Signal: "SIGKILL"}},
		{args: []string{"no-such-program"}, exit: fleet.Exit{Code: 127}, stderr: "not in the image"},
		{args: []string{"./none"}, exit: fleet.Exit{Code: 127}, stderr: "does not exist"},
		{args: []string{"./" + filepath.Base(write("plain", "echo", 0o644))}, exit: fleet.Exit{Code: 126}, stderr: "is not executable"},
		{args: []string{"plain"}, exit: fleet.Exit{Code: 127}, stderr: "say ./plain"},
		{args: []string{"."}, exit: fleet.Exit{Code: 127}},
		{args: []string{"./."}, exit: fleet.Exit{Code: 126}, stderr: "is a directory"},
		{args: []string{write("rubbish", "rubbish", 0o755)}, exit: fleet.Exit{Code: 126}, stderr: "#!/bin/sh"},
		{args: []string{write("orphan", "#!/no/interpreter\n", 0o755)}, exit: fleet.Exit{Code: 127}, stderr: "interpreter"},
		{args: []string{"true"}, dir: "/no/where", exit: fleet.Exit{Code: 125}, stderr: "working directory /no/where"},
	} {
		if c.dir == "" {
			c.dir = dir
		}
		p := fleet.Program{ID: fmt.Sprint("p", i), Args: c.args, Dir: c.dir}
		if err := m.Launch(t.Context(), p); err != nil {
			t.Errorf("%q: %v", c.args, err)
			continue
		}
		stdout, stderr, exit := finish(t, m, p.ID)
		if exit != c.exit || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) || strings.Count(stderr, "\n") > 1 {
			t.Errorf("%q: %+v, stdout %q, stderr %q", c.args, exit, stdout, stderr)
		}
	}
}

func TestLaunchRefusals(t *testing.T) {
	m := newMember(crew(t), t.TempDir())
	if err := m.Launch(t.Context(), fleet.Program{ID: "p", Args: []string{"true"}}); err == nil {
		t.Error("launched before setup")
	}
	m = enlisted(t)
	for _, p := range []fleet.Program{{ID: "p"}, {ID: "p", Args: []string{""}}, {ID: "p", Args: []string{"a\x00b"}}} {
		if err := m.Launch(t.Context(), p); err == nil {
			t.Errorf("launched %+v", p)
		}
	}
	if _, err := m.Wait(t.Context(), "none"); err == nil {
		t.Error("waited for a program that never was")
	}
	if err := m.Launch(t.Context(), fleet.Program{ID: "long", Args: []string{"true", strings.Repeat("x", 200<<10)}, Dir: "/"}); err != nil {
		t.Error(err)
	}
	if _, stderr, exit := finish(t, m, "long"); exit.Code != 126 || !strings.Contains(stderr, "too long") {
		t.Errorf("%+v %q", exit, stderr)
	}
}

// A program launched again does not run again, and its input goes by offset.
func TestInputOnce(t *testing.T) {
	m := enlisted(t)
	p := fleet.Program{ID: "p", Args: []string{"sh", "-c", "echo run >>runs; cat; cat runs"}, Dir: t.TempDir(), Env: []string{"A=b"}}
	ctx := limited(t)
	for range 3 {
		if err := m.Launch(ctx, p); err != nil {
			t.Fatal(err)
		}
	}
	write := func(offset int64, data string, eof bool, want int64) {
		t.Helper()
		if next, err := m.Write(ctx, "p", offset, []byte(data), eof); err != nil || next != want {
			t.Errorf("writing at %d led to %d, %v", offset, next, err)
		}
	}
	write(0, "hello ", false, 6)
	write(0, "hello ", false, 6)            // again
	write(100, "from the future", false, 6) // bytes before it are missing
	write(3, "lo world\n", false, 12)
	write(12, "", true, 12)
	write(12, "after the end", false, 12)
	if stdout, _, _ := finish(t, m, "p"); stdout != "hello world\nrun\n" {
		t.Errorf("%q", stdout)
	}
	write(12, "", true, 12)
}

// Output is bounded: a program without a reader waits, and loses nothing.
func TestOutputWaits(t *testing.T) {
	m := enlisted(t)
	const total = 5 << 20
	p := fleet.Program{ID: "p", Args: []string{"sh", "-c", fmt.Sprintf("head -c %d /dev/zero", total)}, Dir: "/"}
	if err := m.Launch(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	o := &m.programs["p"].out
	held := func() int { o.mu.Lock(); defer o.mu.Unlock(); return len(o.held) }
	for end := time.Now().Add(30 * time.Second); held() < outputLimit && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	time.Sleep(20 * time.Millisecond)
	if n := held(); n < outputLimit || n > outputLimit+chunk {
		t.Errorf("%d bytes are held", n)
	}
	if stdout, _, exit := finish(t, m, "p"); len(stdout) != total || exit.Code != 0 {
		t.Errorf("%d bytes, %+v", len(stdout), exit)
	}
	if _, _, err := m.Read(t.Context(), "p", fleet.Stdout, 0); err == nil {
		t.Error("output that is gone was given")
	}
	if _, _, err := m.Read(t.Context(), "p", fleet.Stdout, total+1); err == nil {
		t.Error("output that never was was given")
	}
	if data, eof, err := m.Read(t.Context(), "p", fleet.Stdout, total); len(data) > 0 || !eof || err != nil {
		t.Error("the end is not the end", eof, err)
	}
}

// A program's child does not keep its output open without end, and is reaped when it ends.
func TestLeftBehind(t *testing.T) {
	m := enlisted(t)
	p := fleet.Program{ID: "p", Args: []string{"sh", "-c", "sleep 60 & echo $!"}, Dir: "/"}
	if err := m.Launch(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	stdout, _, _ := finish(t, m, "p")
	var pid int
	fmt.Sscan(stdout, &pid)
	if pid < 2 || unix.Kill(pid, unix.SIGKILL) != nil {
		t.Errorf("sleep is not there: %q", stdout)
	}
}

// The processes to end: programs, as long as they may hold files, but not the kernel's
// threads.
func TestOthers(t *testing.T) {
	is := func(pid int) bool { return slices.Contains(others(), pid) }
	program := exec.Command("sleep", "600")
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	if !is(program.Process.Pid) || is(os.Getpid()) {
		t.Errorf("%d is not among %v, or this test is", program.Process.Pid, others())
	}
	program.Process.Kill()
	for end := time.Now().Add(30 * time.Second); is(program.Process.Pid); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a program that ended is still there")
		}
	}
	program.Wait()
	names, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, name := range names {
		comm, _ := os.ReadFile(name)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if string(comm) == "kthreadd\n" && is(pid) {
			t.Error("the kernel's own process is taken for a program")
		}
	}
	for stat, want := range map[string]bool{
		"2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 1 0 0 20 0 1 0 30 0":       false,
		"9 (a ) b (c) S 1 9 9 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 30 0":       true,
		"9 (flushing) D 1 9 9 0 -1 4195332 0 0 0 0 0 0 0 0 20 0 1 0 30 0":       true,
		"9 (ended) Z 1 9 9 0 -1 4195332 0 0 0 0 0 0 0 0 20 0 1 0 30 0":          false,
		"9 (a thread is left) Z 1 9 9 0 -1 4195332 0 0 0 0 0 0 0 0 20 0 2 0 30": true,
		"9 (half": false, "": false,
	} {
		if isUser(stat) != want {
			t.Errorf("%q is a program: %t", stat, !want)
		}
	}
}

func TestWaitEndsWithContext(t *testing.T) {
	m := enlisted(t)
	if err := m.Launch(t.Context(), fleet.Program{ID: "p", Args: []string{"cat"}, Dir: "/"}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if _, err := m.Wait(ctx, "p"); err != context.DeadlineExceeded {
		t.Error(err)
	}
	if _, _, err := m.Read(ctx, "p", fleet.Stdout, 0); err != context.DeadlineExceeded {
		t.Error(err)
	}
	m.programs["p"].end(m.children, unix.SIGTERM)
	if _, _, exit := finish(t, m, "p"); exit != (fleet.Exit{Code: 143, Signal: "SIGTERM"}) {
		t.Errorf("%+v", exit)
	}
}

func TestEnlist(t *testing.T) {
	m := newMember(nil, t.TempDir())
	m.write("/etc/passwd", "root:x:0:0:root:/root:/bin/bash\nalice:x:1000:1000::/home/alice:/bin/sh")
	m.write("/etc/group", "root:x:0:\n")
	for range 2 { // the same again changes nothing
		a, err := m.enlist(fleet.Setup{UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Groups: []uint32{7}})
		if err != nil {
			t.Fatal(err)
		}
		if os.Getuid() == 0 && (a.name != "root" || a.dir != "/root") {
			t.Errorf("%+v", a)
		}
	}
	groups, _ := os.ReadFile(filepath.Join(m.root, "/etc/group"))
	if strings.Count(string(groups), ":7:") != 1 {
		t.Errorf("groups:\n%s", groups)
	}
	if os.Getuid() != 0 {
		return
	}
	for _, c := range []struct {
		uid         uint32
		export, dir string
		links       []fleet.Link
	}{
		{1000, "/data", "/home/alice", nil}, {1000, "/home", "/var/home/user", nil},
		{5555, "/home/user/x", "/home/user", nil}, {5555, "/home/user", "/var/home/user", nil},
		{5555, "/data/home", "/var/home/user", []fleet.Link{{Path: "/home", To: "/data/home"}}},
		{1000, "/data/home", "/var/home/user", []fleet.Link{{Path: "/home", To: "/data/home"}}},
		{5555, "/scratch/user/x", "/var/home/user", []fleet.Link{{Path: "/home/user", To: "/scratch/user"}}},
	} {
		m := newMember(nil, t.TempDir())
		m.write("/etc/passwd", "alice:x:1000:1000::/home/alice:/bin/sh")
		a, err := m.enlist(fleet.Setup{UID: c.uid, GID: 5555, Export: c.export, Links: c.links})
		if err != nil || a.dir != c.dir {
			t.Errorf("%+v: home %s, %v", c, a.dir, err)
		}
		if st, err := os.Stat(filepath.Join(m.root, a.dir)); err != nil || st.Sys() == nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// A directory has the name that its user has for it, and no link covers what is the image's or the user's.
func TestLinks(t *testing.T) {
	m := enlisted(t)
	m.root = t.TempDir()
	for _, dir := range []string{"home", "data/home/ada/work", "opt/full/of/it", "usr", "sent", "tmp"} {
		if err := os.MkdirAll(filepath.Join(m.root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s := fleet.Setup{Export: "/data/home/ada/work", Files: []fleet.Directory{{Path: "/sent"}}, Links: []fleet.Link{
		{Path: "/home", To: "/data/home"}, {Path: "/data/home/bob/own", To: "/data/home/ada/work"}, {Path: "/opt/full", To: "/sent"},
		{Path: "/usr/own", To: "/sent"}, {Path: "/sent/own", To: "/data/home"}, {Path: "/tmp", To: "/data/tmp"},
	}}
	m.link(s)
	for path, want := range map[string]string{"home": "/data/home", "data/home/bob/own": "/data/home/ada/work", "opt/full": "", "usr/own": "", "sent/own": "", "tmp": ""} {
		if got, _ := os.Readlink(filepath.Join(m.root, path)); got != want {
			t.Errorf("/%s leads to %q, not %q", path, got, want)
		}
	}
	whole := enlisted(t)
	whole.root = t.TempDir()
	if err := os.Symlink("/data/home", filepath.Join(whole.root, "home")); err != nil { // the image has it already
		t.Fatal(err)
	}
	whole.link(fleet.Setup{Links: s.Links[:1]})
	if !m.unlinked || whole.unlinked {
		t.Errorf("some links are not made: %v, where all are: %v", m.unlinked, whole.unlinked)
	}
	m.link(fleet.Setup{Links: []fleet.Link{{Path: "/late", To: "/sent"}}})
	if _, err := os.Lstat(filepath.Join(m.root, "late")); err == nil {
		t.Error("a link is made after programs may run")
	}
}

// PWD is the user's name of the directory as long as it is one of it.
func TestNameOfDirectory(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "named")
	if err := os.Symlink(dir, name); err != nil {
		t.Fatal(err)
	}
	for given, want := range map[string]string{name: name, dir: dir, "/": dir, "/nothing": dir, ".": dir, "": dir} {
		cmd := exec.Command("/proc/self/exe", dir, "", "env")
		cmd.Args[0], cmd.Env = execName, []string{"PATH=" + searchPath, "PWD=" + given}
		out, err := cmd.Output()
		if err != nil || !strings.Contains("\n"+string(out), "\nPWD="+want+"\n") {
			t.Errorf("PWD=%s: %q %v, not %s", given, out, err, want)
		}
	}
}

func TestMountable(t *testing.T) {
	for path, want := range map[string]bool{
		"/home/alice": true, "/root": true, "/tmp/x": true, "/data/with space": true, "/usrlocal": true,
		"/": false, "/usr": false, "/usr/local": false, "/etc": false, "/run/x": false, "": false, "relative": false, "/a/../usr": false, "/a/": false,
	} {
		if err := mountable(path); (err == nil) != want {
			t.Errorf("%q: %v", path, err)
		}
	}
}

func TestPlan(t *testing.T) {
	s := fleet.Setup{Peers: []fleet.Peer{{Hostname: "guest0", Slots: 2}}, MPI: "nosuchmpi"}
	home := account{dir: "/home/user", name: "user", shell: "/bin/sh"}
	args, check, env := plan(s, home, fleet.Program{Args: []string{"./a.out", "x"}, MPI: true, Ranks: 4, Env: []string{"A=1", "B=2", "A=3", "HOME=/h", "nonsense"}})
	if fmt.Sprint(args) != "[mpirun -n 4 ./a.out x]" || check != "./a.out" {
		t.Errorf("%q %q", args, check)
	}
	for _, want := range []string{"A=3", "B=2", "HOME=/h", "PAGURUS_ENV=A B HOME", "HYDRA_LAUNCHER_EXEC=" + rshPath} {
		if !slices.Contains(env, want) {
			t.Errorf("no %s in %q", want, env)
		}
	}
	if slices.Contains(env, "A=1") || slices.Contains(env, "HOME=/home/user") {
		t.Errorf("a variable is there twice: %q", env)
	}
	_, _, env = plan(s, home, fleet.Program{Args: []string{"./a.out"}, MPI: true, Ranks: 4, Grow: true, Env: []string{"LD_PRELOAD=/own.so", "A=1"}})
	load := "LD_PRELOAD=" + libpagurus.Spawner + ":/own.so"
	if !slices.Contains(env, load) || !slices.Contains(env, carried+"=LD_PRELOAD A") || slices.Contains(env, "LD_PRELOAD=/own.so") {
		t.Errorf("a job that may grow: %q", env)
	}
	args, _, _ = plan(s, home, fleet.Program{Args: []string{"./a.out"}, MPI: true, Ranks: 4, Env: []string{"PWD=/way"}})
	if fmt.Sprint(args) != "[mpirun -n 4 env PWD=/way ./a.out]" {
		t.Errorf("ranks do not have the directory's name: %q", args)
	}
	args, check, _ = plan(s, home, fleet.Program{Args: []string{"./a.out"}})
	if fmt.Sprint(args) != "[./a.out]" || check != "" {
		t.Errorf("%q %q", args, check)
	}
}

// No word of a program stands where a launcher, or env(1), would take it for its own.
func TestAsTyped(t *testing.T) {
	for _, variables := range [][]string{nil, {"LD_PRELOAD=/it's.so", "PAGURUS_WAIT=1"}} {
		for _, args := range [][]string{append([]string{"printf", "[%s]"}, typed...), {"env", "echo"}, {"expr", "ab", ":", "a.*"}, {":", "a=b"}, {"a=b", ":"}, {"a=b"}} {
			got := asTyped(variables, args)
			if slices.Contains(got, ":") || len(variables) > 0 && strings.HasPrefix(got[0], "env") && strings.Contains(got[len(variables)+1], "=") {
				t.Errorf("%q with %q: %q", args, variables, got)
			}
			if strings.Contains(args[0], "=") || args[0] == ":" {
				continue // there is no such program
			}
			out, err := exec.Command(got[0], got[1:]...).Output()
			if want, werr := exec.Command(args[0], args[1:]...).Output(); err != nil || werr != nil || string(out) != string(want) {
				t.Errorf("%q with %q gives %q, %v, not %q, %v", args, variables, out, err, want, werr)
			}
		}
	}
	got := asTyped([]string{"A=it's", "B=2"}, []string{"sh", "-c", `printf %s "$A$B$1"`, "sh", ":"})
	if out, err := exec.Command(got[0], got[1:]...).CombinedOutput(); err != nil || string(out) != "it's2:" {
		t.Errorf("variables of a program behind a shell: %q %v", out, err)
	}
}

func TestParseRemote(t *testing.T) {
	for line, want := range map[string]string{
		"guest1 a b":                      "guest1|a b|false",
		"-x guest1 prted --tree":          "guest1|prted --tree|false",
		"-l bob -p 22 -n me@guest1 ls":    "guest1|ls|true",
		"-o StrictHost=no -- guest2 x -n": "guest2|x -n|false",
		"guest1":                          "||false",
		"-l":                              "||false",
	} {
		host, command, quiet, err := parseRemote(strings.Fields(line))
		if got := fmt.Sprintf("%s|%s|%v", host, command, quiet); got != want || (err != nil) != (host == "") {
			t.Errorf("%q: %s %v, want %s", line, got, err, want)
		}
	}
}

// server runs remote commands for any caller on the returned address.
func server(t *testing.T) (dial func() net.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := enlisted(t)
	r := &remoteServer{listener: listener, children: m.children, home: m.home, env: ownEnv(m.home)}
	r.peers = []fleet.Peer{{Addr: loopback}}
	go r.accept()
	t.Cleanup(r.close)
	return func() net.Conn {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
}

func TestRemoteCommand(t *testing.T) {
	dial := server(t)
	var out, errs bytes.Buffer
	big := strings.Repeat("0123456789abcdef", 64<<10)
	code, err := converse(dial(), remoteRequest{Command: "cat; echo $V $HOME >&2; exit 5", Env: []string{"V=w"}},
		terminal{strings.NewReader(big), &out, &errs})
	if code != 5 || err != nil || out.String() != big || !strings.HasPrefix(errs.String(), "w /") {
		t.Errorf("%d %v, %d bytes, %q", code, err, out.Len(), errs.String())
	}
	for _, rubbish := range []string{"\n", "{\n", "GET / HTTP/1.1\r\n\r\n", strings.Repeat("x", 2<<20)} {
		conn := dial()
		conn.Write([]byte(rubbish))
		conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		if b, err := io.ReadAll(conn); os.IsTimeout(err) {
			t.Errorf("rubbish %.20q keeps the connection: %q", rubbish, b)
		}
	}
}

// A command ends with its caller.
func TestRemoteCommandEndsWithCaller(t *testing.T) {
	conn := server(t)()
	pids, w := io.Pipe()
	go converse(conn, remoteRequest{Command: "echo $$; exec sleep 600"}, terminal{strings.NewReader(""), w, io.Discard})
	var pid int
	if _, err := fmt.Fscanln(pids, &pid); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	for end := time.Now().Add(30 * time.Second); unix.Kill(pid, 0) == nil; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("process %d goes on", pid)
		}
	}
}

var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})
