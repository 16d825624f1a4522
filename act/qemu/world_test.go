package qemu_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	acthost "pagurus/act/host"
	"pagurus/act/host/jail"
	"pagurus/act/host/passage"
	"pagurus/act/qemu"
	"pagurus/fleet"
	"pagurus/internal/testkit"
	"pagurus/serve/agent/drivertest"
)

// inside marks the process in the test's network namespace.
const inside = "PAGURUS_QEMU_TEST_INSIDE"

// TestMain runs the tests again in a network namespace of their own, where they may make
// links.
func TestMain(m *testing.M) {
	for _, shims := range []map[string]func([]string) error{jail.Shims, passage.Shims} {
		if become := shims[os.Args[0]]; become != nil {
			if err := become(os.Args[1:]); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		}
	}
	if text := os.Getenv(attackVariable); text != "" {
		os.Exit(attackFrom(text))
	}
	flag.Parse()
	if text := os.Getenv(stepVariable); text != "" {
		os.Exit(takeStep(text))
	}
	if testing.Short() || os.Getenv(inside) != "" || os.Geteuid() != 0 {
		os.Exit(m.Run())
	}
	// Before entering the namespace, which has no network to fetch images. If it fails,
	// the tests that need the image say so.
	_, _ = testkit.EnsureImage("openmpi")
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	pages, noPages := os.ReadFile(setAsideFile)
	err := cmd.Run()
	if noPages == nil {
		_ = os.WriteFile(setAsideFile, pages, 0)
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		os.Exit(exit.ExitCode())
	} else if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// contract skips the test in short runs, and requires a real QEMU otherwise.
func contract(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("contract ring: make test")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

const testUser = "pagurus"

// host is one of a test's two hosts: a run folder and the names of taps.
type host struct {
	Run string
	Tap string
}

// world is two hosts and an image.
type world struct {
	hosts     [2]host
	image     string
	agent     string
	snapshots int    // as in qemu.Config
	folder    string // of a checkpoint
}

// newWorld makes two hosts, which are removed when the test ends.
func newWorld(t *testing.T) *world {
	t.Helper()
	contract(t)
	if _, err := user.Lookup(testUser); err != nil {
		run(t, "useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", testUser)
	}
	grantUserfault(t)
	w := &world{image: testImage(t), agent: witness(t), snapshots: 2}
	up(t)
	for i := range w.hosts {
		dir, err := os.MkdirTemp("/tmp", "pagurus-qemu-")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			endAll(t, dir)
			os.RemoveAll(dir)
		})
		w.hosts[i] = host{Run: dir, Tap: fmt.Sprintf("pgt%d", i)}
		addTap(t, w.hosts[i].Tap)
	}
	return w
}

// addTap makes a tap for the test.
func addTap(t *testing.T, name string) {
	t.Helper()
	attributes := netlink.NewLinkAttrs()
	attributes.Name = name
	tap := &netlink.Tuntap{LinkAttrs: attributes, Mode: netlink.TUNTAP_MODE_TAP, Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR}
	if err := netlink.LinkAdd(tap); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netlink.LinkDel(tap); err != nil {
			t.Error(err)
		}
	})
}

// several makes the host have a tap for each of n guests, by the guests' indexes.
func (w *world) several(t *testing.T, c *qemu.Config, n int) {
	t.Helper()
	name := func(i int) string { return fmt.Sprintf("pgtn%d", i) }
	for i := range n {
		addTap(t, name(i))
	}
	c.Tap = func(_ fleet.Subnet, index int) string { return name(index) }
}

// grantUserfault does what an agent does for post-copy.
func grantUserfault(t *testing.T) {
	before := qemu.UserfaultAccess()
	account, err := acthost.FindAccount(testUser)
	if err == nil {
		err = qemu.GrantUserfault(account.GID)
	}
	if err != nil {
		t.Fatal(err)
	}
	if qemu.UserfaultAccess() != before {
		t.Cleanup(func() { qemu.RevokeUserfault(account.GID) })
	}
}

// endAll kills the remaining processes of a host's folder: a test that killed an agent
// between starting a QEMU and recording it may end before the QEMU is found.
func endAll(t *testing.T, dir string) {
	found, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range found {
		at, err := os.Readlink(link)
		if err != nil || !strings.HasPrefix(at, dir+"/") {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link))); err == nil {
			t.Logf("process %d still ran in %s", pid, at)
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

func up(t *testing.T) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) config(log io.Writer, host int) qemu.Config {
	accelerator, cpu := testkit.Virtual()
	return qemu.Config{
		Accelerator: accelerator, CPU: cpu,
		Run: w.hosts[host].Run, User: testUser, UIDs: uidsOf(host), Shim: "/proc/self/exe", GuestAgent: w.agent, Address: netip.MustParseAddr("127.0.0.1"),
		ImageFolder: func(context.Context, fleet.Digest) (string, error) { return w.image, nil },
		Log:         slog.New(slog.NewTextHandler(log, nil)),
		Tap:         func(fleet.Subnet, int) string { return w.hosts[host].Tap },
		Converged:   converged,
		Snapshots:   w.snapshots,
	}
}

// uidsOf are the user IDs of a test host's guests.
func uidsOf(host int) acthost.UIDs {
	first := acthost.UsualUIDs.First + uint32(host)*100
	return acthost.UIDs{First: first, Last: first + 99}
}

// converged replaces the policy: a copy has converged when the rest takes no longer than
// the maximum downtime, and is given up after its rounds.
func converged(l fleet.Limits, rounds []fleet.Progress) (bool, error) {
	downtime, most := cmp.Or(l.Downtime, 300*time.Millisecond), cmp.Or(l.Rounds, 60)
	p := rounds[len(rounds)-1]
	switch l.Mode {
	case fleet.PostCopy:
		return p.Rounds > 1, nil
	case fleet.StopAndCopy:
		return true, nil
	}
	if speed := float64(p.SentBytes) / p.Elapsed.Seconds(); float64(p.RemainingBytes) <= speed*downtime.Seconds() && p.Rounds > 1 {
		return true, nil
	}
	if p.Rounds > most {
		return false, fmt.Errorf("after %d rounds %d bytes are still left", most, p.RemainingBytes)
	}
	return false, nil
}

func (w *world) open(t *testing.T, host int) *qemu.Driver {
	t.Helper()
	d, err := qemu.Open(t.Context(), w.config(t.Output(), host))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// memory of a guest in these tests: the witness dirties 16 MiB of it.
const memory = 192 << 20

func task(id fleet.GuestID) fleet.Task {
	return fleet.Task{
		Guest: fleet.Guest{ID: id, Kind: fleet.VM, Gen: 3, CPU: testkit.VirtualCPU(), Need: fleet.Resources{CPUs: 1, MemoryBytes: memory}},
		Job:   fleet.Job{Subnet: 1},
	}
}

// process is the guest's QEMU, from the driver's record.
func (w *world) process(t *testing.T, host int, id fleet.GuestID) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(w.hosts[host].Run, "guests", string(id), "guest.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r struct{ Process struct{ PID int } }
	if err := json.Unmarshal(text, &r); err != nil || r.Process.PID <= 1 {
		t.Fatalf("guest.json names process %d: %v", r.Process.PID, err)
	}
	return r.Process.PID
}

func (w *world) kill(t *testing.T, host int, id fleet.GuestID) {
	t.Helper()
	if err := unix.Kill(w.process(t, host, id), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// left returns all traces of a guest: its folder, and processes in it.
func (w *world) left(_ *testing.T, host int, id fleet.GuestID) []string {
	var out []string
	dir := filepath.Join(w.hosts[host].Run, "guests", string(id))
	if _, err := os.Lstat(dir); err == nil {
		out = append(out, dir)
	}
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range links {
		if at, err := os.Readlink(link); err == nil && strings.HasPrefix(at, dir) {
			out = append(out, link+" is "+at)
		}
	}
	return out
}

func (w *world) contract() drivertest.World {
	return drivertest.World{
		Open: func(t *testing.T, host int) drivertest.Driver { return w.open(t, host) },
		Task: task, Kill: w.kill, Left: w.left,
		PostCopy: func(t *testing.T, host int) bool {
			d := w.open(t, host)
			defer d.Close()
			return d.Abilities().PostCopy
		},
	}
}

func run(t *testing.T, command ...string) string {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(command, " "), err, complaint.String())
	}
	return string(out)
}

// witness builds the program that replaces the guest agent, once.
func witness(t *testing.T) string {
	t.Helper()
	path, err := buildWitness()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

const cache = "/var/cache/pagurus-test"

var buildWitness = sync.OnceValues(func() (string, error) {
	path := filepath.Join(cache, "witness")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", path, "pagurus/serve/agent/drivertest/witness")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the witness: %w: %s", err, out)
	}
	return path, nil
})

// testImage returns a folder with an image's files: a real kernel and modules, and a disk
// with a known beginning. It stays for later tests, with the snapshots of its guests.
func testImage(t *testing.T) string {
	t.Helper()
	real := testkit.Image(t, "openmpi")
	dir := filepath.Join(cache, "driver-"+filepath.Base(real))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"vmlinuz", "modules.cpio"} {
		if err := os.Symlink(filepath.Join(real, name), filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
	}
	disk := filepath.Join(dir, "root.img")
	if info, err := os.Stat(disk); err != nil || info.Size() != diskBytes {
		content := make([]byte, diskBytes)
		_, _ = rand.NewChaCha8([32]byte{}).Read(content)
		write(t, disk, append([]byte(diskHead), content[len(diskHead):]...))
	}
	return dir
}

// diskBytes is the size of the guests' disk, without zeros.
const diskBytes = 64 << 20

// diskHead is what the guests' disk begins with.
const diskHead = "PAGURUS!"

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}
