package testkit

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	namespacePrefix = "pgtest"
	namespaceFolder = "/run/netns"
	// UplinkName is the host's link to the other hosts, in its namespace.
	UplinkName = "eth0"
)

// Host is a network namespace that stands for a machine.
type Host struct {
	Namespace string     // as in: ip -n NAME
	Addr      netip.Addr // its address on the hosts' network
	t         testing.TB
}

// Hosts makes n hosts joined by one Ethernet, with the addresses 198.18.0.1, 198.18.0.2 and
// so on. Concurrent tests may use the same addresses. The test's end removes the hosts with
// all their processes.
func Hosts(t testing.TB, n int) []*Host {
	t.Helper()
	Root(t, "ip", "nsenter")
	id := namespacePrefix + token(t)
	middle := id + "s" // the Ethernet has a namespace of its own, so the machine's is never touched
	makeNamespace(t, middle)
	run(t, "ip", "-n", middle, "link", "add", "br0", "type", "bridge")
	run(t, "ip", "-n", middle, "link", "set", "br0", "up")
	var hosts []*Host
	for i := 1; i <= n; i++ {
		h := &Host{
			Namespace: fmt.Sprintf("%sh%d", id, i),
			Addr:      netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}),
			t:         t,
		}
		makeNamespace(t, h.Namespace)
		port := fmt.Sprintf("h%d", i)
		run(t, "ip", "-n", middle, "link", "add", port, "type", "veth", "peer", "name", UplinkName, "netns", h.Namespace)
		run(t, "ip", "-n", middle, "link", "set", port, "master", "br0", "up")
		run(t, "ip", "-n", h.Namespace, "addr", "add", h.Addr.String()+"/16", "dev", UplinkName)
		run(t, "ip", "-n", h.Namespace, "link", "set", UplinkName, "up")
		run(t, "ip", "-n", h.Namespace, "link", "set", "lo", "up")
		hosts = append(hosts, h)
	}
	return hosts
}

// Namespace makes an unconnected network namespace, like a new container's. The test's end
// removes it with all its processes.
func Namespace(t testing.TB) *Host {
	t.Helper()
	Root(t, "ip", "nsenter")
	h := &Host{Namespace: namespacePrefix + token(t) + "c", t: t}
	makeNamespace(t, h.Namespace)
	return h
}

// File opens the namespace. The test's end closes it.
func (h *Host) File() *os.File {
	h.t.Helper()
	f, err := os.Open(filepath.Join(namespaceFolder, h.Namespace))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { f.Close() })
	return f
}

// Command is exec.CommandContext on the host. Only the network is the host's; files and
// processes are the machine's. The test's end kills it.
func (h *Host) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, "nsenter",
		append([]string{"--net=" + filepath.Join(namespaceFolder, h.Namespace), "--", name}, args...)...)
	h.t.Cleanup(func() {
		// The host's own end searches for processes inside, and would miss one that is still
		// entering.
		if c.Process != nil {
			c.Process.Kill()
		}
	})
	return c
}

// Six is the host's address after OnlyIPv6: 2001:db8:: and its number (RFC 3849).
func (h *Host) Six() netip.Addr {
	at := netip.MustParseAddr("2001:db8::").As16()
	at[15] = h.Addr.As4()[3]
	return netip.AddrFrom16(at)
}

// OnlyIPv6 takes the host its address of IPv4, and gives it Six.
func (h *Host) OnlyIPv6() {
	h.t.Helper()
	h.Run("ip", "-4", "addr", "flush", "dev", UplinkName)
	h.Run("ip", "addr", "add", h.Six().String()+"/64", "dev", UplinkName, "nodad")
}

// Run runs a program on the host to its end and returns its output without stderr, such as
// ip's messages about vanishing namespaces. A program that fails, or takes longer than 30
// seconds, fails the test.
func (h *Host) Run(name string, args ...string) string {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), programLimit)
	defer cancel()
	var complaints bytes.Buffer
	c := h.Command(ctx, name, args...)
	c.Stderr = &complaints
	out, err := c.Output()
	if err != nil {
		h.t.Fatalf("on %s: %s %s: %v\n%s%s", h.Namespace, name, strings.Join(args, " "), err, out, complaints.Bytes())
	}
	return string(out)
}

// Try is Run that returns the error, and stderr with the output.
func (h *Host) Try(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), programLimit)
	defer cancel()
	out, err := h.Command(ctx, name, args...).CombinedOutput()
	return string(out), err
}

// Do runs f on a thread of its own in the host's network, and returns when f has. Sockets
// and programs that f opens stay in the host's network; goroutines that it starts do not.
func (h *Host) Do(f func() error) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with the goroutine, so that no other code runs in
		// the wrong namespace.
		runtime.LockOSThread()
		ns, err := os.Open(filepath.Join(namespaceFolder, h.Namespace))
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
			ns.Close()
		}
		if err != nil {
			done <- fmt.Errorf("entering namespace %s: %w", h.Namespace, err)
			return
		}
		done <- f()
	}()
	return <-done
}

// Must is Do that fails the test on an error.
func (h *Host) Must(f func() error) {
	h.t.Helper()
	if err := h.Do(f); err != nil {
		h.t.Fatal(err)
	}
}

// programLimit is the time limit of a test's auxiliary programs.
const programLimit = 30 * time.Second

// Run runs a program to its end; a failure fails the test.
func Run(t testing.TB, name string, args ...string) {
	t.Helper()
	run(t, name, args...)
}

func run(t testing.TB, name string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), programLimit)
	defer cancel()
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

func makeNamespace(t testing.TB, name string) {
	t.Helper()
	run(t, "ip", "netns", "add", name)
	t.Cleanup(func() { removeNamespace(t, name) })
}

// removeNamespace first kills the processes in the namespace: it would live on, nameless,
// while one is in it.
func removeNamespace(t testing.TB, name string) {
	path := filepath.Join(namespaceFolder, name)
	end := time.Now().Add(programLimit)
	for {
		pids := processesIn(path)
		for _, pid := range pids {
			unix.Kill(pid, unix.SIGKILL)
		}
		if len(pids) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Errorf("processes %v in namespace %s do not end", pids, name)
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if out, err := exec.Command("ip", "netns", "del", name).CombinedOutput(); err != nil {
		t.Errorf("removing namespace %s: %v: %s", name, err, bytes.TrimSpace(out))
	}
}

// processesIn lists the processes in a namespace given by its file, except this one.
func processesIn(path string) []int {
	var want unix.Stat_t
	if unix.Stat(path, &want) != nil {
		return nil
	}
	var found []int
	for _, pid := range processes() {
		var have unix.Stat_t
		if pid != os.Getpid() && unix.Stat(fmt.Sprintf("/proc/%d/ns/net", pid), &have) == nil &&
			have.Ino == want.Ino && have.Dev == want.Dev {
			found = append(found, pid)
		}
	}
	return found
}

func processes() []int {
	entries, _ := os.ReadDir("/proc")
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
