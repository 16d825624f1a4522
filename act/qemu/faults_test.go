package qemu_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/qemu"
	"pagurus/fleet"
	"pagurus/internal/fault"
	"pagurus/serve/agent"
	"pagurus/serve/agent/drivertest"
)

// stepVariable makes a copy of the test binary take one step as a separate agent, which a
// fault point may kill.
const stepVariable = "PAGURUS_QEMU_TEST_STEP"

// step is one call of a driver.
type step struct {
	Verb  fleet.Verb
	Host  int
	Hosts [2]host
	Image string
	Agent string
	Task  fleet.Task

	Snapshots int
	Folder    string // of a checkpoint
}

// The exit statuses of a step; a killed step has its own.
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
	w := world{hosts: s.Hosts, image: s.Image, agent: s.Agent, snapshots: s.Snapshots}
	d, err := qemu.Open(ctx, w.config(os.Stderr, s.Host))
	if err == nil {
		if checkpoints, is := checkpointSteps[s.Verb]; is {
			err = checkpoints(ctx, d, s.Task, s.Folder)
		} else {
			_, err = carryOut(ctx, d, s.Verb, s.Task)
		}
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

func carryOut(ctx context.Context, d *qemu.Driver, verb fleet.Verb, t fleet.Task) (listen string, err error) {
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
	}
	return listen, err
}

// apart takes a step in a separate process, with a fault.
func (w *world) apart(t *testing.T, host int, verb fleet.Verb, tk fleet.Task, faults string) int {
	t.Helper()
	text, err := json.Marshal(step{Verb: verb, Host: host, Hosts: w.hosts, Image: w.image, Agent: w.agent, Task: tk, Snapshots: w.snapshots, Folder: w.folder})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), stepVariable+"="+string(text), fault.Environment+"="+faults)
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	t.Logf("%s on host %d under %q: %s", verb, host, faults, bytes.TrimSpace(out))
	return cmd.ProcessState.ExitCode()
}

// TestAgentKilled kills the agent at every point of every step. Another agent then
// repeats the step, and the guest must not notice.
func TestAgentKilled(t *testing.T) {
	for _, mode := range []fleet.Mode{fleet.PreCopy, fleet.PostCopy} {
		t.Run(string(mode), func(t *testing.T) { agentKilled(t, mode) })
	}
}

func agentKilled(t *testing.T, mode fleet.Mode) {
	w := newWorld(t)
	tk := task("j1g0")
	tk.Limits = fleet.Limits{Mode: mode, Preempt: mode == fleet.PostCopy}
	tk.Order.Migration = "m1.j1g0"
	defer func() {
		for host := range w.hosts {
			d := w.open(t, host)
			d.Stop(context.Background(), tk.Guest.ID)
			d.Close()
			for _, what := range w.left(t, host, tk.Guest.ID) {
				t.Errorf("left behind on host %d: %s", host, what)
			}
		}
	}()
	for _, s := range []struct {
		host   int
		verb   fleet.Verb
		points []string
	}{
		{0, fleet.Start, []string{"qemu.start.after-spawn"}},
		{1, fleet.Receive, []string{"qemu.start.after-spawn", "qemu.receive.after-listen"}},
		{0, fleet.Copy, []string{"qemu.copy.after-begin"}},
		{0, fleet.Switch, []string{"qemu.switch.before-continue", "qemu.switch.after-continue"}},
		{1, fleet.Activate, []string{"qemu.resume.before"}},
		{1, fleet.Fetch, []string{"qemu.fetch.before"}},
		{0, fleet.Stop, []string{"qemu.stop.before"}},
	} {
		// Only while a copy begins the other host's agent is needed: it gives the connection to QEMU.
		var beside *qemu.Driver
		if s.verb == fleet.Copy {
			beside = w.open(t, 1)
		}
		for _, point := range s.points {
			code := w.apart(t, s.host, s.verb, tk, point+"=kill")
			// A guest that had nothing left to copy is already past the gate.
			if code != stepKilled {
				t.Fatalf("%s under a kill at %s ended with %d", s.verb, point, code)
			}
		}
		d := w.open(t, s.host)
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
		d.Close()
		if beside != nil {
			beside.Close()
		}
	}
	d := w.open(t, 1)
	defer d.Close()
	drivertest.Healthy(t, d, tk.Guest.ID)
}

// TestFaults: a step that fails at a point reports correctly whether it may have had an
// effect, and the guest can go on.
func TestFaults(t *testing.T) {
	w := newWorld(t)
	tk := task("j1g0")
	source, target := w.open(t, 0), w.open(t, 1)
	defer func() { // both are reopened below
		for _, d := range []*qemu.Driver{source, target} {
			if err := d.Stop(context.Background(), tk.Guest.ID); err != nil {
				t.Error(err)
			}
			d.Close()
		}
	}()
	reopen := func() {
		source.Close()
		target.Close()
		source, target = w.open(t, 0), w.open(t, 1)
	}
	bare := *w
	bare.snapshots = 0 // otherwise the existing one is blamed and removed
	for host, verb := range map[int]fleet.Verb{0: fleet.Start, 1: fleet.Receive} {
		if code := bare.apart(t, host, verb, tk, "qemu.start.after-spawn=error"); code != stepFailed {
			t.Errorf("%s that fails ends with %d", verb, code)
		}
		if left := w.left(t, host, tk.Guest.ID); len(left) > 0 {
			t.Errorf("a %s that failed left %v", verb, left)
		}
	}
	if err := source.Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	drivertest.Healthy(t, source, tk.Guest.ID)
	for i, c := range []struct {
		verb  fleet.Verb
		point string
		want  int
		mode  fleet.Mode
	}{
		{fleet.Copy, "qemu.copy.after-begin", stepFailed, fleet.PreCopy},
		{fleet.Switch, "qemu.switch.before-continue", stepUnsure, fleet.PreCopy},
		{fleet.Switch, "qemu.switch.before-continue", stepUnsure, fleet.PostCopy},
	} {
		tk.Order.Migration = fleet.MigrationID(fmt.Sprintf("m%d.j1g0", i))
		tk.Limits = fleet.Limits{Mode: c.mode, Preempt: c.mode == fleet.PostCopy}
		listen, err := target.Receive(t.Context(), tk)
		if err != nil {
			t.Fatal(err)
		}
		tk.Listen = listen
		if c.verb == fleet.Switch {
			if err := source.Copy(t.Context(), tk, func(fleet.Progress) {}); err != nil {
				t.Fatal(err)
			}
		}
		source.Close()
		if code := w.apart(t, 0, c.verb, tk, c.point+"=error"); code != c.want {
			t.Errorf("%s that fails at %s ends with %d, want %d", c.verb, c.point, code, c.want)
		}
		reopen()
		if err := source.Resume(t.Context(), tk.Guest.ID); err != nil {
			t.Errorf("resume after %s: %v", c.point, err)
		}
		if err := target.Stop(t.Context(), tk.Guest.ID); err != nil {
			t.Error(err)
		}
		drivertest.Healthy(t, source, tk.Guest.ID)
	}
}

// TestTargetEndsAsPostCopyBegins: the guest goes on at the source, or the source reports
// that no host has it. The outcome must become known. The target is killed a moment later
// each time, so that both happen.
func TestTargetEndsAsPostCopyBegins(t *testing.T) {
	targetEnds(t, fleet.Limits{Mode: fleet.PostCopy, Preempt: true})
}

// TestTargetEndsAsTheCompressedRestIsSent: QEMU does not wait for the target for ever.
func TestTargetEndsAsTheCompressedRestIsSent(t *testing.T) {
	targetEnds(t, fleet.Limits{Compress: fleet.CompressOn})
}

// targetEnds kills targets during the switch, each a little later.
func targetEnds(t *testing.T, l fleet.Limits) {
	w := newWorld(t)
	source, target := w.open(t, 0), w.open(t, 1)
	defer source.Close()
	defer target.Close()
	for try := range 3 {
		tk := task(fleet.GuestID(fmt.Sprintf("j%dg0", try+1)))
		tk.Order.Migration = fleet.MigrationID(fmt.Sprintf("m%d.%s", try, tk.Guest.ID))
		tk.Limits = l
		if err := source.Start(t.Context(), tk); err != nil {
			t.Fatal(err)
		}
		drivertest.Healthy(t, source, tk.Guest.ID)
		var err error
		if tk.Listen, err = target.Receive(t.Context(), tk); err != nil {
			t.Fatal(err)
		}
		if err := source.Copy(t.Context(), tk, func(fleet.Progress) {}); err != nil {
			t.Fatal(err)
		}
		pid := w.process(t, 1, tk.Guest.ID)
		ctx, over := context.WithCancel(t.Context())
		killed := make(chan struct{})
		go func() {
			defer close(killed)
			for ctx.Err() == nil {
				if facts, err := source.Inspect(ctx); err == nil && facts[tk.Guest.ID].Run == fleet.Suspended {
					time.Sleep(time.Duration(try) * 6 * time.Millisecond)
					unix.Kill(pid, unix.SIGKILL) // it is certainly that process: it ends below
					return
				}
			}
		}()
		_, err = source.Switch(t.Context(), tk, func(bool) {})
		over()
		<-killed
		for begun := time.Now(); errors.Is(err, fleet.ErrUnsure) && l.Mode != fleet.PostCopy; time.Sleep(100 * time.Millisecond) {
			if time.Since(begun) > 20*time.Second {
				t.Fatalf("try %d: nobody knows what became of it: %v", try, err)
			}
			_, err = source.Switch(t.Context(), tk, func(bool) {})
		}
		switch {
		case err == nil || errors.Is(err, fleet.ErrUnsure):
			t.Logf("try %d: it had left already: %v", try, err)
		case source.Resume(t.Context(), tk.Guest.ID) == nil:
			t.Logf("try %d: it goes on, after: %v", try, err)
			drivertest.Healthy(t, source, tk.Guest.ID)
		default:
			t.Logf("try %d: it is gone: %v", try, err)
			if l.Mode != fleet.PostCopy || !strings.Contains(err.Error(), "cannot let it run again") {
				t.Errorf("try %d: it does not go on, and nothing says why: %v", try, err)
			}
		}
		for _, d := range []*qemu.Driver{source, target} {
			if err := d.Stop(t.Context(), tk.Guest.ID); err != nil {
				t.Error(err)
			}
		}
	}
}
