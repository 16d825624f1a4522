package container_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/container"
	acthost "pagurus/act/host"
	"pagurus/fleet"
	"pagurus/internal/fault"
	"pagurus/internal/testkit"
	"pagurus/serve/agent"
	"pagurus/serve/agent/drivertest"
)

// stepVariable makes a copy of the test binary execute one step as an agent of its own, which a
// fault point may kill.
const stepVariable = "PAGURUS_CONTAINER_TEST_STEP"

// step is one call of a driver. Hold keeps the agent there until the standard input ends.
type step struct {
	Verb  fleet.Verb
	Host  int
	Hosts [2]host
	Image string
	Agent string
	Files string
	Task  fleet.Task
}

// The exit statuses of a step. A killed step has its own.
const (
	stepDone   = 0
	stepFailed = 3
	stepUnsure = 4
	stepKilled = 137
)

func takeStep(text string) int {
	var s step
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		fmt.Println(err)
		return stepFailed
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	w := world{hosts: s.Hosts, image: s.Image, agent: s.Agent, files: s.Files}
	var d *container.Driver
	c, err := w.config(os.Stderr, s.Host)
	if err == nil {
		d, err = container.Open(ctx, c)
	}
	if err == nil {
		if s.Verb == fleet.Watch {
			fmt.Println("here")
			io.Copy(io.Discard, os.Stdin)
		}
		_, err = carryOut(ctx, d, s.Verb, s.Task)
		d.Close()
	}
	switch {
	case errors.Is(err, agent.ErrUnsure):
		fmt.Println(err)
		return stepUnsure
	case err != nil:
		fmt.Println(err)
		return stepFailed
	}
	return stepDone
}

func carryOut(ctx context.Context, d *container.Driver, verb fleet.Verb, t fleet.Task) (listen string, err error) {
	switch verb {
	case fleet.Start:
		err = d.Start(ctx, t)
	case fleet.Receive:
		listen, err = d.Receive(ctx, t)
	case fleet.Copy:
		err = d.Copy(ctx, t, func(fleet.Progress) {})
	case fleet.Switch:
		_, err = d.Switch(ctx, t, func(bool) {})
	case fleet.Activate, fleet.Revert:
		err = d.Resume(ctx, t.Guest.ID)
	case fleet.Fetch:
		err = d.FetchRemaining(ctx, t.Guest.ID)
	case fleet.Stop:
		err = d.Stop(ctx, t.Guest.ID)
	case savingVerb:
		err = saveOne(ctx, d, t.Guest.ID, t.Listen)
	case restoringVerb:
		err = d.Restore(ctx, t, t.Listen)
	}
	return listen, err
}

// stepper prepares a step in a process of its own, with a fault.
func (w *world) stepper(t *testing.T, i int, verb fleet.Verb, tk fleet.Task, faults string) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(step{Verb: verb, Host: i, Hosts: w.hosts, Image: w.image, Agent: w.agent, Files: w.files, Task: tk})
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := w.hosts[i].net.Command(t.Context(), self)
	cmd.Env = append(os.Environ(), stepVariable+"="+string(text), fault.Environment+"="+faults)
	return cmd
}

// apart executes a step in a process of its own, with a fault, to its end.
func (w *world) apart(t *testing.T, i int, verb fleet.Verb, tk fleet.Task, faults string) int {
	t.Helper()
	cmd := w.stepper(t, i, verb, tk, faults)
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	t.Logf("%s on host %d under %q: %s", verb, i, faults, bytes.TrimSpace(out))
	return cmd.ProcessState.ExitCode()
}

// agentApart is an agent of its own on a host, until it ends or is released.
type agentApart struct {
	cmd *exec.Cmd
	in  io.Closer
}

func (w *world) agentAt(t *testing.T, i int, faults string) *agentApart {
	t.Helper()
	cmd := w.stepper(t, i, fleet.Watch, fleet.Task{}, faults)
	cmd.Stderr = t.Output()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if n, err := out.Read(make([]byte, 16)); n == 0 {
		t.Fatalf("the agent did not come up: %v", err)
	}
	return &agentApart{cmd, in}
}

func (a *agentApart) end() int {
	a.in.Close()
	a.cmd.Wait()
	return a.cmd.ProcessState.ExitCode()
}

// TestAgentKilled kills the source's or the target's agent at every point of every step. Another
// agent then repeats the step, and the guest must not notice.
func TestAgentKilled(t *testing.T) {
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) { agentKilled(t, mode) })
	}
}

// modes lists the ways in which the guests of these tests move.
var modes = []fleet.Mode{fleet.PreCopy, fleet.PostCopy}

func agentKilled(t *testing.T, mode fleet.Mode) {
	w := newWorld(t)
	tk := task("j1g0")
	tk.Order.Migration, tk.Limits.Mode = "m1.j1g0", mode
	defer w.sweep(t, tk.Guest.ID)
	target := w.open(t, 1) // it exists when the source's steps need it
	defer func() { target.Close() }()
	for _, s := range []struct {
		host   int
		verb   fleet.Verb
		points []string
	}{
		{0, fleet.Start, []string{"container.start.after-spawn"}},
		{1, fleet.Receive, []string{"container.receive.after-cut", "container.start.after-spawn", "container.receive.after-listen"}},
		{0, fleet.Copy, []string{"container.copy.after-begin"}},
		{0, fleet.Switch, []string{"container.switch.after-freeze", "container.switch.after-dump", "container.switch.after-ask"}},
		{1, fleet.Activate, []string{"container.resume.before"}},
		{1, fleet.Fetch, []string{"container.fetch.before"}},
		{0, fleet.Stop, []string{"container.stop.before", "container.stop.after-kill"}},
	} {
		for _, point := range s.points {
			if s.host == 1 {
				target.Close()
			}
			code := w.apart(t, s.host, s.verb, tk, point+"=kill")
			if s.host == 1 {
				target = w.open(t, 1)
			}
			if code != stepKilled {
				t.Fatalf("%s under a kill at %s ended with %d", s.verb, point, code)
			}
		}
		d := target
		if s.host == 0 {
			d = w.open(t, 0)
		}
		listen, err := carryOut(t.Context(), d, s.verb, tk)
		if err != nil {
			t.Fatalf("%s after its agents were killed: %v", s.verb, err)
		}
		if s.verb == fleet.Receive {
			tk.Listen = listen
		}
		if s.verb == fleet.Start {
			drivertest.Healthy(t, d, tk.Guest.ID)
		}
		if s.host == 0 {
			d.Close()
		}
	}
	drivertest.Healthy(t, target, tk.Guest.ID)
}

// sweep stops the guest on both hosts and checks that nothing is left.
func (w *world) sweep(t *testing.T, id fleet.GuestID) {
	t.Helper()
	for i := range w.hosts {
		d := w.open(t, i)
		if err := d.Stop(context.Background(), id); err != nil {
			t.Error(err)
		}
		d.Close()
	}
	for i := range w.hosts {
		for _, what := range w.left(t, i, id) {
			t.Errorf("left behind on host %d: %s", i, what)
		}
	}
}

// received makes an agent, which then ends, receive a guest, and returns where the next one
// listens.
func (w *world) received(t *testing.T, i int, tk fleet.Task) string {
	t.Helper()
	d := w.open(t, i)
	defer d.Close()
	listen, err := d.Receive(t.Context(), tk)
	if err != nil {
		t.Fatal(err)
	}
	return listen
}

// TestSwitchFails: a switch that fails at a point reports correctly whether the target may have
// the guest, and the guest continues where it is.
func TestSwitchFails(t *testing.T) {
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) { switchFails(t, mode) })
	}
}

func switchFails(t *testing.T, mode fleet.Mode) {
	w := newWorld(t)
	tk := task("j1g0")
	tk.Limits.Mode = mode
	source := w.open(t, 0)
	defer w.sweep(t, tk.Guest.ID)
	defer func() { source.Close() }()
	if err := source.Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	drivertest.Healthy(t, source, tk.Guest.ID)
	for i, c := range []struct {
		where string // source or target, or the target's agent and the next
		point string
		want  int
		again int // the result of repeating the same order
	}{
		{"source", "container.switch.after-freeze=error", stepFailed, stepFailed},
		{"source", "container.switch.after-dump=error", stepFailed, stepFailed},
		{"source", "container.switch.before-ask=error", stepUnsure, stepFailed},
		{"target", "container.restore.before-arrived=error", stepFailed, stepFailed},
		{"target", "container.restore.before-arrived=kill", stepUnsure, stepFailed},
		{"target", "container.restore.after-arrived=error", stepFailed, stepFailed},
		{"target", "container.restore.after-arrived=error,container.restore.refused=kill", stepUnsure, stepFailed},
	} {
		tk.Order.Migration = fleet.MigrationID(fmt.Sprintf("m%d.j1g0", i))
		tk.Listen = w.received(t, 1, tk)
		fault := map[string]string{c.where: c.point}
		there := w.agentAt(t, 1, fault["target"])
		if err := source.Copy(t.Context(), tk, func(fleet.Progress) {}); err != nil {
			t.Fatal(err)
		}
		source.Close()
		if code := w.apart(t, 0, fleet.Switch, tk, fault["source"]); code != c.want {
			t.Errorf("a switch under %s at the %s ends with %d, want %d", c.point, c.where, code, c.want)
		}
		there.end()
		target := w.open(t, 1)
		if code := w.apart(t, 0, fleet.Switch, tk, ""); code != c.again {
			t.Errorf("after %s at the %s another switch ends with %d, want %d", c.point, c.where, code, c.again)
		}
		source = w.open(t, 0)
		if err := target.Resume(t.Context(), tk.Guest.ID); err == nil {
			t.Fatalf("after %s the target runs a guest that has not arrived", c.point)
		}
		for range 2 {
			if err := source.Resume(t.Context(), tk.Guest.ID); err != nil {
				t.Fatalf("resume after %s: %v", c.point, err)
			}
		}
		if err := target.Stop(t.Context(), tk.Guest.ID); err != nil {
			t.Error(err)
		}
		target.Close()
		drivertest.Healthy(t, source, tk.Guest.ID)
	}
}

// TestKilledAsItArrives: the target's agent and CRIU are killed just after the agent recorded
// that the guest has arrived. The next agent lets the guest run.
func TestKilledAsItArrives(t *testing.T) {
	w := newWorld(t)
	tk := task("j1g0")
	defer w.sweep(t, tk.Guest.ID)
	here := w.open(t, 0)
	defer func() { here.Close() }()
	if err := here.Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	for n := range 6 {
		from, to := n%2, 1-n%2
		tk.Order.Migration, tk.Listen = fleet.MigrationID(fmt.Sprintf("m%d.j1g0", n)), ""
		tk.Listen = w.received(t, to, tk)
		dies := w.agentAt(t, to, "container.restore.after-arrived=kill")
		if err := here.Copy(t.Context(), tk, func(fleet.Progress) {}); err != nil {
			t.Fatal(err)
		}
		here.Close()
		if code := w.apart(t, from, fleet.Switch, tk, ""); code != stepUnsure {
			t.Errorf("a switch to an agent that dies ends with %d", code)
		}
		dies.end()
		there := w.open(t, to)
		if code := w.apart(t, from, fleet.Switch, tk, ""); code != stepDone {
			t.Errorf("another switch ends with %d", code)
		}
		if err := there.Resume(t.Context(), tk.Guest.ID); err != nil {
			t.Errorf("resume at the target: %v", err)
		}
		drivertest.Healthy(t, there, tk.Guest.ID)
		here = w.open(t, from)
		if err := here.Stop(t.Context(), tk.Guest.ID); err != nil {
			t.Error(err)
		}
		here.Close()
		here = there
	}
}

// TestArrivedAllTheSame: CRIU is killed after the guest's arrival was recorded. That record
// cannot be withdrawn, because there is no room. The guest runs at the target, and only there.
func TestArrivedAllTheSame(t *testing.T) {
	w := newWorld(t)
	tk := task("j1g0")
	tk.Order.Migration = "m1.j1g0"
	defer w.sweep(t, tk.Guest.ID)
	source := w.open(t, 0)
	defer func() { source.Close() }()
	if err := source.Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	tk.Listen = w.received(t, 1, tk)
	full := filepath.Join(t.TempDir(), "full")
	there := w.agentAt(t, 1, "container.restore.after-arrived=until:"+full)
	if err := source.Copy(t.Context(), tk, func(fleet.Progress) {}); err != nil {
		t.Fatal(err)
	}
	source.Close()
	folder := filepath.Join(w.hosts[1].Run, "containers", string(tk.Guest.ID))
	record := filepath.Join(folder, "guest.json")
	wait := testkit.Meanwhile(t, func() {
		until(t, func() bool {
			text, _ := os.ReadFile(record)
			return bytes.Contains(text, []byte(`"arrived": true`))
		})
		// A folder in its place cannot be replaced by a file.
		if err := errors.Join(os.Rename(record, record+".kept"), os.Mkdir(record, 0o700)); err != nil {
			t.Error(err)
		}
		killed := acthost.With("PAGURUS_IMAGES="+filepath.Join(folder, "images"), nil)
		for _, pid := range killed {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Error(err)
			}
		}
		if len(killed) == 0 {
			t.Error("there is no CRIU")
		}
		if err := os.WriteFile(full, nil, 0o600); err != nil {
			t.Error(err)
		}
	})
	if code := w.apart(t, 0, fleet.Switch, tk, ""); code != stepDone {
		t.Errorf("the switch ends with %d", code)
	}
	wait()
	there.end()
	if err := errors.Join(os.Remove(record), os.Rename(record+".kept", record)); err != nil {
		t.Fatal(err)
	}
	target := w.open(t, 1)
	defer target.Close()
	if err := target.Resume(t.Context(), tk.Guest.ID); err != nil {
		t.Fatal(err)
	}
	drivertest.Healthy(t, target, tk.Guest.ID)
	source = w.open(t, 0)
	if err := source.Resume(t.Context(), tk.Guest.ID); err == nil {
		t.Error("it runs at the source, too")
	}
}

// TestNetworkGone: an agent left a guest in the middle of a switch, and the guest's network has
// disappeared since. The next agent can use the host and end the guest.
func TestNetworkGone(t *testing.T) {
	w := newWorld(t)
	tk := task("j1g0")
	tk.Order.Migration = "m1.j1g0"
	defer w.sweep(t, tk.Guest.ID)
	source, target := w.open(t, 0), w.open(t, 1)
	if err := source.Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	listen, err := target.Receive(t.Context(), tk)
	if err != nil {
		t.Fatal(err)
	}
	tk.Listen = listen
	if err := source.Copy(t.Context(), tk, func(fleet.Progress) {}); err != nil {
		t.Fatal(err)
	}
	source.Close()
	if code := w.apart(t, 0, fleet.Switch, tk, "container.switch.after-dump=kill"); code != stepKilled {
		t.Fatalf("the switch ends with %d", code)
	}
	target.Close()
	for i := range w.hosts {
		w.hosts[i].net.Run("ip", "link", "del", subnet.TapName(0))
		d := w.reopen(t, i)
		if err := d.Stop(t.Context(), tk.Guest.ID); err != nil {
			t.Errorf("host %d: %v", i, err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}
