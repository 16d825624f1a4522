package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cavaliergopher/cpio"

	"pagurus/act/guestlink"
	"pagurus/act/image"
	"pagurus/fleet"
	"pagurus/internal/testkit"
)

const (
	testCache = "/var/cache/pagurus-test"
	jobSubnet = fleet.Subnet(0x155)
	bootLimit = 3 * time.Minute
)

// builtGuest builds the guest agent as it is shipped, once for all tests.
var builtGuest = sync.OnceValues(func() (string, error) {
	if err := os.MkdirAll(testCache, 0o755); err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", builtPath, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return builtPath, nil
})

var builtPath = filepath.Join(testCache, fmt.Sprintf("pagurus-guest.%d", os.Getpid()))

// testImage gives the folder of a predefined image, from the cache that tests share.
func testImage(t *testing.T, name string) string {
	t.Helper()
	testkit.Root(t, "qemu-system-x86_64", "mmdebstrap")
	store, err := image.Open(filepath.Join(testCache, "images"))
	if err != nil {
		t.Fatal(err)
	}
	recipe, err := image.RecipeFor(name, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	img, err := store.Build(ctx, recipe, nil)
	if err != nil {
		t.Fatal(err)
	}
	return store.Folder(img.Digest)
}

// network is a namespace with a bridge that guests are plugged into. The
// file server's address is the bridge's own.
func network(t *testing.T) *testkit.Host {
	t.Helper()
	h := testkit.Hosts(t, 1)[0]
	h.Run("ip", "link", "add", "job0", "address", jobSubnet.ShareMAC(), "type", "bridge")
	h.Run("ip", "addr", "add", jobSubnet.ShareAddr().String()+"/24", "dev", "job0")
	h.Run("ip", "link", "set", "job0", "up")
	return h
}

// vm is a guest under software emulation.
type vm struct {
	*guestlink.Client
	index   int
	dir     string
	process *os.Process
	setup   fleet.Setup
}

// writeInitrd appends the guest agent to the image's modules.
func writeInitrd(t *testing.T, path, folder string) {
	t.Helper()
	agent, err := builtGuest()
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile(agent)
	if err != nil {
		t.Fatal(err)
	}
	modules, err := os.ReadFile(filepath.Join(folder, "modules.cpio"))
	if err != nil {
		t.Fatal(err)
	}
	out := bytes.NewBuffer(modules)
	w := cpio.NewWriter(out)
	w.WriteHeader(&cpio.Header{Name: "init", Mode: cpio.TypeReg | 0o755, Links: 1, Size: int64(len(code))})
	w.Write(code)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// bootVM starts guest index of a job of count guests on the network.
func bootVM(t *testing.T, h *testkit.Host, folder string, index, count int) *vm {
	t.Helper()
	g := &vm{index: index, dir: t.TempDir()}
	tap := fmt.Sprintf("tap%d", index)
	h.Run("ip", "tuntap", "add", tap, "mode", "tap")
	h.Run("ip", "link", "set", tap, "master", "job0", "up")
	initrd := filepath.Join(g.dir, "initrd")
	writeInitrd(t, initrd, folder)
	g.setup = fleet.Setup{
		Guest: fleet.GuestID(fmt.Sprintf("j1g%d", index)), Hostname: fleet.GuestName(index), Index: index,
		Addr: jobSubnet.GuestAddr(index), Prefix: fleet.SubnetPrefixBits, MAC: jobSubnet.GuestMAC(index), MTU: 1450,
		UID: 1234, GID: 2345, Groups: []uint32{3456},
	}
	for i := range count {
		g.setup.Peers = append(g.setup.Peers, fleet.Peer{
			Hostname: fleet.GuestName(i), Addr: jobSubnet.GuestAddr(i), MAC: jobSubnet.GuestMAC(i), Slots: 1,
		})
	}
	link := filepath.Join(g.dir, "link.sock")
	cmd := h.Command(t.Context(), "qemu-system-x86_64",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", "q35,sata=off,smbus=off,vmport=off", "-accel", "tcg,thread=multi", "-cpu", "max", "-m", "448M",
		"-kernel", filepath.Join(folder, "vmlinuz"), "-initrd", initrd,
		"-append", "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check tsc=reliable random.trust_cpu=on",
		"-chardev", "file,id=console,path="+filepath.Join(g.dir, "console.log"), "-device", "isa-serial,chardev=console",
		"-drive", "if=virtio,format=raw,readonly=on,file="+filepath.Join(folder, "root.img"),
		"-netdev", "tap,id=net,script=no,downscript=no,ifname="+tap,
		"-device", "virtio-net-pci,netdev=net,mac="+g.setup.MAC,
		"-device", "virtio-serial-pci", "-chardev", "socket,id=link,server=on,wait=off,path="+link,
		"-device", "virtserialport,chardev=link,name=org.pagurus.link",
		"-object", "rng-builtin,id=rng", "-device", "virtio-rng-pci,rng=rng",
		"-qmp", "unix:"+filepath.Join(g.dir, "qmp.sock")+",server=on,wait=off")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	g.process = cmd.Process
	g.Client = guestlink.New(func(ctx context.Context) (io.ReadWriteCloser, error) {
		return new(net.Dialer).DialContext(ctx, "unix", link)
	})
	t.Cleanup(func() {
		g.Close()
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			b, _ := os.ReadFile(filepath.Join(g.dir, "console.log"))
			t.Logf("console of guest %d:\n%s", index, b[max(0, len(b)-4000):])
		}
	})
	return g
}

// join sets the guest up, which waits for it to boot.
func (g *vm) join(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bootLimit)
	defer cancel()
	g.setup.Clock = time.Now()
	if err := g.Setup(ctx, g.setup); err != nil {
		t.Fatalf("guest %d: %v", g.index, err)
	}
}

// outcome is what a program did.
type outcome struct {
	stdout, stderr string
	exit           fleet.Exit
	took           time.Duration
}

// run runs a program to its end, as the host's agent does.
func (g *vm) run(t *testing.T, limit time.Duration, p fleet.Program, stdin string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if p.ID == "" {
		p.ID = fmt.Sprintf("p%d", time.Now().UnixNano())
	}
	began := time.Now()
	if err := g.Launch(ctx, p); err != nil {
		t.Fatalf("%v: %v", p.Args, err)
	}
	if _, err := g.Write(ctx, p.ID, 0, []byte(stdin), true); err != nil {
		t.Fatalf("%v: %v", p.Args, err)
	}
	var o outcome
	var all sync.WaitGroup
	fetch := func(name string, to *string) {
		var got []byte
		for {
			data, eof, err := g.Read(ctx, p.ID, name, int64(len(got)))
			got = append(got, data...)
			*to = string(got)
			if err != nil {
				t.Errorf("%v: reading %s: %v", p.Args, name, err)
			}
			if eof || err != nil {
				return
			}
		}
	}
	all.Go(func() { fetch(fleet.Stdout, &o.stdout) })
	all.Go(func() { fetch(fleet.Stderr, &o.stderr) })
	all.Wait()
	var err error
	if o.exit, err = g.Wait(ctx, p.ID); err != nil {
		t.Errorf("%v: %v", p.Args, err)
	}
	o.took = time.Since(began)
	return o
}

func sh(script string) fleet.Program {
	return fleet.Program{Args: []string{"sh", "-c", script}, Dir: "/tmp"}
}

func contains(t *testing.T, where, text string, wants ...string) {
	t.Helper()
	for _, w := range wants {
		if !strings.Contains(text, w) {
			t.Errorf("%s lacks %q:\n%s", where, w, text)
		}
	}
}
