package xen_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/xen"
	"pagurus/fleet"
	"pagurus/serve/agent/drivertest"
)

// onXen has the folder of what the tests on a Xen host need: witness, and an image in image/. scripts/test-xen makes it, starts
// such a host and runs this package's tests there. On other machines they do nothing, not by a skip, since nothing
// is missing.
const onXen = "PAGURUS_TEST_XEN"

// TestMain makes this program the wardens and savers of guests.
func TestMain(m *testing.M) {
	if become := xen.Shims[filepath.Base(os.Args[0])]; become != nil {
		if err := become(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// world is two hosts, which are one Xen host: a guest that moves has two domains there for a moment.
type world struct {
	folder string
	runs   [2]string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{folder: os.Getenv(onXen)}
	for i := range w.runs {
		w.runs[i] = t.TempDir()
	}
	return w
}

// port is a guest's place on a network of its own, on each of the hosts.
func port(host int) func(fleet.Subnet, int) xen.Port {
	return func(s fleet.Subnet, i int) xen.Port {
		own := s + fleet.Subnet(100*host)
		p := xen.OverlayPort(own, i)
		p.MAC = s.GuestMAC(i)
		for _, c := range []string{ // as the overlay makes it; it may be there
			fmt.Sprintf("ip link add %s mtu 1450 type veth peer name %s mtu 1450", own.TapName(i), p.Peer),
			fmt.Sprintf("ip link set %s up", own.TapName(i)), fmt.Sprintf("tc qdisc add dev %s clsact", own.TapName(i)),
		} {
			_ = exec.Command("sh", "-c", c).Run()
		}
		return p
	}
}

func (w *world) config(t *testing.T, host int) xen.Config {
	return xen.Config{
		Run: w.runs[host], GuestAgent: filepath.Join(w.folder, "witness"), Shim: "/proc/self/exe", Address: netip.MustParseAddr("127.0.0.1"),
		Prefix:      fmt.Sprintf("pgt%d-", host),
		ImageFolder: func(context.Context, fleet.Digest) (string, error) { return filepath.Join(w.folder, "image"), nil },
		Port:        port(host),
		Converged:   converged,
		Log:         slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
}

// converged replaces the policy. Emulated, a guest's 16 MiB that change all the time take seconds to be sent.
func converged(l fleet.Limits, rounds []fleet.Progress) (bool, error) {
	downtime, most := cmp.Or(l.Downtime, time.Minute), cmp.Or(l.Rounds, 60)
	p := rounds[len(rounds)-1]
	if speed := float64(p.SentBytes) / p.Elapsed.Seconds(); float64(p.RemainingBytes) <= speed*downtime.Seconds() && p.Rounds > 1 {
		return true, nil
	}
	if p.Rounds > most {
		return false, fmt.Errorf("after %d rounds %d bytes are still left", most, p.RemainingBytes)
	}
	return false, nil
}

func (w *world) open(t *testing.T, host int) *xen.Driver {
	t.Helper()
	d, err := xen.Open(t.Context(), w.config(t, host))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// copied is a guest of so many bytes that runs at the first host and has been copied to the second, which are closed when the test ends. before is called before the copy.
func (w *world) copied(t *testing.T, id fleet.GuestID, bytes int64, before func(source *xen.Driver)) (source, target *xen.Driver, k fleet.Task) {
	t.Helper()
	w.sayMore(t)
	source, target, k = w.open(t, 0), w.open(t, 1), task(id)
	k.Guest.Need.MemoryBytes = bytes
	t.Cleanup(func() { _ = errors.Join(source.Close(), target.Close()) })
	if err := source.Start(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	drivertest.Healthy(t, source, id)
	before(source)
	k.Order.Migration = "m1"
	var err error
	if k.Listen, err = target.Receive(t.Context(), k); err == nil {
		err = source.Copy(t.Context(), k, func(fleet.Progress) {})
	}
	if err != nil {
		t.Fatal(err)
	}
	return source, target, k
}

// memory of a guest in these tests: the witness dirties 16 MiB of it.
const memory = 112 << 20

func task(id fleet.GuestID) fleet.Task {
	return fleet.Task{
		Guest: fleet.Guest{ID: id, Kind: fleet.VM, Gen: 3, Need: fleet.Resources{CPUs: 1, MemoryBytes: memory}},
		Job:   fleet.Job{Subnet: 1},
	}
}

// warden is the guest's, from the driver's record.
func (w *world) warden(t *testing.T, host int, id fleet.GuestID) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(w.runs[host], "domains", string(id), "guest.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r struct{ Process struct{ PID int } }
	if err := json.Unmarshal(text, &r); err != nil || r.Process.PID <= 1 {
		t.Fatalf("guest.json names process %d: %v", r.Process.PID, err)
	}
	return r.Process.PID
}

// kill destroys the guest's domain, as an administrator may. Of a guest that is only awaited it kills the warden.
func (w *world) kill(t *testing.T, host int, id fleet.GuestID) {
	t.Helper()
	name := fmt.Sprintf("pgt%d-%s", host, id)
	if strings.Contains(xl(t, "list"), name) {
		xl(t, "destroy", name)
	}
	_ = unix.Kill(w.warden(t, host, id), unix.SIGKILL) // it may have ended by now
}

// left returns all traces of a guest: its folder, processes in it, and its domain.
func (w *world) left(t *testing.T, host int, id fleet.GuestID) (out []string) {
	dir := filepath.Join(w.runs[host], "domains", string(id))
	if _, err := os.Lstat(dir); err == nil {
		out = append(out, dir)
	}
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range links {
		if at, err := os.Readlink(link); err == nil && strings.HasPrefix(at, dir) {
			out = append(out, link+" is "+at)
		}
	}
	if id.Check() == nil {
		for line := range strings.Lines(xl(t, "list")) {
			if strings.HasPrefix(line, fmt.Sprintf("pgt%d-%s ", host, id)) {
				out = append(out, line)
			}
		}
	}
	return out
}

func xl(t *testing.T, args ...string) string {
	t.Helper()
	c := exec.Command("xl", args...)
	var complaint bytes.Buffer
	c.Stderr = &complaint
	out, err := c.Output()
	if err != nil {
		t.Errorf("xl %s: %v: %s", strings.Join(args, " "), err, complaint.String())
	}
	return string(out)
}

// TestContract runs the drivers' contract suite on a Xen host.
func TestContract(t *testing.T) {
	if os.Getenv(onXen) == "" {
		return
	}
	w := newWorld(t)
	drivertest.Run(t, drivertest.World{
		Open: func(t *testing.T, host int) drivertest.Driver { return w.open(t, host) },
		Task: task, Kill: w.kill, Left: w.left, Failed: w.sayAll, Slow: 6,
	})
	if disks, _ := exec.Command("losetup", "--list", "--noheadings").Output(); len(disks) > 0 {
		t.Errorf("disks are left: %s", disks)
	}
}

// sayMore shows what wardens said if the test fails.
func (w *world) sayMore(t *testing.T) {
	t.Cleanup(func() {
		if t.Failed() {
			w.sayAll(t)
		}
	})
}

// sayAll shows what wardens and guests said, and what Xen knows of them.
func (w *world) sayAll(t *testing.T) {
	logs, _ := filepath.Glob(filepath.Join(w.runs[0], "../*/*/*/*.log"))
	for _, path := range logs {
		text, _ := os.ReadFile(path)
		t.Logf("%s:\n%s", path, text[max(0, len(text)-3000):])
	}
	t.Log(xl(t, "list"))
	nodes, _ := exec.Command("xenstore-ls", "/local/domain").Output()
	t.Logf("%s", nodes)
}

// TestRefusals: what Xen cannot do is said in words, and nothing happens.
func TestRefusals(t *testing.T) {
	if os.Getenv(onXen) == "" {
		return
	}
	w := newWorld(t)
	d := w.open(t, 0)
	defer d.Close()
	can := d.Abilities()
	if !can.Live || can.Version == "" || can.PostCopy || can.NoPostCopy == "" || can.Checkpoint || can.NoCheckpoint == "" || can.CPU == "" {
		t.Errorf("it can %+v", can)
	}
	var link any = d
	if _, claims := link.(interface {
		Arm(context.Context, fleet.GuestID, string) error
	}); claims {
		t.Error("it claims to make checkpoints")
	}
	for what, change := range map[string]func(*xen.Config, *fleet.Task){
		"build it again": func(c *xen.Config, _ *fleet.Task) {
			old := t.TempDir()
			if err := os.WriteFile(filepath.Join(old, "modules.cpio"), []byte("virtio-blk.ko"), 0o600); err != nil {
				t.Fatal(err)
			}
			c.ImageFolder = func(context.Context, fleet.Digest) (string, error) { return old, nil }
		},
		"some memory": func(_ *xen.Config, task *fleet.Task) { task.Guest.Need.MemoryBytes = 0 },
		"xl create":   func(_ *xen.Config, task *fleet.Task) { task.Guest.Need.MemoryBytes = 1 << 40 },
		"no class":    func(_ *xen.Config, task *fleet.Task) { task.Job.Spec.Class = "silver" },
	} {
		c, k := w.config(t, 1), task("r1g0")
		change(&c, &k)
		d, err := xen.Open(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Start(t.Context(), k); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
		if left := w.left(t, 1, "r1g0"); len(left) > 0 {
			t.Errorf("%s: left behind: %v", what, left)
		}
		d.Close()
	}
}

// TestEndings: a domain ends with its warden, whoever ended that.
func TestEndings(t *testing.T) {
	if os.Getenv(onXen) == "" {
		return
	}
	w := newWorld(t)
	w.sayMore(t)
	d := w.open(t, 0)
	defer d.Close()
	for id, end := range map[fleet.GuestID]func(id fleet.GuestID){
		"e1g0": func(id fleet.GuestID) { xl(t, "destroy", "pgt0-"+string(id)) },
		"e2g0": func(id fleet.GuestID) { _ = unix.Kill(w.warden(t, 0, id), unix.SIGKILL) },
	} {
		if err := d.Start(t.Context(), task(id)); err != nil {
			t.Fatal(err)
		}
		ended := d.Ended(id)
		end(id)
		select {
		case <-ended:
		case <-time.After(2 * time.Minute):
			t.Fatal("the end of the guest is not reported")
		}
		r := d.Ending(id)
		if r == nil || r.Why == "" || !r.Died || !r.Killed {
			t.Errorf("%s ended: %+v", id, r)
		}
		if left := w.left(t, 0, id); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

// TestClass: a class is a weight and a cap of Xen's scheduler.
func TestClass(t *testing.T) {
	if os.Getenv(onXen) == "" {
		return
	}
	w := newWorld(t)
	w.sayMore(t)
	d := w.open(t, 0)
	defer d.Close()
	k := task("c1g0")
	if err := d.Class(k.Guest, fleet.Gold, 0); !errors.Is(err, fleet.ErrAbsent) {
		t.Errorf("the class of a guest that is not here: %v", err)
	}
	if err := d.Start(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Stop(context.Background(), k.Guest.ID); err != nil {
			t.Error(err)
		}
	}()
	at := port(0)(k.Job.Subnet, 0)
	for _, link := range []string{at.Interface, at.Peer} { // the guest's link and the port of the job's network are joined
		out, err := exec.Command("sh", "-c", "ip link show up dev $0 && tc filter show dev $0 ingress", link).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "Redirect to device pg") {
			t.Errorf("%s: %v: %s", link, err, out)
		}
	}
	for _, c := range []struct {
		class       fleet.Class
		most        float64
		weight, cap string
	}{{fleet.Gold, 0, "512", "0"}, {fleet.Bronze, 0.25, "128", "25"}, {"", 0, "256", "0"}} {
		if err := d.Class(k.Guest, c.class, c.most); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(xl(t, "sched-credit", "-d", "pgt0-c1g0")), "\n")
		f := strings.Fields(lines[len(lines)-1])
		if len(f) < 4 || f[2] != c.weight || f[3] != c.cap {
			t.Errorf("class %q has %q", c.class, f)
		}
	}
	if out := xl(t, "sched-credit", "-d", "Domain-0"); !strings.Contains(out, " 4096 ") {
		t.Errorf("the first domain has %q", out)
	}
	if err := d.Class(k.Guest, "silver", 0); err == nil {
		t.Error("a class that there is not was set")
	}
}
