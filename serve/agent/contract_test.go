package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pagurus/act/guestlink"
	acthost "pagurus/act/host"
	"pagurus/act/host/jail"
	"pagurus/act/host/passage"
	"pagurus/act/image"
	"pagurus/act/overlay"
	"pagurus/act/qemu"
	"pagurus/act/share"
	"pagurus/act/share/handle"
	"pagurus/fleet"
	"pagurus/internal/fault"
	"pagurus/internal/testkit"
	"pagurus/serve/agent"
	"pagurus/serve/wire"
)

// The contract ring: real agents, each in a process and on a host of its own, with the real
// drivers, a real guest and the real protocol.

const (
	asAgent    = "PAGURUS_TEST_AGENT" // in the environment: be an agent with this configuration
	imagesDir  = "/var/lib/pagurus/images"
	imageName  = "openmpi"
	bootLimit  = 5 * time.Minute
	orderLimit = 2 * time.Minute
	clearLimit = 30 * time.Second
)

// hostConfig is the configuration of an agent's process.
type hostConfig struct {
	Host       fleet.HostID
	Run        string
	Address    netip.Addr
	Controller string
	GuestAgent string
}

func TestMain(m *testing.M) {
	for _, shims := range []map[string]func([]string) error{jail.Shims, passage.Shims, handle.Shims} {
		if become := shims[os.Args[0]]; become != nil {
			if err := become(os.Args[1:]); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		}
	}
	if text := os.Getenv(asAgent); text != "" {
		if err := beAgent(text); err != nil {
			fmt.Fprintln(os.Stderr, "agent:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func beAgent(text string) error {
	var c hostConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("host", c.Host)
	images, err := image.Open(imagesDir)
	if err != nil {
		return err
	}
	folder := func(_ context.Context, d fleet.Digest) (string, error) {
		if !images.Has(d) {
			return "", fmt.Errorf("image %s is not here", d)
		}
		return images.Folder(d), nil
	}
	accelerator, cpu := testkit.Virtual()
	driver, err := qemu.Open(ctx, qemu.Config{
		Accelerator: accelerator, CPU: cpu,
		Run: c.Run, Shim: "/proc/self/exe", GuestAgent: c.GuestAgent, Address: c.Address, ImageFolder: folder, Log: log,
		Converged: func(l fleet.Limits, seen []fleet.Progress) (bool, error) {
			p := seen[len(seen)-1] // the system ring tests the policy
			if l.Mode == fleet.PostCopy {
				return p.Rounds > 1, nil
			}
			return p.BytesPerSecond > 0 && float64(p.RemainingBytes) <= p.BytesPerSecond*0.3, nil
		},
	})
	if err != nil {
		return err
	}
	defer driver.Close()
	net, err := overlay.Open(overlay.Config{Host: c.Host, Address: c.Address})
	if err != nil {
		return err
	}
	defer net.Close()
	shares, err := share.Open(share.Config{Run: c.Run, Shim: "/proc/self/exe"})
	if err != nil {
		return err
	}
	defer shares.Close()
	client, err := wire.Dial(wire.Config{Address: "unix:" + c.Controller})
	if err != nil {
		return err
	}
	return agent.New(agent.Config{
		Host: c.Host, Run: c.Run, Drivers: map[fleet.Kind]agent.Driver{fleet.VM: driver},
		GuestAgent: func(g fleet.GuestID, l agent.Linker) agent.GuestAgent {
			return guestlink.New(func(ctx context.Context) (io.ReadWriteCloser, error) { return l.Link(ctx, g) })
		},
		Overlay: net, Shares: shares, Images: ensurer(folder), Controller: agent.Remote(client),
		Facts: func() fleet.Facts { return fleet.Facts{Address: c.Address.String()} }, Log: log,
	}).Run(ctx)
}

type ensurer func(context.Context, fleet.Digest) (string, error)

func (e ensurer) Ensure(ctx context.Context, d fleet.Digest) (string, error) { return e(ctx, d) }

// director stands in for the controller: it sends the test's orders and keeps the streams.
// Its other methods are never called.
type director struct {
	wire.Controller
	t        *testing.T
	mu       sync.Mutex
	wanted   map[fleet.HostID]fleet.Wanted
	tasks    map[fleet.HostID]map[string]fleet.Task // outstanding; sent again to every new session
	sessions map[fleet.HostID]*wire.HostSession
	facts    map[fleet.HostID]fleet.Facts
	reports  chan fleet.Report
	streams  map[string][]byte
	ended    map[string]bool
}

func (d *director) Attach(ctx context.Context, _ wire.Peer, h wire.Hello, s *wire.HostSession) error {
	d.mu.Lock()
	w := d.wanted[h.Host]
	err := s.Send(ctx, wire.Down{Wanted: &w})
	for _, t := range d.tasks[h.Host] {
		err = errors.Join(err, s.Send(ctx, wire.Down{Task: &t}))
	}
	d.sessions[h.Host] = s
	d.mu.Unlock()
	for err == nil {
		var up wire.Up
		if up, err = s.Receive(ctx); err != nil {
			return nil // the agent is gone, which tests cause
		}
		d.mu.Lock()
		if up.Facts != nil {
			d.facts[h.Host] = *up.Facts
		}
		if up.Report != nil {
			delete(d.tasks[h.Host], fmt.Sprint(up.Report.Order))
			d.reports <- *up.Report
		}
		d.mu.Unlock()
	}
	return err
}

func (d *director) Read(ctx context.Context, _ fleet.Caller, at wire.Place) ([]byte, bool, error) {
	for {
		d.mu.Lock()
		b, ended := d.streams[at.Stream], d.ended[at.Stream]
		d.mu.Unlock()
		if at.Offset < int64(len(b)) || ended || ctx.Err() != nil {
			return b[min(at.Offset, int64(len(b))):], ended, nil
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (d *director) Write(_ context.Context, _ fleet.Caller, at wire.Place, data []byte, eof bool) (int64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	have, end := int64(len(d.streams[at.Stream])), at.Offset+int64(len(data))
	if at.Offset <= have && have < end {
		d.streams[at.Stream] = append(d.streams[at.Stream], data[have-at.Offset:]...)
		have = end
	}
	d.ended[at.Stream] = d.ended[at.Stream] || (eof && have == end)
	return have, nil
}

func (d *director) stream(name string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return string(d.streams[name])
}

// want sets what is wanted on a host.
func (d *director) want(h fleet.HostID, w fleet.Wanted) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w.Cluster, w.Revision = "test", d.wanted[h].Revision+1
	d.wanted[h] = w
	if s := d.sessions[h]; s != nil {
		_ = s.Send(d.t.Context(), wire.Down{Wanted: &w}) // or the next session gets it
	}
}

func (d *director) send(t fleet.Task) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tasks[t.Order.Host][fmt.Sprint(t.Order)] = t
	if s := d.sessions[t.Order.Host]; s != nil {
		_ = s.Send(d.t.Context(), wire.Down{Task: &t}) // or the next session gets it
	}
}

// forget withdraws a host's outstanding orders.
func (d *director) forget(h fleet.HostID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.tasks[h])
}

// expect waits for the next report, which must be on o.
func (d *director) expect(o fleet.Order, limit time.Duration) fleet.Report {
	d.t.Helper()
	select {
	case r := <-d.reports:
		if r.Order != o {
			d.t.Fatalf("report %+v, want one on %+v", r, o)
		}
		return r
	case <-time.After(limit):
		d.t.Fatalf("no report on %+v", o)
	}
	return fleet.Report{}
}

// do sends a task and waits until it is done.
func (d *director) do(t fleet.Task, limit time.Duration) fleet.Report {
	d.t.Helper()
	d.send(t)
	r := d.expect(t.Order, limit)
	if r.Outcome != fleet.Done {
		d.t.Fatalf("%s: %s: %s", t.Order.Verb, r.Outcome, r.Cause)
	}
	return r
}

// theatre is two hosts with agents, a director and a job.
type theatre struct {
	*director
	hosts  []*testkit.Host
	config []hostConfig
	agents []*exec.Cmd
	job    fleet.Job
	guest  fleet.Guest
}

func newTheatre(t *testing.T) *theatre {
	if testing.Short() {
		t.Skip("contract ring: make test")
	}
	testkit.Leftovers(t)
	testkit.Root(t, "qemu-system-x86_64", "ganesha.nfsd")
	grantUserfault(t)
	digest := fleet.Digest(filepath.Base(testkit.Image(t, imageName)))
	dir, err := os.MkdirTemp("/tmp", "pga-") // short, for the sockets in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	guestAgent := filepath.Join(dir, "pagurus-guest")
	build := exec.Command("go", "build", "-o", guestAgent, "pagurus/cmd/pagurus-guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	export := filepath.Join(dir, "home")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(export, 0o755), os.Chown(export, 1000, 1000)); err != nil {
		t.Fatal(err)
	}
	d := &director{
		t: t, wanted: map[fleet.HostID]fleet.Wanted{}, tasks: map[fleet.HostID]map[string]fleet.Task{},
		sessions: map[fleet.HostID]*wire.HostSession{}, facts: map[fleet.HostID]fleet.Facts{},
		reports: make(chan fleet.Report, 100), streams: map[string][]byte{}, ended: map[string]bool{},
	}
	th := &theatre{director: d, hosts: testkit.Hosts(t, 2)}
	th.job = fleet.Job{ID: "j1", Subnet: 3, Spec: fleet.JobSpec{
		Export: export, Dir: export, UID: 1000, GID: 1000, Ranks: 1, Guests: 1, Kind: fleet.VM,
	}}
	th.guest = fleet.Guest{ID: "j1g0", Job: "j1", Kind: fleet.VM, Image: digest, CPU: testkit.VirtualCPU(), Need: fleet.Resources{CPUs: 1, MemoryBytes: 256 << 20}}
	socket := filepath.Join(dir, "c.sock")
	listener, err := wire.ListenUnix(socket)
	if err != nil {
		t.Fatal(err)
	}
	for i, h := range th.hosts {
		id := fleet.HostID(fmt.Sprintf("host%d", i+1))
		d.tasks[id] = map[string]fleet.Task{}
		th.config = append(th.config, hostConfig{
			Host: id, Run: filepath.Join(dir, string(id)), Address: h.Addr, Controller: socket, GuestAgent: guestAgent,
		})
		th.agents = append(th.agents, nil)
	}
	th.wanted["host1"], th.wanted["host2"] = th.network("host1"), fleet.Wanted{Cluster: "test", Revision: 1}
	th.serve(listener)
	for i := range th.hosts {
		th.start(i)
	}
	return th
}

func (th *theatre) serve(l net.Listener) {
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() {
		over <- wire.Serve(ctx, wire.ServeConfig{Listeners: []net.Listener{l}, Controller: th.director, Streams: th.director,
			Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	}()
	th.t.Cleanup(func() {
		cancel()
		if err := <-over; err != nil {
			th.t.Error(err)
		}
	})
}

// start starts or restarts an agent on a host, with faults if wanted.
func (th *theatre) start(i int, faults ...string) {
	text, err := json.Marshal(th.config[i])
	if err != nil {
		th.t.Fatal(err)
	}
	cmd := th.hosts[i].Command(context.Background(), "/proc/self/exe")
	cmd.Args[len(cmd.Args)-1] = os.Args[0]
	cmd.Env = append(os.Environ(), asAgent+"="+string(text), fault.Environment+"="+strings.Join(faults, ","))
	cmd.Stderr = th.t.Output()
	if err := cmd.Start(); err != nil {
		th.t.Fatal(err)
	}
	th.agents[i] = cmd
}

// move moves the guest from a host to the other. before is called with each order and can
// inject a fault into the host.
func (th *theatre) move(from int, n uint64, mode fleet.Mode, before func(o fleet.Order, host int) (after func())) {
	source, target := th.config[from].Host, th.config[1-from].Host
	gen := n
	listen := ""
	do := func(verb fleet.Verb, host int) fleet.Report {
		t := th.task(verb, th.config[host].Host, gen)
		t.Order.Peer = th.config[1-host].Host
		t.Order.Migration, t.Listen, t.Limits.Mode = fleet.MigrationID(fmt.Sprintf("m%d.j1g0", n)), listen, mode
		after := before(t.Order, host)
		th.send(t)
		after()
		r := th.expect(t.Order, orderLimit)
		if r.Outcome != fleet.Done {
			th.t.Fatalf("%s: %s: %s", verb, r.Outcome, r.Cause)
		}
		return r
	}
	th.want(target, th.network(source, target))
	listen = do(fleet.Receive, 1-from).Listen
	do(fleet.Copy, from)
	gen++
	th.forget(source) // watch and run no longer stand for it
	th.want(source, th.network(target, source))
	th.want(target, th.network(target, target))
	do(fleet.Switch, from)
	do(fleet.Activate, 1-from)
	if mode == fleet.PostCopy {
		do(fleet.Fetch, 1-from)
	}
	do(fleet.Retire, from)
	th.send(th.task(fleet.Watch, target, gen))
	th.send(th.task(fleet.Run, target, gen))
}

// kill kills an agent.
func (th *theatre) kill(i int) {
	_ = th.agents[i].Process.Kill() // it may have ended by itself, which Wait reports
	_ = th.agents[i].Wait()
}

// clear lets the agents remove everything from the hosts, and ends them. It is deferred,
// because testkit's clean-ups would kill the agents first.
func (th *theatre) clear() {
	for _, c := range th.config {
		if b, err := os.ReadFile(filepath.Join(c.Run, "guests/j1g0/console.log")); th.t.Failed() && err == nil {
			th.t.Logf("the console on %s:\n%s", c.Host, b)
		}
	}
	for _, c := range th.config {
		th.want(c.Host, fleet.Wanted{})
	}
	var left []string
	for end := time.Now().Add(clearLimit); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		left, _ = filepath.Glob(filepath.Join(filepath.Dir(th.config[0].Run), "host*", "*", "j1*"))
		// What it did, and what is left of guests that ended by themselves, is kept.
		left = slices.DeleteFunc(left, func(path string) bool { return strings.Contains(path, "/ledger/") || strings.Contains(path, "/ended/") })
		if len(left) == 0 {
			break
		}
	}
	if len(left) > 0 {
		th.t.Errorf("the agents have not cleared their hosts: %q", left)
	}
	for i, cmd := range th.agents {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself, which Wait reports
		if err := cmd.Wait(); err != nil {
			th.t.Errorf("the agent of host%d: %v", i+1, err)
		}
	}
}

// network is what is wanted on a host while the guest is at home.
func (th *theatre) network(home fleet.HostID, on ...fleet.HostID) fleet.Wanted {
	s := th.job.Subnet
	addr := map[fleet.HostID]string{"host1": th.hosts[0].Addr.String(), "host2": th.hosts[1].Addr.String()}
	n := fleet.Network{Job: "j1", Subnet: s,
		Endpoints: []fleet.Endpoint{
			{Addr: s.GuestAddr(0), MAC: s.GuestMAC(0), Host: home, VTEP: addr[home], Guest: "j1g0"},
			{Addr: s.ShareAddr(), MAC: s.ShareMAC(), Host: "host1", VTEP: addr["host1"]},
		},
		Ports: []fleet.Port{{Guest: "j1g0", Index: 0, MAC: s.GuestMAC(0)}},
	}
	if len(on) == 0 || on[0] == "host1" {
		n.Share = &fleet.Share{Export: th.job.Spec.Export, UID: 1000, GID: 1000}
	}
	return fleet.Wanted{Cluster: "test", Revision: 1, Networks: []fleet.Network{n}, Guests: []fleet.GuestID{"j1g0"}}
}

func (th *theatre) task(verb fleet.Verb, host fleet.HostID, gen uint64) fleet.Task {
	t := fleet.Task{
		Order: fleet.Order{Verb: verb, Host: host, Job: "j1", Guest: "j1g0", Gen: gen},
		Guest: th.guest, Job: th.job,
	}
	return t
}

// residentBytes is an agent's memory.
func (th *theatre) residentBytes(i int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", th.agents[i].Process.Pid))
	if err != nil {
		th.t.Fatal(err)
	}
	_, after, _ := bytes.Cut(b, []byte("VmRSS:"))
	kib, err := strconv.Atoi(strings.Fields(string(after))[0])
	if err != nil {
		th.t.Fatal(err)
	}
	return kib << 10
}

// program writes until there is a file "enough".
const program = `read x; echo "got $x"
i=0; until [ $((i%10)) = 0 ] && [ -e enough ]; do echo "line $i"; i=$((i+1)); [ $((i%10)) = 0 ] && sleep 0.2; done
cat input > output; echo bye >&2; exit 7`

func TestJobOutlivesMoveAndAgents(t *testing.T) {
	th := newTheatre(t)
	defer th.clear()
	th.job.Spec.Args = []string{"sh", "-c", program}
	put := func(name string) {
		if err := os.WriteFile(filepath.Join(th.job.Spec.Export, name), []byte("a file"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("input")
	th.streams[fleet.Stdin], th.ended[fleet.Stdin] = []byte("words\n"), true
	th.do(th.task(fleet.Start, "host1", 1), bootLimit)
	th.send(th.task(fleet.Watch, "host1", 1))
	th.send(th.task(fleet.Run, "host1", 1))
	lines := func(n int) func() bool {
		return func() bool { return strings.Count(th.stream(fleet.Stdout), "\n") > n }
	}
	testkit.Until(t, orderLimit, "the program writes", lines(30))
	th.kill(0)
	th.start(0)
	testkit.Until(t, orderLimit, "the next agent goes on", lines(90))

	th.move(0, 1, fleet.PreCopy, func(fleet.Order, int) func() { return func() {} })
	run := th.task(fleet.Run, "host2", 2)
	before := strings.Count(th.stream(fleet.Stdout), "\n")
	testkit.Until(t, orderLimit, "the program writes from where it is now", lines(before+30))
	th.kill(1)
	th.start(1)
	put("enough")
	exit := th.expect(run.Order, orderLimit)
	if exit.Exit == nil || exit.Exit.Code != 7 {
		t.Errorf("the program ended with %+v", exit)
	}
	var want strings.Builder
	want.WriteString("got words\n")
	for i := range strings.Count(th.stream(fleet.Stdout), "\n") - 1 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	if got := th.stream(fleet.Stdout); got != want.String() {
		t.Errorf("stdout is not what was written: %d bytes, want %d", len(got), want.Len())
	}
	if got := th.stream(fleet.Stderr); got != "bye\n" || !th.ended[fleet.Stderr] || !th.ended[fleet.Stdout] {
		t.Errorf("stderr %q", got)
	}
	if b, err := os.ReadFile(filepath.Join(th.job.Spec.Export, "output")); string(b) != "a file" {
		t.Errorf("the file that the program wrote: %q, %v", b, err)
	}
	const most = 40 << 20
	if n := th.residentBytes(1); n > most {
		t.Errorf("the agent takes %d MiB", n>>20)
	} else {
		t.Logf("the agent takes %.1f MiB", float64(n)/(1<<20))
	}
	th.do(th.task(fleet.Stop, "host2", 2), orderLimit)
}

// dies kills the guest on host1 and expects its report.
func (th *theatre) dies(gen uint64) {
	b, err := os.ReadFile(filepath.Join(th.config[0].Run, "guests/j1g0/guest.json"))
	if err != nil {
		th.t.Fatal(err)
	}
	var r struct{ Process struct{ PID int } }
	if err := json.Unmarshal(b, &r); err != nil || r.Process.PID <= 1 {
		th.t.Fatalf("guest.json: %v\n%s", err, b)
	}
	if err := syscall.Kill(r.Process.PID, syscall.SIGKILL); err != nil {
		th.t.Fatal(err)
	}
	rep := th.expect(th.task(fleet.Watch, "host1", gen).Order, orderLimit)
	if rep.Outcome != fleet.Done || !strings.Contains(rep.Cause, "ended by itself on host1") {
		th.t.Errorf("report %+v", rep)
	}
	th.t.Log(rep.Cause)
	th.do(th.task(fleet.Stop, "host1", gen), orderLimit)
}

// An agent may die before, during and after a move's orders. The next one gets the same
// orders and reaches the same result. At the end the guest dies, too. The system ring tests
// all orders of pre-copy moves with a real controller; here a real machine carries them out.
func TestMoveSurvivesTheDeathOfAgents(t *testing.T) {
	th := newTheatre(t)
	defer th.clear()
	th.job.Spec.Args = []string{"sh", "-c", `i=0; while :; do echo $i; i=$((i+1)); sleep 0.05; done`}
	th.do(th.task(fleet.Start, "host1", 1), bootLimit)
	th.send(th.task(fleet.Watch, "host1", 1))
	th.send(th.task(fleet.Run, "host1", 1))
	n := uint64(0)
	die := func(mode fleet.Mode, verb fleet.Verb, place string) {
		point := fmt.Sprintf("agent.%s.%s", verb, place)
		n++
		th.move(int(n-1)%2, n, mode, func(o fleet.Order, host int) func() {
			if o.Verb != verb {
				return func() {}
			}
			th.kill(host)
			th.start(host, point+"=kill")
			return func() {
				if err := th.agents[host].Wait(); err == nil || th.agents[host].ProcessState.ExitCode() != 137 {
					t.Fatalf("at %s the agent ended with: %v", point, err)
				}
				th.start(host)
			}
		})
		lines := strings.Count(th.stream(fleet.Stdout), "\n")
		testkit.Until(t, orderLimit, "the program goes on after "+point, func() bool {
			return strings.Count(th.stream(fleet.Stdout), "\n") > lines+3
		})
	}
	for _, verb := range []fleet.Verb{fleet.Receive, fleet.Copy, fleet.Switch, fleet.Retire} {
		die(fleet.PreCopy, verb, "recorded")
	}
	for _, at := range []struct {
		verb  fleet.Verb
		place string
	}{{fleet.Switch, "after"}, {fleet.Activate, "before"}, {fleet.Fetch, "before"}, {fleet.Fetch, "after"}, {fleet.Fetch, "recorded"}, {fleet.Retire, "before"}} {
		die(fleet.PostCopy, at.verb, at.place)
	}
	for i, line := range strings.Split(strings.TrimSpace(th.stream(fleet.Stdout)), "\n") {
		if line != strconv.Itoa(i) {
			t.Fatalf("line %d is %q", i, line)
		}
	}
	th.dies(n + 1)
}

// grantUserfault allows post-copy, as cmd/pagurus does.
func grantUserfault(t *testing.T) {
	before := qemu.UserfaultAccess()
	account, err := acthost.FindAccount("pagurus")
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
