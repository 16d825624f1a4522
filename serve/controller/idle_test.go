package controller

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/serve/wire"
)

// TestIdle measures what a controller with three hosts and four guests takes
// when nothing happens. The agents are in a process of their own. The limits
// are far above what is measured alone (0.7 % of a core, 60 MiB), since others
// may use the machine too.
func TestIdle(t *testing.T) {
	if socket := os.Getenv("PAGURUS_TEST_AGENTS"); socket != "" {
		agentsFor(t, socket)
		return
	}
	if os.Getenv("PAGURUS_MEASURE") == "" {
		t.Skip("a measurement: set PAGURUS_MEASURE")
	}
	r := newRig(t)
	agents := exec.CommandContext(r.ctx, os.Args[0], "-test.run=^TestIdle$")
	agents.Env = append(os.Environ(), "PAGURUS_TEST_AGENTS="+r.socket)
	if err := agents.Start(); err != nil {
		t.Fatal(err)
	}
	defer agents.Wait()
	defer agents.Process.Kill()
	r.until("three hosts", func(s fleet.Snapshot) bool { return len(s.Hosts) == 3 })
	id := r.submit(4)
	r.until("the job to run", running(id))
	time.Sleep(3 * time.Second)
	const span = 20 * time.Second
	before := used(t)
	time.Sleep(span)
	alone := used(t) - before
	seen, err := r.client.Watch(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for range seen {
		}
	}()
	before = used(t)
	time.Sleep(span)
	t.Logf("idle: %.2f %% of a core, watched (watcher included): %.2f %%", percent(alone, span), percent(used(t)-before, span))
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "VmRSS") || strings.HasPrefix(line, "Rss") {
			t.Log(strings.TrimSpace(line))
		}
	}
}

func percent(d, of time.Duration) float64 { return 100 * float64(d) / float64(of) }

// used is the CPU time of this process.
func used(t *testing.T) time.Duration {
	b, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	var user, system int64
	fields := strings.Fields(string(b)[strings.LastIndexByte(string(b), ')')+2:])
	fmt.Sscan(fields[11], &user)
	fmt.Sscan(fields[12], &system)
	return time.Duration(user+system) * 10 * time.Millisecond
}

func agentsFor(t *testing.T, socket string) {
	client, err := wire.Dial(wire.Config{Address: "unix:" + socket})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, ctx: t.Context(), socket: socket, dir: filepath.Dir(socket), client: client, breath: time.Second}
	var last *agent
	for i := range 3 {
		last = r.attach(fleet.HostID(fmt.Sprint("host", i+1)))
	}
	<-last.closed
}
