package container_test

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
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/cgroup"
	"pagurus/act/container"
	"pagurus/fleet"
	"pagurus/internal/testkit"
	"pagurus/serve/agent/drivertest"
)

// TestMain also runs as agents that die in the middle of a step.
func TestMain(m *testing.M) {
	container.Become()
	flag.Parse()
	if text := os.Getenv(stepVariable); text != "" {
		os.Exit(takeStep(text))
	}
	os.Exit(m.Run())
}

// host is one of the two hosts of a test.
type host struct {
	Run   string
	Group string // its guests' processes
	Addr  string
	net   *testkit.Host
}

// world is where guests are tested: two hosts on one Ethernet, joined by a bridge for the job's
// network, and an image.
type world struct {
	hosts [2]host
	image string
	agent string
	files string // the job's, on both hosts
}

const subnet = fleet.Subnet(1)

// newWorld makes two hosts. Nothing is left of them when the test ends.
func newWorld(t *testing.T) *world {
	t.Helper()
	testkit.Root(t, "ip", "tar")
	top, err := os.MkdirTemp("/tmp", "pagurus-container-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(top, 0o755); err != nil { // as an agent's folders are, for jobs' users
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	w := &world{image: testkit.Image(t, "openmpi"), agent: witness(t), files: filepath.Join(top, "files")}
	if err := os.Mkdir(w.files, 0o755); err != nil {
		t.Fatal(err)
	}
	for i, net := range testkit.Hosts(t, 2) {
		run := filepath.Join(top, fmt.Sprintf("host%d", i))
		if err := os.Mkdir(run, 0o755); err != nil {
			t.Fatal(err)
		}
		w.hosts[i] = host{Run: run, Group: fmt.Sprintf("pagurus-%s/host%d", filepath.Base(top), i), Addr: net.Addr.String(), net: net}
	}
	for i := range w.hosts {
		w.network(t, i)
	}
	t.Cleanup(func() {
		for i := range w.hosts {
			if g, err := cgroup.Open(w.hosts[i].Group, 0); err != nil {
				t.Error(err)
			} else if err := g.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return w
}

// guests is how many guests a job may have in these tests.
const guests = 2

// network makes a host's part of the job's network, as the overlay does. Nothing is learnt; lead
// says where guests are.
func (w *world) network(t *testing.T, i int) {
	t.Helper()
	h, other := w.hosts[i].net, w.hosts[1-i].net
	bridge, tunnel := subnet.BridgeName(), subnet.TunnelName()
	h.Run("ip", "link", "add", bridge, "type", "bridge")
	h.Run("ip", "link", "add", tunnel, "type", "vxlan", "id", fmt.Sprint(subnet.VNI()), "local", h.Addr.String(), "remote", other.Addr.String(), "dstport", "4789", "nolearning")
	h.Run("ip", "link", "set", tunnel, "mtu", fmt.Sprint(fleet.NetworkMTU), "master", bridge, "up")
	h.Run("bridge", "link", "set", "dev", tunnel, "learning", "off", "flood", "off")
	h.Run("ip", "link", "set", bridge, "up")
	for g := range guests {
		w.port(t, i, g)
	}
}

// lead makes every host direct a guest's frames to its host.
func (w *world) lead(t *testing.T, guest, to int) {
	t.Helper()
	for i := range w.hosts {
		by := subnet.TunnelName()
		if i == to {
			by = subnet.TapName(guest)
		}
		w.hosts[i].net.Run("bridge", "fdb", "replace", subnet.GuestMAC(guest), "dev", by, "master", "static")
	}
}

// port makes a guest's port, as the overlay does.
func (w *world) port(t *testing.T, i, guest int) {
	t.Helper()
	h := w.hosts[i].net
	if _, err := h.Try("ip", "link", "show", subnet.TapName(guest)); err == nil {
		return
	}
	mtu := fmt.Sprint(fleet.NetworkMTU)
	h.Run("ip", "link", "add", subnet.TapName(guest), "mtu", mtu, "type", "veth", "peer", "name", subnet.PortPeerName(guest),
		"mtu", mtu, "address", subnet.GuestMAC(guest))
	h.Run("ip", "link", "set", subnet.TapName(guest), "master", subnet.BridgeName(), "up")
	h.Run("bridge", "link", "set", "dev", subnet.TapName(guest), "learning", "off", "flood", "off")
	h.Run("tc", "qdisc", "add", "dev", subnet.TapName(guest), "clsact")
}

func (w *world) config(log io.Writer, i int) (container.Config, error) {
	groups, err := cgroup.Open(w.hosts[i].Group, 0)
	return container.Config{
		Run: w.hosts[i].Run, GuestAgent: w.agent, Address: mustAddr(w.hosts[i].Addr), Cgroups: groups, OOMKills: groups.OOMKills, TasksRefused: groups.TasksRefused, Swap: groups.Swap,
		ImageFolder: func(context.Context, fleet.Digest) (string, error) { return w.image, nil },
		Files:       func(_ context.Context, t fleet.Task) ([]container.Files, error) { return w.jobFiles(t) },
		Log:         slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Converged:   converged,
	}, err
}

// jobFiles opens the folder of the job's files, if there is one.
func (w *world) jobFiles(t fleet.Task) ([]container.Files, error) {
	if w.files == "" {
		return nil, nil
	}
	dir, err := os.Open(w.files)
	return []container.Files{{Dir: dir, At: t.Job.Spec.Export, Identity: "this machine's"}}, err
}

// converged replaces the policy. A copy is good if sending the rest takes no longer than the
// maximum downtime. It is given up after its rounds.
func converged(l fleet.Limits, rounds []fleet.Progress) (bool, error) {
	downtime, most := cmp.Or(l.Downtime, 300*time.Millisecond), cmp.Or(l.Rounds, 60)
	p := rounds[len(rounds)-1]
	if l.Mode == fleet.PostCopy {
		return p.Rounds > 1, nil
	}
	if p.BytesPerSecond > 0 && float64(p.RemainingBytes) <= p.BytesPerSecond*downtime.Seconds() {
		return true, nil
	}
	if p.Rounds > most {
		return false, fmt.Errorf("after %d rounds %d bytes are still left", most, p.RemainingBytes)
	}
	return false, nil
}

func (w *world) open(t *testing.T, i int) *container.Driver {
	t.Helper()
	for g := range guests {
		w.port(t, i, g)
	}
	return w.reopen(t, i)
}

// reopen is open without a change to the network.
func (w *world) reopen(t *testing.T, i int) *container.Driver {
	t.Helper()
	d, err := w.tryOpen(t, i)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (w *world) tryOpen(t *testing.T, i int) (d *container.Driver, err error) {
	err = w.hosts[i].net.Do(func() error {
		c, err := w.config(t.Output(), i)
		if err == nil {
			d, err = container.Open(t.Context(), c)
		}
		return err
	})
	return d, err
}

// memory of a guest in these tests: the witness dirties 16 MiB of it.
const memory = 192 << 20

func task(id fleet.GuestID) fleet.Task {
	return fleet.Task{
		Guest: fleet.Guest{ID: id, Kind: fleet.Container, Gen: 3, Need: fleet.Resources{CPUs: 1, MemoryBytes: memory}},
		Job:   fleet.Job{Subnet: subnet, Spec: fleet.JobSpec{Guests: guests}},
	}
}

// processes returns the PIDs of the guest's first process and of its page server, if there is
// one, from the driver's record.
func (w *world) processes(t *testing.T, i int, id fleet.GuestID) (first, server int) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(w.hosts[i].Run, "containers", string(id), "guest.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r struct {
		Process struct{ PID int }
		Copy    struct {
			PageServer struct{ PID int } `json:"page_server"`
		}
	}
	if err := json.Unmarshal(text, &r); err != nil || r.Process.PID <= 1 {
		t.Fatalf("guest.json names process %d: %v", r.Process.PID, err)
	}
	return r.Process.PID, r.Copy.PageServer.PID
}

func (w *world) process(t *testing.T, i int, id fleet.GuestID) int {
	t.Helper()
	first, _ := w.processes(t, i, id)
	return first
}

// kill ends a guest. A suspended guest handles no signal until it is thawed, so its page server
// is killed, too: then its lazy pages are lost.
func (w *world) kill(t *testing.T, i int, id fleet.GuestID) {
	t.Helper()
	first, server := w.processes(t, i, id)
	if server > 1 {
		if err := unix.Kill(server, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			t.Fatal(err)
		}
	}
	if err := unix.Kill(first, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// left returns every trace of a guest: its folder, mounts, control groups, and processes that
// see its files or have some of its folder open.
func (w *world) left(t *testing.T, i int, id fleet.GuestID) (out []string) {
	top := w.hosts[i].Run
	dir := filepath.Join(top, "containers", string(id))
	if _, err := os.Lstat(dir); err == nil {
		out = append(out, dir)
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir) || strings.Contains(line, top+"/container-images/") {
			out = append(out, line)
		}
	}
	groups, _ := filepath.Glob("/sys/fs/cgroup/*/" + w.hosts[i].Group + "/" + string(id))
	more, _ := filepath.Glob("/sys/fs/cgroup/" + w.hosts[i].Group + "/" + string(id))
	out = append(append(out, groups...), more...)
	all, _ := filepath.Glob("/proc/[0-9]*/mountinfo")
	for _, name := range all {
		if mounts, _ := os.ReadFile(name); bytes.Contains(mounts, []byte(dir+"/store/files")) {
			cmd, _ := os.ReadFile(filepath.Dir(name) + "/cmdline")
			status, _ := os.ReadFile(filepath.Dir(name) + "/status")
			if !bytes.Contains(mounts, []byte(" / "+dir)) { // not one that only sees the host's mounts
				out = append(out, fmt.Sprintf("%s: %s\n%s", name, bytes.ReplaceAll(cmd, []byte{0}, []byte{' '}), status))
			}
		}
	}
	files, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, f := range files {
		if at, err := os.Readlink(f); err == nil && strings.HasPrefix(at, dir+"/") && !strings.HasPrefix(f, fmt.Sprintf("/proc/%d/", os.Getpid())) {
			out = append(out, f+" is "+at)
		}
	}
	if port, err := w.hosts[i].net.Try("tc", "filter", "show", "dev", subnet.TapName(0), "ingress"); err == nil && strings.TrimSpace(port) != "" {
		out = append(out, "a cut: "+port)
	}
	return out
}

func (w *world) contract() drivertest.World {
	return drivertest.World{
		Open: func(t *testing.T, i int) drivertest.Driver { return w.open(t, i) },
		Task: task, Kill: w.kill, Left: w.left, Checkpoints: true,
		PostCopy: func(t *testing.T, i int) bool {
			d := w.open(t, i)
			defer d.Close()
			return d.Abilities().PostCopy
		},
	}
}

// witness compiles the program that replaces the guest agent, once.
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
	return build("witness", "pagurus/serve/agent/drivertest/witness")
})

func build(name, from string) (string, error) {
	path := filepath.Join(cache, "container-"+name)
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", path, from)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w: %s", from, err, out)
	}
	return path, nil
}

// owner returns a file's owner and group.
func owner(info os.FileInfo) [2]uint32 {
	st := info.Sys().(*syscall.Stat_t)
	return [2]uint32{st.Uid, st.Gid}
}

func until(t *testing.T, holds func() bool) {
	t.Helper()
	testkit.Until(t, time.Minute, "it is so", holds)
}
