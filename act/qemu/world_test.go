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

	"github.com/cavaliergopher/cpio"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pagurus/act/qemu"
	"pagurus/fleet"
	"pagurus/serve/agent/drivertest"
)

// inside says that this process is in the network namespace made for it.
const inside = "PAGURUS_QEMU_TEST_INSIDE"

// TestMain runs the tests once more in a network namespace of their own, where
// they may make links.
func TestMain(m *testing.M) {
	flag.Parse()
	if text := os.Getenv(stepVariable); text != "" {
		os.Exit(takeStep(text))
	}
	if testing.Short() || os.Getenv(inside) != "" || os.Geteuid() != 0 {
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		os.Exit(exit.ExitCode())
	} else if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// contract skips what needs a real QEMU, and everything it needs.
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

// host is one of the two hosts of a test: a run folder and the names of taps.
type host struct {
	Run string
	Tap string
}

// world is where guests are tried out: two hosts and an image.
type world struct {
	hosts [2]host
	image string
	agent string
}

// newWorld makes two hosts; nothing is left of them when the test ends.
func newWorld(t *testing.T) *world {
	t.Helper()
	contract(t)
	if _, err := user.Lookup(testUser); err != nil {
		run(t, "useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", testUser)
	}
	w := &world{image: testImage(t), agent: witness(t)}
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
		attributes := netlink.NewLinkAttrs()
		attributes.Name = w.hosts[i].Tap
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
	return w
}

// endAll kills what still runs in a host's folder: a test that killed an agent
// between starting a QEMU and noting it may end before anybody has found it.
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
	return qemu.Config{
		Run: w.hosts[host].Run, User: testUser, GuestAgent: w.agent, Address: netip.MustParseAddr("127.0.0.1"),
		ImageFolder: func(context.Context, fleet.Digest) (string, error) { return w.image, nil },
		Log:         slog.New(slog.NewTextHandler(log, nil)),
		Tap:         func(fleet.Subnet, int) string { return w.hosts[host].Tap },
		Judge:       judge,
	}
}

// judge stands where the policy is: a copy is good when what is left takes no
// longer than the downtime allowed, and given up when it has had its rounds.
func judge(l fleet.Limits, rounds []fleet.Progress) (bool, error) {
	downtime, most := cmp.Or(l.Downtime, 300*time.Millisecond), cmp.Or(l.Rounds, 60)
	p := rounds[len(rounds)-1]
	if p.BytesPerSecond > 0 && float64(p.RemainingBytes) <= p.BytesPerSecond*downtime.Seconds() {
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
		Guest: fleet.Guest{ID: id, Kind: fleet.VM, Gen: 3, Need: fleet.Resources{CPUs: 1, MemoryBytes: memory}},
		Job:   fleet.Job{Subnet: 1},
	}
}

// process is the guest's QEMU, from what the driver remembers.
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

// left is every trace of a guest: its folder, and processes that work there.
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

// witness builds the program that stands in for the guest agent, once.
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

// modules are what the witness needs of the kernel.
var modules = []string{"virtio_pci", "virtio_blk", "virtio_console", "virtio_net", "virtio_rng"}

// testImage gives a folder with the files of an image: Debian's kernel, which
// is fetched once, and a disk with a known beginning.
func testImage(t *testing.T) string {
	t.Helper()
	if err := os.MkdirAll(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	lock, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "image")
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	work, err := os.MkdirTemp(cache, "new-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(work)
	root, release := fetchKernel(t, work)
	image := filepath.Join(work, "image")
	if err := os.Mkdir(image, 0o755); err != nil {
		t.Fatal(err)
	}
	os.Chmod(work, 0o755)
	write(t, filepath.Join(image, "root.img"), append([]byte(diskHead), make([]byte, 1<<20)...))
	kernel, err := os.ReadFile(filepath.Join(root, "boot", "vmlinuz-"+release))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(image, "vmlinuz"), kernel)
	write(t, filepath.Join(image, "modules.cpio"), modulesArchive(t, root, release))
	if err := os.Rename(image, dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// diskHead is what the guests' disk begins with.
const diskHead = "PAGURUS!"

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func fetchKernel(t *testing.T, work string) (root, release string) {
	t.Helper()
	out := run(t, "apt-cache", "depends", "linux-image-cloud-amd64")
	for _, word := range strings.Fields(out) {
		if name, ok := strings.CutPrefix(word, "linux-image-"); ok && name != "cloud-amd64" {
			release = name
		}
	}
	// Only the namespace outside has a way to Debian's servers.
	cmd := exec.Command("nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", os.Getppid()), "apt-get", "download", "linux-image-"+release)
	cmd.Dir = work
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("fetch a kernel: %v: %s", err, out)
	}
	packages, _ := filepath.Glob(filepath.Join(work, "*.deb"))
	if len(packages) != 1 {
		t.Fatalf("fetched %v", packages)
	}
	root = filepath.Join(work, "root")
	run(t, "dpkg-deb", "-x", packages[0], root)
	run(t, "depmod", "-b", root, release)
	return root, release
}

func modulesArchive(t *testing.T, root, release string) []byte {
	t.Helper()
	var out bytes.Buffer
	var order strings.Builder
	w := cpio.NewWriter(&out)
	add := func(name string, mode cpio.FileMode, data []byte) {
		err := w.WriteHeader(&cpio.Header{Name: name, Mode: mode, Size: int64(len(data))})
		if err == nil {
			_, err = io.Copy(w, bytes.NewReader(data))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	add("modules", cpio.TypeDir|0o755, nil)
	seen := map[string]bool{}
	for _, module := range modules {
		for line := range strings.Lines(run(t, "modprobe", "-d", root, "-S", release, "--show-depends", module)) {
			path, ok := strings.CutPrefix(strings.TrimSpace(line), "insmod ")
			if !ok || seen[path] {
				continue
			}
			seen[path] = true
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			name, packed := strings.CutSuffix(filepath.Base(path), ".xz")
			if packed {
				data = []byte(run(t, "xz", "-dc", path))
			}
			add("modules/"+name, cpio.TypeReg|0o644, data)
			fmt.Fprintf(&order, "/modules/%s\n", name)
		}
	}
	add("modules.order.pagurus", cpio.TypeReg|0o644, []byte(order.String()))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
