package host

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/internal/testkit"
)

// rooted makes a copy of the test binary a process whose root is an overlay.
const rooted = "PAGURUS_PROC_TEST_ROOTED"

func TestMain(m *testing.M) {
	top := os.Getenv(rooted)
	if top == "" {
		os.Exit(m.Run())
	}
	dir := filepath.Join(top, "with a space")
	must := func(err error) {
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	must(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	must(unix.Mount("test", top, "tmpfs", 0, ""))
	for _, name := range []string{"low", "up", "work", "root"} {
		must(os.MkdirAll(filepath.Join(dir, name), 0o755))
	}
	must(os.Chdir(dir))
	must(unix.Mount("test", "root", "overlay", 0, fmt.Sprintf("lowerdir=%s/low,upperdir=%[1]s/up,workdir=%[1]s/work", dir)))
	must(os.Chdir("root"))
	must(unix.PivotRoot(".", "."))
	must(unix.Unmount(".", unix.MNT_DETACH))
	time.Sleep(10 * time.Minute)
}

// sleeper starts a process.
func sleeper(t *testing.T, attributes *syscall.SysProcAttr, command ...string) int {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.SysProcAttr = attributes
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd.Process.Pid
}

func TestProcess(t *testing.T) {
	p, err := Find(sleeper(t, nil, "sleep", "600"))
	if err != nil || p.Ticks == 0 {
		t.Fatalf("%+v: %v", p, err)
	}
	handle, err := p.Watch()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- Await(handle) }()
	handle.Close()
	if err := <-done; err == nil {
		t.Error("a process that runs is said to have ended")
	}
	other := p
	other.Ticks++
	for _, q := range []Process{other, {}, {PID: 1}, {PID: 1 << 22, Ticks: 1}} {
		if _, err := q.Watch(); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%+v: %v", q, err)
		}
		if err := q.End(); err != nil {
			t.Errorf("%+v: %v", q, err)
		}
	}
	for range 2 {
		if err := p.End(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFamily: descendants are found, and their use is added up.
func TestFamily(t *testing.T) {
	first := sleeper(t, nil, "sh", "-c", "sleep 600 & sh -c 'sleep 600 & while :; do :; done' & wait")
	var all []int
	testkit.Until(t, time.Minute, "all four run", func() bool { all = Family(first); return len(all) == 4 })
	t.Cleanup(func() {
		for _, pid := range all {
			unix.Kill(pid, unix.SIGKILL)
		}
	})
	testkit.Until(t, time.Minute, "they use the CPU", func() bool { return Use(all).CPU > 0 })
	if u := Use(all); u.ResidentBytes <= 0 {
		t.Errorf("%+v", u)
	}
	if got := Family(1 << 22); len(got) != 1 {
		t.Errorf("no process has the family %v", got)
	}
}

// TestWhere: processes are found by their network and by their root.
func TestWhere(t *testing.T) {
	testkit.Root(t)
	pid := sleeper(t, &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}, "sleep", "600")
	if got := Beside(pid); !slices.Equal(got, []int{pid}) {
		t.Errorf("%v are in the network of %d", got, pid)
	}
	if got := Beside(os.Getpid()); len(got) != 1 {
		t.Errorf("the host's network is a container's: %v", got)
	}
	top := t.TempDir()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), rooted+"="+top)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	dir := filepath.Join(top, "with a space")
	testkit.Until(t, 20*time.Second, "it is found by its root", func() bool { return slices.Equal(Rooted(dir+"/up", nil), []int{cmd.Process.Pid}) })
	if got := Rooted(dir+"/up", map[int]bool{cmd.Process.Pid: true}); len(got) != 0 {
		t.Errorf("one that does not count is found: %v", got)
	}
	if got := Rooted(dir+"/u", nil); len(got) != 0 {
		t.Errorf("another folder is the root of %v", got)
	}
}

// TestMapped: only a file that is mapped shared is found.
func TestMapped(t *testing.T) {
	number := func(flags int) uint64 {
		f, err := os.Create(filepath.Join(t.TempDir(), "f"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		f.Truncate(4096)
		m, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, flags)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Munmap(m) })
		var st unix.Stat_t
		unix.Fstat(int(f.Fd()), &st)
		return st.Ino
	}
	shared, private := number(unix.MAP_SHARED), number(unix.MAP_PRIVATE)
	if m := Mapped([]int{os.Getpid(), 1 << 22}); !m[shared] || m[private] {
		t.Errorf("%v: of %d and %d only the first is shared", m, shared, private)
	}
}

// TestUnsettled: reports a connection that is not accepted yet, and a closed one whose
// peer has not read all data.
func TestUnsettled(t *testing.T) {
	testkit.Root(t)
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	says := func(want string) {
		t.Helper()
		testkit.Until(t, 10*time.Second, "it says "+want, func() bool {
			odd, err := Unsettled(unix.Gettid())
			if err != nil {
				t.Fatal(err)
			}
			return want == "nothing" && odd == "" || strings.Contains(odd, want)
		})
	}
	listener := socket(t)
	if err := errors.Join(unix.Bind(listener, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(listener, 1)); err != nil {
		t.Fatal(err)
	}
	says("nothing")
	at, err := unix.Getsockname(listener)
	if err != nil {
		t.Fatal(err)
	}
	dialed := socket(t)
	if err := unix.Connect(dialed, at); err != nil {
		t.Fatal(err)
	}
	says("waits to be taken")
	taken, _, err := unix.Accept(listener)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(taken)
	says("nothing")
	if err := unix.SetNonblock(dialed, true); err != nil {
		t.Fatal(err)
	}
	written, buffer := 0, make([]byte, 1<<16)
	for {
		n, err := unix.Write(dialed, buffer)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		written += n
	}
	unix.Close(dialed)
	says("was closed")
	for written > 0 {
		n, err := unix.Read(taken, buffer)
		if err != nil || n == 0 {
			t.Fatalf("%d bytes are missing: %v", written, err)
		}
		written -= n
	}
	says("nothing")
	if _, err := Unsettled(1 << 22); err == nil {
		t.Error("no connections were read")
	}
}

// socket makes a TCP socket. Go's own sockets could be made on any thread.
func socket(t *testing.T) int {
	t.Helper()
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(s) })
	return s
}

func TestWith(t *testing.T) {
	const setting = "PAGURUS_PROC_TEST_WITH=this folder"
	c := exec.Command("sleep", "60")
	c.Env = []string{"A=1", setting}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
	if all := With(setting, nil); !slices.Equal(all, []int{c.Process.Pid}) {
		t.Errorf("%v, and it is %d", all, c.Process.Pid)
	}
	if all := With(setting, map[int]bool{c.Process.Pid: true}); len(all) > 0 {
		t.Errorf("one that does not count is found: %v", all)
	}
	if all := With(setting+"s", nil); len(all) > 0 {
		t.Errorf("%v have what no process was given", all)
	}
}

// EndSession ends the rest of a session, but not its leader. Session 0 is left alone.
func TestEndSession(t *testing.T) {
	leader := sleeper(t, &syscall.SysProcAttr{Setsid: true}, "sh", "-c", "sleep 600 & (sleep 600 &); sleep 600 & wait")
	of := func() (all []int) {
		dirs, _ := filepath.Glob("/proc/[0-9]*")
		for _, dir := range dirs {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			if st, err := ReadStat(pid); err == nil && st.session == leader && st.state != 'Z' {
				all = append(all, pid)
			}
		}
		return all
	}
	testkit.Until(t, 10*time.Second, "its processes are there", func() bool { return len(of()) == 4 })
	other := sleeper(t, nil, "sleep", "600")
	if err := errors.Join(EndSession(0, other), EndSession(leader, 0)); err != nil {
		t.Error(err)
	}
	if left := of(); len(left) > 1 || len(left) == 1 && left[0] != leader {
		t.Errorf("processes %v are left of session %d", left, leader)
	}
	if st, err := ReadStat(other); err != nil || st.state == 'Z' {
		t.Errorf("another was ended: %+v, %v", st, err)
	}
}
