package main

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"pagurus/decide/planner"
	"pagurus/fleet"
	"pagurus/serve/wire"
	"pagurus/show/cli"
)

// world is a controller that answers as the planner does, with an agent that obeys at once.
type world struct {
	wire.Controller
	wire.Streams
	wire.Forecasts

	mu      sync.Mutex
	s       fleet.Snapshot
	trouble string
	socket  string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	top := fleet.Topology{Nodes: []fleet.Node{{Cores: []fleet.Core{{CPUs: []int{0}}, {CPUs: []int{1}}, {CPUs: []int{2}}, {CPUs: []int{3}}}}}}
	w := &world{s: fleet.NewSnapshot(), socket: filepath.Join(t.TempDir(), "c.sock")}
	for id, q := range map[fleet.HostID]*fleet.Isolation{"host1": {}, "lab1": {Unable: "it is a lab's"}, "away": {}} {
		w.s.Hosts[id] = fleet.Host{ID: id, State: fleet.HostUp, Facts: fleet.Facts{SeenAt: time.Now(), Connected: id != "away", Topology: &top, Isolation: q}}
	}
	l, err := wire.ListenUnix(w.socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		if err := wire.Serve(ctx, wire.ServeConfig{Listeners: []net.Listener{l}, Controller: w, Streams: w, Forecasts: w, Machine: "m", Log: slog.New(slog.DiscardHandler)}); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { stop(); <-over })
	return w
}

func (w *world) Snapshot(context.Context) (fleet.Snapshot, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.s, nil
}

func (w *world) Ask(_ context.Context, r fleet.Request) (fleet.Answer, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r.By.Admin = true
	d, err := new(planner.Planner).Step(w.s, r)
	if err != nil {
		return fleet.Answer{}, &wire.Error{Status: http.StatusUnprocessableEntity, Reason: err.Error()}
	}
	w.s = w.s.Apply(d.Change, w.s.Revision+1)
	for _, h := range d.Change.Hosts {
		if h.Facts = w.s.Hosts[h.ID].Facts; h.Facts.Connected && h.Facts.Isolation.Unable == "" {
			h.Facts.Isolation = &fleet.Isolation{Wanted: h.IsolatedCPUs, CPUs: h.IsolatedCPUs, Changed: 3 * len(h.IsolatedCPUs), Trouble: w.trouble}
			if len(h.IsolatedCPUs) > 0 {
				h.Facts.Isolation.Left = []string{"the tick: why"}
			}
		}
		w.s = w.s.Apply(fleet.Changeset{Hosts: []fleet.Host{h}}, w.s.Revision+1)
	}
	return d.Answer, nil
}

// typed gives a command's output and messages.
func (w *world) typed(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	root := cli.Root(cli.Options{In: &bytes.Buffer{}, Out: &out, Err: &out})
	root.AddCommand(isolateCommand(&out, func(s string) { out.WriteString("said: " + s + "\n") }))
	root.SetArgs(append([]string{"--controller", "unix:" + w.socket}, args...))
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

func TestIsolate(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct{ line, want string }{
		{"isolate host1", "no CPU of host1 is isolated"},
		{"isolate host1 on", "CPUs 1-3 of host1 are isolated: 9 settings differ until `pagurus isolate host1 off`\nleft alone: the tick: why\n"},
		{"isolate host1 on --cores 2,3", "CPUs 2-3 of host1"},
		{"isolate host1", "CPUs 2-3 of host1"},
		{"isolate host1 off", "no CPU of host1 is isolated"},
		{"isolate host1 off", "no CPU of host1 is isolated"},
		{"isolate lab1", "none can be: it is a lab's"},
		{"isolate lab1 off", "none can be: it is a lab's"},
		{"isolate away on", "said: the agent of away is not connected"},
	} {
		if got, err := w.typed(t, strings.Fields(c.line)...); err != nil || !strings.Contains(got, c.want) {
			t.Errorf("%s: %v\n%s", c.line, err, got)
		}
	}
	got, err := w.typed(t, "isolate", "host1", "on", "--json")
	var q fleet.Isolation
	if jerr := json.Unmarshal([]byte(got), &q); err != nil || jerr != nil || q.CPUs.String() != "1-3" || len(q.Left) != 1 {
		t.Errorf("%v, %v: %s", err, jerr, got)
	}
	w.trouble = "it broke"
	if got, err := w.typed(t, "isolate", "host1", "off"); err == nil || !strings.Contains(got, "not isolated as requested: it broke") {
		t.Errorf("%v: %s", err, got)
	}
}

func TestCPUsThatMakeNoSense(t *testing.T) {
	w := newWorld(t)
	for line, says := range map[string]string{
		"isolate": "one host", "isolate host1 maybe": "on or off", "isolate host1 on off": "on or off", "isolate none on": "no host none",
		"isolate host1 on --cores x": "not a list of CPUs", "isolate host1 on --cores 3-1": "not a list", "isolate host1 on --cores=": "names no CPU",
		"isolate host1 on --cores 0-3": "all CPUs of host1", "isolate host1 on --cores 9": "no CPU 9", "isolate host1 off --cores 1": "goes only with on",
		"isolate host1 --cores 1": "goes only with on", "isolate lab1 on": "it is a lab's",
	} {
		if got, err := w.typed(t, strings.Fields(line)...); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v\n%s", line, err, got)
		}
	}
	for _, h := range w.s.Hosts {
		if len(h.IsolatedCPUs) > 0 {
			t.Errorf("%s has %s", h.ID, h.IsolatedCPUs)
		}
	}
}

func TestCompletion(t *testing.T) {
	w := newWorld(t)
	for line, want := range map[string]string{"": "away\tup, 0 guests\nhost1\tup, 0 guests\nlab1\tup, 0 guests\n", "host1": "on\tisolate CPUs for guests\noff\tput everything back\n", "host1 on": ""} {
		got, err := w.typed(t, append(append([]string{cobra.ShellCompRequestCmd, "isolate"}, strings.Fields(line)...), "")...)
		if err != nil || !strings.HasPrefix(got, want+":4") {
			t.Errorf("%q: %v\n%s", line, err, got)
		}
	}
}
