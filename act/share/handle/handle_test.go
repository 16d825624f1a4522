package handle

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"pagurus/internal/testkit"
)

// attacker is the name under which this test is the server: one that was taken over.
const attacker = "pagurus-test-attacker"

func TestMain(m *testing.M) {
	if become := Shims[os.Args[0]]; become != nil {
		fmt.Fprintln(os.Stderr, become(os.Args[1:]))
		os.Exit(1)
	}
	if filepath.Base(os.Args[0]) == attacker {
		attack(os.Args[1], os.Args[2], os.Args[3:])
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// user is nobody's.
const user = 2_100_000_901

// attack does what a server does, and what it must not, and says what came of it. others are handles of files that are
// not in the directory, as the kernel has them.
func attack(dir, what string, others []string) {
	say := func(what string, result any) { fmt.Printf("%s: %v\n", what, result) }
	mount, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		say("directory", err)
		return
	}
	content := func(h unix.FileHandle) string {
		fd, err := unix.OpenByHandleAt(mount, h, unix.O_RDONLY)
		if err != nil {
			return err.Error()
		}
		defer unix.Close(fd)
		text := make([]byte, 100)
		n, err := unix.Read(fd, text)
		return fmt.Sprintf("%q %v", text[:max(n, 0)], err)
	}
	h, _, err := unix.NameToHandleAt(mount, "file", 0)
	if err != nil {
		say("name", err)
		return
	}
	say("file", content(h))
	b := h.Bytes()
	say("unsigned", content(unix.NewFileHandle(h.Type(), b[:len(b)-signatureBytes])))
	say("other kind", content(unix.NewFileHandle(h.Type()+1, b)))
	for i := range b {
		flipped := bytes.Clone(b)
		flipped[i] ^= 1
		if got := content(unix.NewFileHandle(h.Type(), flipped)); got != "stale file handle" {
			say("flipped", got)
		}
	}
	for _, other := range others {
		raw, err := hex.DecodeString(other)
		if err != nil {
			say("other", err)
		}
		say("other", content(unix.NewFileHandle(h.Type(), raw)))
		say("other signed as this", content(unix.NewFileHandle(h.Type(), append(raw, b[len(b)-signatureBytes:]...))))
	}
	if what == "forge" {
		return
	}
	if own, _, err := unix.NameToHandleAt(mount, "closed", 0); err != nil {
		say("closed", err)
	} else {
		say("closed", content(own))
	}
	if foreign, _, err := unix.NameToHandleAt(mount, "foreign", 0); err != nil {
		say("foreign", err)
	} else {
		say("foreign", content(foreign))
	}
	names(mount, say)
	folders(mount, say)
	powers(say)
}

// names does what a server does with what only has a name.
func names(mount int, say func(string, any)) {
	for _, name := range []string{"link", "pipe"} {
		h, _, err := unix.NameToHandleAt(mount, name, 0)
		if err != nil {
			say(name, err)
			continue
		}
		if fd, err := unix.OpenByHandleAt(mount, h, unix.O_RDONLY|unix.O_NONBLOCK); err != unix.ELOOP {
			say(name+" was opened", fd)
		}
		fd, err := unix.OpenByHandleAt(mount, h, unix.O_PATH|unix.O_NOFOLLOW)
		if err != nil {
			say(name, err)
			continue
		}
		var st unix.Stat_t
		err = unix.Fstatat(fd, "", &st, unix.AT_EMPTY_PATH)
		say(name+" mode", fmt.Sprintf("%o %v", st.Mode&unix.S_IFMT, err))
		text := make([]byte, 100)
		n, err := unix.Readlinkat(fd, "", text)
		say(name+" names", fmt.Sprintf("%q %v", text[:max(n, 0)], err))
		unix.Close(fd)
	}
	fd, err := unix.Openat(mount, "file", unix.O_RDONLY, 0)
	if err != nil {
		say("open", err)
		return
	}
	say("second name", unix.Linkat(fd, "", mount, "second", unix.AT_EMPTY_PATH))
	say("name elsewhere", unix.Linkat(fd, "", mount, "../third", unix.AT_EMPTY_PATH))
	var st unix.Stat_t
	say("stat", fmt.Sprint(unix.Fstatat(fd, "", &st, unix.AT_EMPTY_PATH), " ", st.Nlink))
}

// kinds makes sockets of many kinds.
func kinds(say func(string, any)) {
	for name, kind := range map[string][3]int{
		"ip": {unix.AF_INET, unix.SOCK_STREAM, 0}, "ip6": {unix.AF_INET6, unix.SOCK_STREAM, 0}, "route": {unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE},
		"unix": {unix.AF_UNIX, unix.SOCK_STREAM, 0}, "vsock": {unix.AF_VSOCK, unix.SOCK_STREAM, 0}, "alg": {unix.AF_ALG, unix.SOCK_SEQPACKET, 0},
		"audit": {unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT}, "events": {unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_KOBJECT_UEVENT},
	} {
		_, err := unix.Socket(kind[0], kind[1], kind[2])
		say("socket "+name, err)
	}
}

// folders opens directories to look up names in them, and lists them.
func folders(mount int, say func(string, any)) {
	for _, name := range []string{"theirs", "passed", "listed", "mine"} {
		h, _, err := unix.NameToHandleAt(mount, name, 0)
		if err != nil {
			say(name, err)
			continue
		}
		fd, err := unix.OpenByHandleAt(mount, h, unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			say(name, err)
			continue
		}
		n, err := unix.Getdents(fd, make([]byte, 4096))
		say(name, fmt.Sprint(n > 0, " ", err))
		unix.Close(fd)
	}
}

// powers tries what only an attacker does.
func powers(say func(string, any)) {
	say("program", unix.Exec("/proc/self/exe", []string{"other"}, nil))
	for name, call := range map[string]uintptr{"clone": unix.SYS_CLONE, "fork": unix.SYS_FORK, "vfork": unix.SYS_VFORK, "clone3": unix.SYS_CLONE3} {
		child, _, errno := unix.RawSyscall(call, uintptr(unix.SIGCHLD), 0, 0)
		if errno == 0 && child == 0 {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
		say(name, errno)
	}
	kinds(say)
	say("namespace", unix.Unshare(unix.CLONE_NEWUSER))
	say("mount", unix.Mount("x", "/", "tmpfs", 0, ""))
	say("trace", unix.PtraceAttach(os.Getppid()))
	say("key", os.WriteFile(fmt.Sprintf("/proc/%d/mem", os.Getppid()), nil, 0))
	_, err := unix.PidfdGetfd(0, 3, 0)
	say("take a descriptor", err)
	status, err := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "CapEff") || strings.HasPrefix(line, "CapPrm") || strings.HasPrefix(line, "Seccomp:") || strings.HasPrefix(line, "NoNewPrivs") {
			fmt.Print(line)
		}
	}
	if err != nil {
		say("status", err)
	}
}

// guarded runs the attacker under a guard, as a user without rights, and returns what it says.
func guarded(t *testing.T, unsigned bool, dir, what string, others ...string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(filepath.Dir(dir), attacker) // where the user may run it
	shim := program + "-guard"                            // another file, as pagurus-shim is
	text, err := os.ReadFile(self)
	if err := errors.Join(err, os.WriteFile(program, text, 0o755), os.WriteFile(shim, text, 0o755)); err != nil {
		t.Fatal(err)
	}
	key, ours, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer key.Close()
	if _, err := ours.Write(KeyFor([]byte("secret"), "j1")); err != nil || ours.Close() != nil {
		t.Fatal(err)
	}
	line := Command(shim, unsigned, []string{dir}, append([]string{program, dir, what}, others...))
	var out bytes.Buffer
	cmd := &exec.Cmd{Path: shim, Args: line, Stdout: &out, Stderr: &out, ExtraFiles: []*os.File{key}, Env: os.Environ(),
		SysProcAttr: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}, AmbientCaps: []uintptr{unix.CAP_DAC_READ_SEARCH, unix.CAP_DAC_OVERRIDE}}}
	_ = cmd.Run() // a guard's end is that of its server
	return out.String()
}

// world makes a directory of the user's, and one of others, and returns the first and handles in the second.
func world(t *testing.T) (dir string, others []string) {
	t.Helper()
	testkit.Root(t)
	top, err := os.MkdirTemp("/var/tmp", "pagurus-handle-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	dir = filepath.Join(top, "job")
	closed := filepath.Join(top, "closed")
	for path, mode := range map[string]os.FileMode{top: 0o755, dir: 0o755, closed: 0o700} {
		if err := os.MkdirAll(path, mode); err != nil || os.Chmod(path, mode) != nil {
			t.Fatal(err)
		}
	}
	for path, f := range map[string]struct {
		owner int
		mode  os.FileMode
	}{
		filepath.Join(dir, "file"): {user, 0o600}, filepath.Join(dir, "closed"): {user, 0}, filepath.Join(dir, "foreign"): {0, 0o600}, filepath.Join(closed, "open"): {0, 0o644},
	} {
		if err := os.WriteFile(path, []byte("content of "+filepath.Base(path)), f.mode); err != nil || os.Chown(path, f.owner, f.owner) != nil || os.Chmod(path, f.mode) != nil {
			t.Fatal(err)
		}
	}
	for name, f := range map[string]struct {
		owner int
		mode  os.FileMode
	}{"theirs": {0, 0o700}, "passed": {0, 0o711}, "listed": {0, 0o755}, "mine": {user, 0o300}} {
		path := filepath.Join(dir, name)
		if err := os.Mkdir(path, f.mode); err != nil || os.Chown(path, f.owner, f.owner) != nil || os.Chmod(path, f.mode) != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc/shadow", filepath.Join(dir, "link")); err != nil || unix.Mkfifo(filepath.Join(dir, "pipe"), 0o666) != nil || os.Chown(dir, user, user) != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(closed, "open"), "/etc/passwd"} {
		h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, path, 0)
		if err != nil {
			t.Fatal(err)
		}
		others = append(others, hex.EncodeToString(h.Bytes()))
	}
	return dir, others
}

// TestAttacks: a server that was taken over opens what is in its directory, with its user's rights, and nothing else.
func TestAttacks(t *testing.T) {
	dir, others := world(t)
	said := guarded(t, false, dir, "everything", others...)
	const family = "address family not supported by protocol"
	for _, want := range []string{
		"\nfile: \"content of file\" <nil>\n", "\nunsigned: stale file handle\n", "\nother kind: stale file handle\n",
		"\nclosed: \"content of closed\" <nil>\n", // the user's own, as when a program has it open
		"\nforeign: permission denied\n",
		"\nlink mode: 120000 <nil>\n", "\nlink names: \"/etc/shadow\" <nil>\n", "\npipe mode: 10000 <nil>\n",
		"\nsecond name: <nil>\n", "\nname elsewhere: permission denied\n", "\nstat: <nil> 2\n",
		"\ntheirs: permission denied\n", "\npassed: permission denied\n", "\nlisted: true <nil>\n", "\nmine: true <nil>\n",
		"\nprogram: operation not permitted\n", "\nclone: operation not permitted\n", "\nfork: operation not permitted\n", "\nvfork: operation not permitted\n", "\nclone3: function not implemented\n",
		"\nsocket ip: <nil>\n", "\nsocket ip6: <nil>\n", "\nsocket route: <nil>\n",
		"\nsocket unix: " + family + "\n", "\nsocket vsock: " + family + "\n", "\nsocket alg: " + family + "\n", "\nsocket audit: " + family + "\n", "\nsocket events: " + family + "\n",
		"\nnamespace: operation not permitted\n", "\nmount: operation not permitted\n", "\ntrace: operation not permitted\n", "\ntake a descriptor: operation not permitted\n",
		"\nCapEff:\t0000000000000000\n", "\nCapPrm:\t0000000000000000\n", "\nSeccomp:\t2\n", "\nNoNewPrivs:\t1\n",
	} {
		if !strings.Contains("\n"+said, want) {
			t.Errorf("it does not say %q", want)
		}
	}
	for _, bad := range []string{"flipped:", "was opened", "content of open", "root:", "key: <nil>"} {
		if strings.Contains(said, bad) {
			t.Errorf("it says %q", bad)
		}
	}
	if n := strings.Count(said, "other: stale file handle\n") + strings.Count(said, "other signed as this: stale file handle\n"); n != 2*len(others) {
		t.Errorf("%d of %d attempts on files of others were refused", n, 2*len(others))
	}
	if t.Failed() {
		t.Log(said)
	}
}

// Handles of before there were signatures open for a server whose guests have such, and only for that one. It
// shows that the attack above is one.
func TestUnsigned(t *testing.T) {
	dir, others := world(t)
	said := guarded(t, true, dir, "forge", others...)
	if !strings.Contains(said, "unsigned: \"content of file\" <nil>\n") || !strings.Contains(said, "other: \"content of open\" <nil>\n") {
		t.Errorf("it says %s", said)
	}
}

// A signature is of one job, one place, one kind and one handle.
func TestSignatures(t *testing.T) {
	key := KeyFor([]byte("secret"), "j1")
	h := unix.NewFileHandle(1, []byte("handle"))
	signed := sign(key, "a", h)
	if got, err := unsign(key, "a", 1, signed); err != nil || string(got.Bytes()) != "handle" || got.Type() != 1 {
		t.Errorf("%v, %v", got, err)
	}
	for what, c := range map[string]struct {
		key   []byte
		where string
		kind  int32
		bytes []byte
	}{
		"another job":      {KeyFor([]byte("secret"), "j2"), "a", 1, signed},
		"another host":     {KeyFor([]byte("other"), "j1"), "a", 1, signed},
		"another place":    {key, "b", 1, signed},
		"another kind":     {key, "a", 2, signed},
		"a longer handle":  {key, "a", 1, append([]byte("x"), signed...)},
		"a part":           {key, "a", 1, signed[:len(signed)-1]},
		"only a signature": {key, "a", 1, signed[len(signed)-signatureBytes:]},
		"nothing":          {key, "a", 1, nil},
	} {
		if _, err := unsign(c.key, c.where, c.kind, c.bytes); err == nil {
			t.Errorf("%s is taken", what)
		}
	}
}
