package main

import (
	"bufio"
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
	"pagurus/act/share"
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

// testImage gives the folder of a predefined image.
func testImage(t *testing.T, name string) string {
	t.Helper()
	testkit.Root(t, "qemu-system-x86_64", "mmdebstrap")
	return testkit.Image(t, name)
}

// lan is a host with one job's network, made by hand, and the job's files.
type lan struct {
	*testkit.Host
	export string // directory of user jobUser
}

const jobUser = 1234 // has no name on this machine or in images

func network(t *testing.T) *lan {
	t.Helper()
	testkit.Leftovers(t)
	testkit.Root(t, "qemu-system-x86_64", "ganesha.nfsd", "ip")
	top, err := os.MkdirTemp("/var/tmp", "pgtest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	l := &lan{export: filepath.Join(top, "work dir")}
	os.Mkdir(l.export, 0o700)
	os.Chown(l.export, jobUser, jobUser+1)
	os.Chmod(top, 0o755)
	run := filepath.Join(top, "run")
	l.Host = testkit.Hosts(t, 1)[0]
	bridge := jobSubnet.BridgeName()
	l.Run("ip", "link", "add", bridge, "type", "bridge")
	l.Run("ip", "link", "set", bridge, "up")
	l.Run("ip", "link", "add", jobSubnet.ShareName(), "master", bridge, "type", "veth", "peer", "name", jobSubnet.SharePeerName())
	l.Run("ip", "link", "set", jobSubnet.ShareName(), "up")
	shares, err := share.Open(share.Config{Run: run, Shim: "/proc/self/exe"})
	if err != nil {
		t.Fatal(err)
	}
	apply := func(networks ...fleet.Network) {
		l.Must(func() error { return shares.Apply(context.Background(), networks) })
	}
	t.Cleanup(func() {
		apply()
		shares.Close()
	})
	apply(fleet.Network{Job: "j1", Subnet: jobSubnet, Share: &fleet.Share{Export: l.export, UID: jobUser, GID: jobUser + 1}})
	return l
}

// vm is a guest under software emulation.
type vm struct {
	*guestlink.Client
	*lan
	t      *testing.T // of bootVM
	image  string
	folder string // of the image
	index  int
	setup  fleet.Setup
	starts int // QEMUs so far

	mu   sync.Mutex
	dir  string // of the QEMU that runs it
	link net.Conn
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
func bootVM(t *testing.T, l *lan, image string, index, count int) *vm {
	t.Helper()
	g := &vm{lan: l, t: t, image: image, folder: testImage(t, image), index: index}
	g.setup = fleet.Setup{
		Guest: fleet.GuestID(fmt.Sprintf("j1g%d", index)), Hostname: fleet.GuestName(index), Index: index,
		Addr: jobSubnet.GuestAddr(index), Prefix: fleet.SubnetPrefixBits, MAC: jobSubnet.GuestMAC(index), MTU: fleet.NetworkMTU,
		UID: jobUser, GID: jobUser + 1, Groups: []uint32{3456}, Share: jobSubnet.ShareAddr(), Export: l.export,
	}
	for i := range count {
		g.setup.Peers = append(g.setup.Peers, fleet.Peer{
			Hostname: fleet.GuestName(i), Addr: jobSubnet.GuestAddr(i), MAC: jobSubnet.GuestMAC(i), Slots: 1,
		})
	}
	g.machine()
	g.Client = guestlink.New(func(ctx context.Context) (io.ReadWriteCloser, error) {
		g.mu.Lock()
		defer g.mu.Unlock()
		var err error
		g.link, err = new(net.Dialer).DialContext(ctx, "unix", filepath.Join(g.dir, "link.sock"))
		return g.link, err
	})
	t.Cleanup(func() { g.Close() })
	return g
}

// machine starts a QEMU that is the guest from now on, with more arguments.
func (g *vm) machine(more ...string) {
	t := g.t // not a subtest's: the QEMU must outlive those
	t.Helper()
	dir, tap := t.TempDir(), fmt.Sprintf("tap%d.%d", g.index, g.starts)
	g.starts++
	g.Run("ip", "tuntap", "add", tap, "mode", "tap")
	g.Run("ip", "link", "set", tap, "master", jobSubnet.BridgeName(), "up")
	initrd := filepath.Join(dir, "initrd")
	writeInitrd(t, initrd, g.folder)
	half := ""
	if g.index == 1 { // its card is one of two, of which the other is missing
		half = ",failover=on,id=standby"
	}
	cmd := g.Command(context.Background(), "qemu-system-x86_64", append([]string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", "q35,sata=off,smbus=off,vmport=off", "-accel", "tcg,thread=multi", "-cpu", "SandyBridge-v1,-x2apic,-tsc-deadline,model-id=QEMU TCG CPU",
		"-m", "458760K", // not 448 MiB: then QEMU before 9.0 loses pages in a copy
		"-kernel", filepath.Join(g.folder, "vmlinuz"), "-initrd", initrd,
		"-append", "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check tsc=reliable random.trust_cpu=on",
		"-chardev", "file,id=console,path=" + filepath.Join(dir, "console.log"), "-device", "isa-serial,chardev=console",
		"-drive", "if=virtio,format=raw,readonly=on,file.locking=off,file=" + filepath.Join(g.folder, "root.img"),
		"-netdev", "tap,id=net,script=no,downscript=no,ifname=" + tap,
		"-device", "virtio-net-pci,netdev=net,mac=" + g.setup.MAC + half,
		"-device", "virtio-serial-pci", "-chardev", "socket,id=link,server=on,wait=off,path=" + filepath.Join(dir, "link.sock"),
		"-device", "virtserialport,chardev=link,name=org.pagurus.link",
		"-object", "rng-builtin,id=rng", "-device", "virtio-rng-pci,rng=rng",
		"-qmp", "unix:" + filepath.Join(dir, "qmp.sock") + ",server=on,wait=off",
	}, more...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			b, _ := os.ReadFile(filepath.Join(dir, "console.log"))
			t.Logf("console of guest %d:\n%s", g.index, b[max(0, len(b)-4000):])
		}
	})
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dir = dir
}

// cut ends the host's connection to the guest, as a restart of the agent does.
func (g *vm) cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.link != nil {
		g.link.Close()
	}
}

// qmp sends commands to the QEMU of a folder and returns the last answer.
func qmp(t *testing.T, dir string, commands ...string) string {
	t.Helper()
	var conn net.Conn
	testkit.Until(t, 30*time.Second, "QEMU listens", func() (ok bool) {
		var err error
		conn, err = net.Dial("unix", filepath.Join(dir, "qmp.sock"))
		return err == nil
	})
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Minute))
	lines := bufio.NewScanner(conn)
	lines.Scan() // the greeting
	for _, c := range append([]string{`{"execute":"qmp_capabilities"}`}, commands...) {
		fmt.Fprintln(conn, c)
		for lines.Scan() && strings.Contains(lines.Text(), `"event"`) {
		}
		if !strings.Contains(lines.Text(), `"return"`) {
			t.Fatalf("%s: %s", c, lines.Text())
		}
	}
	return lines.Text()
}

// move moves the running guest into another QEMU. The link breaks at a random place.
func (g *vm) move(t *testing.T) {
	t.Helper()
	source := g.dir
	stream := filepath.Join(t.TempDir(), "stream")
	g.machine("-incoming", "defer")
	qmp(t, g.dir, fmt.Sprintf(`{"execute":"migrate-incoming","arguments":{"uri":"unix:%s"}}`, stream))
	qmp(t, source, fmt.Sprintf(`{"execute":"migrate","arguments":{"uri":"unix:%s"}}`, stream))
	testkit.Until(t, 2*time.Minute, "the guest has moved", func() bool {
		state := qmp(t, source, `{"execute":"query-migrate"}`)
		if strings.Contains(state, `"failed"`) {
			t.Fatal(state)
		}
		return strings.Contains(state, `"completed"`)
	})
	qmp(t, source, `{"execute":"quit"}`)
	g.cut()
}

// join sets the guest up, and so waits for its boot.
func (g *vm) join(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bootLimit)
	defer cancel()
	g.setup.Clock = time.Now()
	if err := g.Setup(ctx, g.setup); err != nil {
		t.Fatalf("guest %d: %v", g.index, err)
	}
}

// outcome is a program's result.
type outcome struct {
	stdout, stderr string
	exit           fleet.Exit
	took           time.Duration
}

// do runs a program to its end, as the host's agent does.
func (g *vm) do(t *testing.T, limit time.Duration, p fleet.Program, stdin string) outcome {
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

// put writes one of the job's files from the host.
func (l *lan) put(t *testing.T, name string, text []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(l.export, name), text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// compile runs a command in the image's root on this machine, as the job's user in the job's
// directory: an emulated guest takes ten times as long.
func (g *vm) compile(t *testing.T, script string) {
	t.Helper()
	s, err := image.Open(filepath.Join(g.folder, "../.."))
	if err != nil {
		t.Fatal(err)
	}
	cmd, err := s.ShellCommand(t.Context(), g.image, image.Session{Dir: g.export, UID: jobUser, GID: jobUser + 1, Args: []string{"sh", "-c", script}})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// sh makes a program of a shell script that runs in the job's directory.
func (g *vm) sh(script string) fleet.Program {
	return fleet.Program{Args: []string{"sh", "-c", script}, Dir: g.export}
}

func contains(t *testing.T, where, text string, wants ...string) {
	t.Helper()
	for _, w := range wants {
		if !strings.Contains(text, w) {
			t.Errorf("%s lacks %q:\n%s", where, w, text)
		}
	}
}
