package share

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cavaliergopher/cpio"
	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// bootLimit is the time for an emulated guest's part.
const bootLimit = 3 * time.Minute

// A real kernel mounts the share, and does not notice when the server is killed: files
// stay open, locks held, removed files readable.
func TestKernelClientOutlivesTheServer(t *testing.T) {
	testkit.Root(t, "qemu-system-x86_64", "go")
	image := testkit.Image(t, "openmpi")
	n, folder := job(t, user)
	s := stage(t, n)
	s.apply(n)
	c := &clientGuest{image: image, initrd: clientInitrd(t, image), folder: folder, console: filepath.Join(t.TempDir(), "console")}
	defer c.start(s, n)()
	says := func(what string) string { t.Helper(); return c.says(t, what) }
	says("CLIENT holding")
	// The guest's lock holds on the host, too, also after its server was killed.
	locked := func() bool {
		f, err := os.OpenFile(filepath.Join(folder, "held"), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}) == unix.EAGAIN
	}
	if !locked() {
		t.Error("the guest's lock does not hold on the host")
	}
	before := s.pid()
	unix.Kill(before, unix.SIGKILL)
	testkit.Until(t, startLimit, "another server runs", func() bool {
		pid := s.running()
		return pid != 0 && pid != before
	})
	size := func() int64 {
		found, err := os.Stat(filepath.Join(folder, "held"))
		if err != nil {
			t.Fatal(err)
		}
		return found.Size()
	}
	then := size()
	testkit.Until(t, bootLimit, "the guest writes on", func() bool { return size() > then+20 })
	if !locked() {
		t.Error("the guest's lock does not hold on the host after its server was killed")
	}
	write(t, filepath.Join(folder, "stop"), "", user, 0o644)
	text := says("CLIENT done")
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.pid()))
	t.Log(strings.Join(regexp.MustCompile(`(VmHWM|Threads):\s+[^\n]+`).FindAllString(string(status), -1), ", "))
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "CLIENT") {
			t.Log(strings.TrimSpace(line))
		}
	}
	held, err := os.ReadFile(filepath.Join(folder, "held"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(string(held))
	for i, line := range lines {
		if line != strconv.Itoa(i) {
			t.Fatalf("line %d of %d is %q", i, len(lines), line)
		}
	}
	if m := regexp.MustCompile(`done: (\d+) lines`).FindStringSubmatch(text); m == nil || m[1] != strconv.Itoa(len(lines)) {
		t.Errorf("the guest wrote %v lines, the host has %d", m, len(lines))
	}
	left, _ := filepath.Glob(filepath.Join(folder, ".nfs*"))
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// clientGuest is a real guest whose program is testdata/client.
type clientGuest struct {
	image, initrd, folder, console string
	words                          string // to the client
}

// start starts it in a network, and returns how it is killed.
func (c *clientGuest) start(s *testbed, n fleet.Network, more ...string) (kill func()) {
	s.t.Helper()
	tap := n.Subnet.TapName(1)
	s.host.Run("ip", "tuntap", "add", "dev", tap, "mode", "tap", "vnet_hdr")
	s.host.Run("ip", "link", "set", tap, "master", n.Subnet.BridgeName(), "up")
	guest := s.host.Command(context.Background(), "qemu-system-x86_64", append([]string{"-machine", "pc", "-accel", "tcg,thread=multi", "-cpu", "max",
		"-m", "256", "-nodefaults", "-display", "none", "-no-reboot", "-serial", "file:" + c.console,
		"-kernel", filepath.Join(c.image, "vmlinuz"), "-initrd", c.initrd,
		"-append", fmt.Sprintf("console=ttyS0 quiet panic=-1 addr=%s share=%s export=%s %s",
			n.Subnet.GuestAddr(1), n.Subnet.ShareAddr(), base64.URLEncoding.EncodeToString([]byte(c.folder)), c.words),
		"-netdev", "tap,id=n,ifname=" + tap + ",script=no,downscript=no", "-device", "virtio-net-pci,netdev=n,mac=" + n.Subnet.GuestMAC(1)}, more...)...)
	if err := guest.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if s.t.Failed() {
			for _, path := range []string{c.console, filepath.Join(roomPath(s.file("")), logName)} {
				text, _ := os.ReadFile(path)
				s.t.Logf("%s:\n%s", filepath.Base(path), text[max(0, len(text)-4000):])
			}
		}
	})
	ended := make(chan error, 1)
	go func() { ended <- guest.Wait() }()
	var once sync.Once
	return func() { once.Do(func() { guest.Process.Kill(); <-ended }) }
}

// says waits until the client says something, and returns all that it has said.
func (c *clientGuest) says(t *testing.T, what string) string {
	t.Helper()
	var text []byte
	testkit.Until(t, bootLimit, "the guest says "+what, func() bool {
		text, _ = os.ReadFile(c.console)
		if bytes.Contains(text, []byte("CLIENT failed")) || bytes.Contains(text, []byte("Kernel panic")) {
			t.Fatalf("the guest's console:\n%s", text)
		}
		return bytes.Contains(text, []byte(what))
	})
	return string(text)
}

// clientInitrd packs the image's modules and the client.
func clientInitrd(t *testing.T, image string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "init")
	build := exec.Command("go", "build", "-o", program, "./testdata/client")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the client: %v\n%s", err, out)
	}
	text, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	modules, err := os.Open(filepath.Join(image, "modules.cpio"))
	if err != nil {
		t.Fatal(err)
	}
	defer modules.Close()
	initrd, err := os.Create(filepath.Join(t.TempDir(), "initrd"))
	if err != nil {
		t.Fatal(err)
	}
	defer initrd.Close()
	if _, err := io.Copy(initrd, modules); err != nil {
		t.Fatal(err)
	}
	w := cpio.NewWriter(initrd)
	for _, h := range []*cpio.Header{
		{Name: "dev", Mode: cpio.TypeDir | 0o755}, {Name: "proc", Mode: cpio.TypeDir | 0o755},
		{Name: "init", Mode: cpio.TypeReg | 0o755, Size: int64(len(text))},
	} {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := w.Write(text); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return initrd.Name()
}
