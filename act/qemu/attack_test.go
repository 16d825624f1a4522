package qemu_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/cgroup"
	"pagurus/act/qemu"
	"pagurus/fleet"
	"pagurus/internal/thread"
	"pagurus/serve/agent/drivertest"
)

// attackVariable makes a copy of the test binary attack from inside a guest's jail.
const attackVariable = "PAGURUS_QEMU_TEST_ATTACK"

// attack is what an attacker knows. It is in the namespaces of a guest's QEMU and becomes its user, as one
// who has broken out of the guest.
type attack struct {
	UID      int
	Own      string   // the guest's folder
	Other    string   // another guest's on this host
	Secrets  []string // files of the host
	ReadOnly []string // files that it may see and not change
	Address  string   // of a TCP port that listens on the host
	Abstract string   // a socket of the host that has no file
	PIDs     []int    // of processes on the host, as the host counts
	Fill     bool     // only use up the memory
}

// The attacker's namespaces come as these descriptors. It joins those of processes by being born there.
var attacked = []struct {
	name string
	flag int
}{{"net", unix.CLONE_NEWNET}, {"ipc", unix.CLONE_NEWIPC}, {"uts", unix.CLONE_NEWUTS}, {"mnt", unix.CLONE_NEWNS}}

// attempt is one thing that an attacker tried. Empty: it worked.
type attempt struct{ What, Failed string }

// attackFrom is the attacker's process. It begins when it is told to.
func attackFrom(text string) int {
	runtime.LockOSThread()
	var a attack
	err := json.Unmarshal([]byte(text), &a)
	if err == nil {
		_, err = bufio.NewReader(os.Stdin).ReadString('\n')
	}
	if err == nil {
		err = unix.Unshare(unix.CLONE_FS)
	}
	for i, n := range attacked {
		if err == nil {
			err = unix.Setns(3+i, n.flag)
		}
	}
	for i := range attacked {
		unix.Close(3 + i)
	}
	if err == nil {
		err = errors.Join(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), syscall.Setgroups(nil), syscall.Setresgid(a.UID, a.UID, a.UID), syscall.Setresuid(a.UID, a.UID, a.UID))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if a.Fill {
		fill()
	}
	out := json.NewEncoder(os.Stdout)
	for _, try := range a.attempts() {
		failed := ""
		if err := try.do(); err != nil {
			failed = err.Error()
		}
		out.Encode(attempt{try.what, failed})
	}
	return 0
}

// fill uses memory until the kernel ends it, or 8 GiB are used.
func fill() {
	for range 8 << 10 {
		block, err := unix.Mmap(-1, 0, mebibyte, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			os.Exit(2)
		}
		for i := 0; i < len(block); i += 4096 {
			block[i] = 1
		}
	}
	os.Exit(0)
}

const mebibyte = 1 << 20

type trying struct {
	what string
	do   func() error
}

func (a attack) attempts() (all []trying) {
	try := func(what string, do func() error) { all = append(all, trying{what, do}) }
	opens := func(path string, how int) {
		try("open "+path, func() error {
			f, err := os.OpenFile(path, how, 0)
			if err == nil {
				f.Close()
			}
			return err
		})
	}
	connects := func(network, address string) {
		try("connect to "+address, func() error {
			c, err := net.DialTimeout(network, address, time.Second)
			if err == nil {
				c.Close()
			}
			return err
		})
	}
	for _, name := range []string{"guest.json", "console.log", "qemu.log"} {
		opens(filepath.Join(a.Other, name), os.O_RDONLY)
		opens(filepath.Join("/proc/1/root", a.Other, name), os.O_RDONLY)
		opens(filepath.Join(a.Own, "..", filepath.Base(a.Other), name), os.O_RDONLY)
	}
	for _, name := range []string{"qmp.sock", "link.sock"} {
		connects("unix", filepath.Join(a.Other, name))
	}
	opens(filepath.Join(a.Own, "guest.json"), os.O_RDONLY) // the agent's, with the secrets of moves
	for _, path := range append(a.Secrets, "/etc/shadow", "/etc/passwd", "/dev/mem", "/dev/kmsg", "/dev/net/tun", "/proc/kcore", "/proc/sys/kernel/core_pattern", "/sys/fs/cgroup") {
		opens(path, os.O_RDONLY)
	}
	for _, path := range a.ReadOnly {
		opens(path, os.O_WRONLY)
	}
	connects("tcp", a.Address)
	connects("tcp", "192.0.2.1:80")
	connects("unix", a.Abstract)
	try("see a network", func() error {
		links, err := net.Interfaces()
		if err == nil && (len(links) > 1 || len(links) == 1 && links[0].Flags&net.FlagUp != 0) {
			return nil
		}
		return errors.Join(err, errors.New("there is none"))
	})
	for _, pid := range a.PIDs {
		try(fmt.Sprintf("signal process %d", pid), func() error { return unix.Kill(pid, 0) })
		try(fmt.Sprintf("trace process %d", pid), func() error { return unix.PtraceAttach(pid) })
	}
	try("see another process", func() error {
		found, err := filepath.Glob("/proc/[0-9]*")
		for _, p := range found {
			if p != "/proc/1" && p != fmt.Sprintf("/proc/%d", os.Getpid()) {
				return nil
			}
		}
		return errors.Join(err, errors.New("there is none"))
	})
	try("mount", func() error { return unix.Mount("x", a.Own, "tmpfs", 0, "") })
	try("make the root writable", func() error { return unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND, "") })
	try("write to the root", func() error { return os.Mkdir("/x", 0o700) })
	try("change the root", func() error { return unix.Chroot(a.Own) })
	try("make a device", func() error {
		return unix.Mknod(filepath.Join(a.Own, "disk"), unix.S_IFBLK|0o600, int(unix.Mkdev(8, 0)))
	})
	try("become root", func() error { return unix.Setresuid(0, 0, 0) })
	try("become another guest's user", func() error { return unix.Setresuid(a.UID+1, a.UID+1, a.UID+1) })
	try("name the host", func() error { return unix.Sethostname([]byte("mine")) })
	try("set the clock", func() error { return unix.ClockSettime(unix.CLOCK_REALTIME, &unix.Timespec{Sec: 1}) })
	try("replace the agent's record", func() error {
		return os.Rename(filepath.Join(a.Own, "console.log"), filepath.Join(a.Own, "guest.json"))
	})
	try("have a thousand processes", forks)
	return all
}

// forks makes processes that wait, and ends them.
func forks() error {
	const many = 1000
	var pids []int
	defer func() {
		for _, pid := range pids {
			unix.Kill(pid, unix.SIGKILL)
			unix.Wait4(pid, nil, 0, nil)
		}
	}()
	for range many {
		pid, _, errno := syscall.RawSyscall(unix.SYS_FORK, 0, 0, 0)
		if errno != 0 {
			return fmt.Errorf("with %d there is no other: %w", len(pids), errno)
		}
		for pid == 0 {
			syscall.RawSyscall(unix.SYS_PAUSE, 0, 0, 0)
		}
		pids = append(pids, int(pid))
	}
	return nil
}

// attacker starts the attacker in the namespaces and in the control groups of a guest's QEMU; qemu is its number.
func attacker(t *testing.T, a attack, qemu int) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env = []string{attackVariable + "=" + string(text), "GOMAXPROCS=1"}
	cmd.Stderr = t.Output()
	for _, n := range attacked {
		f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", qemu, n.name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	pids, err := os.Open(fmt.Sprintf("/proc/%d/ns/pid", qemu))
	if err != nil {
		t.Fatal(err)
	}
	defer pids.Close()
	begin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer begin.Close()
	cmd.Stdout = nil
	out, err := os.CreateTemp(t.TempDir(), "attack")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = out
	err = thread.Own(func() error {
		if err := unix.Setns(int(pids.Fd()), unix.CLONE_NEWPID); err != nil {
			return err
		}
		return cmd.Start()
	})
	if err != nil {
		t.Fatal(err)
	}
	join(t, qemu, cmd.Process.Pid)
	if _, err := begin.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// join moves a process to the control groups that another is in.
func join(t *testing.T, of, pid int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", of))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if !strings.Contains(parts[2], "pagurus-test-") {
			continue
		}
		at := filepath.Join("/sys/fs/cgroup", strings.TrimPrefix(parts[1], "name="), parts[2], "cgroup.procs")
		if err := os.WriteFile(at, []byte(fmt.Sprint(pid)), 0); err != nil {
			t.Fatal(err)
		}
	}
}

// jailed is a host with control groups and two guests.
func jailed(t *testing.T) (*world, *qemu.Driver, *cgroup.Groups) {
	w := newWorld(t)
	// A number that a process has on the host must not be another's in a jail, where few are given.
	for pid := 0; pid < 300; {
		cmd := exec.Command("true")
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		pid = cmd.Process.Pid
	}
	groups, err := cgroup.Open(fmt.Sprintf("pagurus-test-%d/host1", os.Getpid()), 0)
	if err != nil {
		t.Fatal(err)
	}
	c := w.config(t.Output(), 0)
	w.several(t, &c, 2)
	c.Cgroups = groups
	d, err := qemu.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, id := range []fleet.GuestID{"j1g0", "j2g1"} {
			if err := d.Stop(context.Background(), id); err != nil {
				t.Error(err)
			}
		}
		d.Close()
		if err := groups.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, id := range []fleet.GuestID{"j1g0", "j2g1"} {
		if err := d.Start(t.Context(), indexed(id)); err != nil {
			t.Fatal(err)
		}
		drivertest.Healthy(t, d, id)
	}
	return w, d, groups
}

// TestAttack: a process in a guest's jail, with its user, reaches nothing of the host or of another guest.
func TestAttack(t *testing.T) {
	w, d, _ := jailed(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	abstract := fmt.Sprintf("@pagurus-test-%d", os.Getpid())
	plain, err := net.Listen("unix", abstract)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	key := filepath.Join(w.hosts[0].Run, "agent.key")
	write(t, key, []byte("anybody may read it")) // it is not its mode that hides it
	guests := filepath.Join(w.hosts[0].Run, "guests")
	uid, _ := w.userOf(t, 0, "j1g0")
	pid := w.process(t, 0, "j1g0")
	victim := exec.Command("sleep", "600")
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	defer victim.Wait()
	defer victim.Process.Kill()
	a := attack{
		UID: int(uid), Own: filepath.Join(guests, "j1g0"), Other: filepath.Join(guests, "j2g1"),
		Secrets: []string{key, w.agent, w.hosts[0].Run + "/accelerator.json"}, ReadOnly: []string{filepath.Join(w.image, "root.img"), filepath.Join(w.image, "vmlinuz"), "/usr/bin/qemu-system-x86_64"},
		Address: listener.Addr().String(), Abstract: abstract, PIDs: []int{victim.Process.Pid, w.process(t, 0, "j2g1"), pid},
	}
	// On the host, as root, each of these works: the attack tries what is there.
	for _, path := range slices.Concat(a.Secrets, a.ReadOnly, []string{filepath.Join(a.Other, "guest.json"), filepath.Join(a.Other, "console.log"), filepath.Join(a.Other, "qemu.log"), filepath.Join(a.Own, "guest.json")}) {
		if _, err := os.Stat(path); err != nil {
			t.Fatal(err)
		}
	}
	cmd := attacker(t, a, pid)
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	text, err := os.Open(cmd.Stdout.(*os.File).Name())
	if err != nil {
		t.Fatal(err)
	}
	defer text.Close()
	tried := 0
	for from := json.NewDecoder(text); from.More(); tried++ {
		var one attempt
		if err := from.Decode(&one); err != nil {
			t.Fatal(err)
		}
		if one.Failed == "" {
			t.Errorf("from inside a jail one can %s", one.What)
		}
		t.Logf("%s: %s", one.What, one.Failed)
	}
	if want := len(a.attempts()); tried != want || want < 40 {
		t.Errorf("%d of %d things were tried", tried, want)
	}
	for _, id := range []fleet.GuestID{"j1g0", "j2g1"} {
		drivertest.Healthy(t, d, id)
	}
}

// TestSocketsOfOthers: a QEMU that puts another guest's socket in the place of its own, as a link of either kind, has the agent
// talk to nobody.
func TestSocketsOfOthers(t *testing.T) {
	w, d, _ := jailed(t)
	own, other := filepath.Join(w.hosts[0].Run, "guests", "j1g0", "link.sock"), filepath.Join(w.hosts[0].Run, "guests", "j2g1", "link.sock")
	if err := os.Rename(own, own+".kept"); err != nil {
		t.Fatal(err)
	}
	for says, link := range map[string]func(string, string) error{"it is no socket": os.Symlink, "listens on it": os.Link} {
		if err := link(other, own); err != nil {
			t.Fatal(err)
		}
		if c, err := d.Link(t.Context(), "j1g0"); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("it talks to another guest: %v, %v, want %q", c, err, says)
		}
		if err := os.Remove(own); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(own+".kept", own); err != nil {
		t.Fatal(err)
	}
	for _, id := range []fleet.GuestID{"j1g0", "j2g1"} {
		drivertest.Healthy(t, d, id)
	}
}

// TestMemoryIsHeldTo: who uses up the memory of a guest's group is ended; the other guest and the host are not.
func TestMemoryIsHeldTo(t *testing.T) {
	w, d, groups := jailed(t)
	uid, _ := w.userOf(t, 0, "j1g0")
	cmd := attacker(t, attack{UID: int(uid), Fill: true}, w.process(t, 0, "j1g0"))
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
		t.Errorf("it ended with %v", err)
	}
	if groups.OOMKills("j1g0") == 0 {
		t.Error("the kernel does not say that the guest's memory was used up")
	}
	if groups.OOMKills("j2g1") != 0 {
		t.Error("the other guest paid for it")
	}
	drivertest.Healthy(t, d, "j2g1")
}

// scarce gives guests too little memory.
type scarce struct{ *cgroup.Groups }

func (s scarce) Confine(id fleet.GuestID, need fleet.Resources, tasks, pid int) error {
	need.MemoryBytes = 24 << 20
	return s.Groups.Confine(id, need, tasks, pid)
}

// TestMemoryIsUsedUp: a guest whose QEMU uses more memory than it may ends, and why is said.
func TestMemoryIsUsedUp(t *testing.T) {
	w := newWorld(t)
	groups, err := cgroup.Open(fmt.Sprintf("pagurus-test-%d/host1", os.Getpid()), 0)
	if err != nil {
		t.Fatal(err)
	}
	c := w.config(t.Output(), 0)
	c.Cgroups, c.OOMKills, c.Snapshots = scarce{groups}, groups.OOMKills, 0
	d, err := qemu.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(d.Stop(context.Background(), "j1g0"), d.Close(), groups.Close()); err != nil {
			t.Error(err)
		}
	}()
	if err = d.Start(t.Context(), task("j1g0")); err == nil {
		select {
		case <-d.Ended("j1g0"):
			err = errors.New(d.LastWords("j1g0"))
		case <-time.After(time.Minute):
		}
	}
	if err == nil || !strings.Contains(err.Error(), "used more memory than") {
		t.Errorf("it ends with: %v", err)
	}
	if left := w.left(t, 0, "j1g0"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestStrangerComesFirst: whoever connects first to where a guest is received is turned away and logged, and
// the move goes on; also in post-copy, and with compressed memory.
func TestStrangerComesFirst(t *testing.T) {
	w := newWorld(t)
	tk := task("j1g0")
	hosts := w.started(t, tk)
	drivertest.Healthy(t, hosts[0], tk.Guest.ID)
	moves := 0
	for i, l := range []fleet.Limits{{}, {Mode: fleet.PostCopy}, {Mode: fleet.PostCopy, Preempt: true}, {Compress: fleet.CompressOn}} {
		if can := hosts[0].Abilities(); l.Mode == fleet.PostCopy && !can.PostCopy || l.Preempt && !can.Preempt || l.Compress == fleet.CompressOn && !can.Compress {
			t.Logf("this QEMU does not do %+v", l)
			continue
		}
		from, to := hosts[moves%2], hosts[(moves+1)%2]
		moves++
		tk.Order.Migration, tk.Limits = fleet.MigrationID(fmt.Sprintf("m%d", i)), l
		var err error
		if tk.Listen, err = to.Receive(t.Context(), tk); err != nil {
			t.Fatal(err)
		}
		address, secret, _ := strings.Cut(tk.Listen, "/")
		for _, says := range []string{"", "QEVM\x00\x00\x00\x03", strings.Repeat("x", 4096), secret} {
			c, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := c.Write([]byte(says)); err != nil {
				t.Fatal(err)
			}
		}
		p := w.move(t, tk, from, to) // it asks again where, which is the same place
		t.Logf("%+v: %d MiB sent, %s down", l, p.SentBytes>>20, p.Downtime)
		drivertest.Healthy(t, to, tk.Guest.ID)
	}
}
