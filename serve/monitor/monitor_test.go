package monitor

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/cgroup"
	sensors "pagurus/act/owner"
	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// noting is the real sensors, with the time of their first sign of an owner.
type noting struct {
	*sensors.Sensors
	fired atomic.Int64
}

func (n *noting) Sample(ctx context.Context, exclusive []string) fleet.OwnerSample {
	out := n.Sensors.Sample(ctx, exclusive)
	if out.NonGuestCPUs != nil && *out.NonGuestCPUs > 0.3 {
		n.fired.CompareAndSwap(0, time.Now().UnixNano())
	}
	return out
}

// deprioritised reads from the kernel whether a group is deprioritised.
func deprioritised(t *testing.T, group string) bool {
	t.Helper()
	for _, pattern := range []string{"/sys/fs/cgroup/cpu*/" + group + "/cpu.idle", "/sys/fs/cgroup/" + group + "/cpu.idle"} {
		found, _ := filepath.Glob(pattern)
		for _, file := range found {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			return string(bytes.TrimSpace(text)) == "1"
		}
	}
	t.Fatalf("group %s is nowhere", group)
	return false
}

// program starts an owner's program that uses a CPU on a host. An agent's own programs are
// only those it started itself.
func program(t *testing.T, h *testkit.Host) (end func()) {
	t.Helper()
	text, err := h.Command(t.Context(), "sh", "-c", `chrt -o 0 setsid sh -c 'while :; do :; done' >/dev/null 2>&1 & echo $!`).Output()
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	end = func() { unix.Kill(pid, unix.SIGKILL) }
	t.Cleanup(end)
	return end
}

// From the owner's program on a host to the guests' group and back.
func TestGuestsGiveWayToTheOwner(t *testing.T) {
	testkit.Root(t, "setsid", "chrt")
	host := testkit.Hosts(t, 1)[0]
	group := fmt.Sprintf("pagurus-test-owner-%d", os.Getpid())
	groups, err := cgroup.Open(group, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := groups.Close(); err != nil {
			t.Error(err)
		}
	})
	n := &noting{}
	host.Must(func() (err error) {
		n.Sensors, err = sensors.Open(sensors.Config{Scope: sensors.Network, Group: group, Used: groups.Used})
		return err
	})
	file := filepath.Join(t.TempDir(), "owner.json")
	begin := func() (l *Monitor, stop func()) {
		l = New(Config{Sensors: n, Guests: groups, CPUs: 2, File: file, Log: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() { defer close(over); l.Run(ctx) }()
		return l, func() { cancel(); <-over }
	}
	a, stop := begin()
	agree := func(p fleet.OwnerPolicy) {
		t.Helper()
		if err := a.Agree(p); err != nil {
			t.Error(err)
		}
	}
	state := func() fleet.OwnerState {
		if o := a.Seen(); o != nil {
			return o.State
		}
		return "unknown"
	}
	is := func(want ...fleet.OwnerState) func() bool {
		return func() bool { return len(want) > 0 && state() == want[0] }
	}
	testkit.Until(t, 10*time.Second, "the agent has looked", func() bool { return state() == "" })
	if deprioritised(t, group) {
		t.Error("guests are not deprioritised")
	}
	agree(fleet.OwnerPolicy{Owned: true, IdleAfter: 3 * time.Second})
	testkit.Until(t, 20*time.Second, "the owner is absent", is(fleet.OwnerAbsent))
	testkit.Until(t, 5*time.Second, "guests run", func() bool { return !deprioritised(t, group) })

	end := program(t, host)
	testkit.Until(t, 30*time.Second, "guests give way", func() bool { return deprioritised(t, group) })
	fired := n.fired.Load()
	if fired == 0 {
		t.Error("guests give way and no sensor has told of anybody")
	}
	t.Logf("%s from the sensor to the kernel, as a look every few milliseconds sees it", time.Since(time.Unix(0, fired)))
	if !state().There() {
		t.Errorf("guests give way to an owner who is %s", state())
	}
	end()
	testkit.Until(t, 60*time.Second, "the owner is gone", is(fleet.OwnerAbsent))
	testkit.Until(t, 5*time.Second, "guests run", func() bool { return !deprioritised(t, group) })

	// A claim has effect at once, not with the next sample. It also holds for the next agent
	// without a controller.
	agree(fleet.OwnerPolicy{Owned: true, IdleAfter: 3 * time.Second, Claimed: true})
	testkit.Until(t, 5*time.Second, "guests give way to who claims the host", func() bool { return deprioritised(t, group) })
	stop()
	a, stop = begin()
	testkit.Until(t, 10*time.Second, "the next agent knows", is(fleet.OwnerPresent))
	if !deprioritised(t, group) {
		t.Error("the next agent let guests run")
	}
	agree(fleet.OwnerPolicy{})
	testkit.Until(t, 10*time.Second, "the host has no owner", is(""))
	testkit.Until(t, 5*time.Second, "guests run", func() bool { return !deprioritised(t, group) })
	stop()
	if text, err := os.ReadFile(file); err != nil || strings.Contains(string(text), "claimed") {
		t.Errorf("it remembers %s: %v", text, err)
	}
}
