package qemu_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/qemu"
	"pagurus/act/qemu/qmp"
	"pagurus/fleet"
	"pagurus/serve/agent/drivertest"
)

// TestLongPairUnheard: a function that could not be plugged in since QEMU did not answer in time is plugged in once it does.
func TestLongPairUnheard(t *testing.T) {
	w, hosts, cards, tk := paired(t)
	if err := hosts[0].Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	mustFind(t, hosts[0], "at first", "2")
	mustSettle(t, w)
	pid, silent := w.process(t, 0, "j1g0"), false
	cards[0].set(func() {
		cards[0].leads = func(byFunction bool) error {
			if byFunction || silent {
				return nil
			}
			silent = true
			return errors.Join(errors.New("the card does not answer"), unix.Kill(pid, unix.SIGSTOP))
		}
	})
	defer unix.Kill(pid, unix.SIGCONT)
	if _, err := copyHeld(t, tk, "m0", hosts[0], hosts[1]); err == nil || !strings.Contains(err.Error(), "the card does not answer") {
		t.Fatalf("it was copied: %v", err)
	}
	time.Sleep(50 * time.Second) // two commands are given up meanwhile
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	mustFind(t, hosts[0], "when it answers", "2")
	mustStandBy(t, hosts[0], "")
	drivertest.Healthy(t, hosts[0], "j1g0")
}

// TestPairLetsGoUnseen: what a guest let go of while no agent ran is given back by the next one.
func TestPairLetsGoUnseen(t *testing.T) {
	w, hosts, cards, tk := paired(t)
	if err := hosts[0].Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	mustFind(t, hosts[0], "at first", "2")
	mustSettle(t, w)
	if err := hosts[0].Close(); err != nil {
		t.Fatal(err)
	}
	mustUnplug(t, filepath.Join(w.hosts[0].Run, "guests", "j1g0", "qmp.sock"))
	hosts[0] = w.open(t, 0)
	if err := hosts[0].LendDevices(cards[0]); err != nil {
		t.Fatal(err)
	}
	mustStandBy(t, hosts[0], "has let go of its virtual function by itself; it was given back to the host")
	cards[0].mustHaveLed(t, "let go of", true, false)
	if cards[0].left() != 1 {
		t.Error("no other guest can have its function")
	}
	drivertest.Healthy(t, hosts[0], "j1g0")
}

// mustUnplug has a guest that no driver watches let go of its function.
func mustUnplug(t *testing.T, socket string) {
	t.Helper()
	q, err := qmp.Open(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	events, stop := q.Subscribe()
	defer stop()
	if err := q.Do(t.Context(), "device_del", map[string]any{"id": "primary"}, nil); err != nil {
		t.Fatal(err)
	}
	for limit := time.After(time.Minute); ; {
		select {
		case e := <-events:
			if e.Name == "DEVICE_DELETED" {
				return
			}
		case <-limit:
			t.Fatal("the guest does not let go of it")
		}
	}
}

// mustSettle waits until the first host has noted that its guest uses the function.
func mustSettle(t *testing.T, w *world) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		text, err := os.ReadFile(filepath.Join(w.hosts[0].Run, "guests", "j1g0", "guest.json"))
		var r struct{ Pair struct{ Due bool } }
		if err == nil && json.Unmarshal(text, &r) == nil && !r.Pair.Due {
			return
		}
	}
	t.Fatal("it is not noted that the guest uses its function")
}

// TestPairLetsGoLate: a guest that lets go of its function after the copy for which it was asked was given up gets it again.
func TestPairLetsGoLate(t *testing.T) {
	w, hosts, cards, tk := paired(t)
	if err := hosts[0].Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	mustFind(t, hosts[0], "at first", "2")
	mustSettle(t, w)
	qemu.HurryUnplugging(t, time.Millisecond)
	held := receiveHeld(t, tk, "m0", hosts[1])
	if _, err := drivertest.Ask(t.Context(), hosts[0], "j1g0", "hog 5"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second) // it has begun
	if err := hosts[0].Copy(t.Context(), held, func(fleet.Progress) {}); err == nil || !strings.Contains(err.Error(), "has not let go") {
		t.Fatalf("it was to be too late: %v", err)
	}
	if err := hosts[1].Stop(t.Context(), "j1g0"); err != nil {
		t.Fatal(err)
	}
	// At first, when the copy was given up, and once it let go.
	for end := time.Now().Add(time.Minute); cards[0].times() < 3 && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		facts, err := hosts[0].Inspect(t.Context())
		if said := facts["j1g0"].Standby; err != nil || said != "" {
			t.Fatalf("it says %q, %v", said, err)
		}
	}
	mustFind(t, hosts[0], "after it let go late", "2")
	mustStandBy(t, hosts[0], "")
	cards[0].mustHaveLed(t, "after it let go late", true, true, true)
}

// TestPairEndsWhileTaking: a guest that is ended while it gets its function leaves none behind.
func TestPairEndsWhileTaking(t *testing.T) {
	_, hosts, cards, tk := paired(t)
	var asked atomic.Int32
	taking, goOn := make(chan struct{}), make(chan struct{})
	cards[0].takes = func() {
		if asked.Add(1) == 2 { // the first is before its QEMU begins
			close(taking)
			<-goOn
		}
	}
	if err := hosts[0].Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	<-taking
	stopped := make(chan error, 1)
	go func() { stopped <- hosts[0].Stop(t.Context(), "j1g0") }()
	for here := true; here; time.Sleep(50 * time.Millisecond) {
		all, err := hosts[0].Inspect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, here = all["j1g0"]
	}
	var err error
	select {
	case err = <-stopped:
		close(goOn)
		time.Sleep(2 * time.Second) // it may take it now
	case <-time.After(3 * time.Second):
		close(goOn)
		err = <-stopped
	}
	if has, _ := cards[0].Borrowers(); err != nil || cards[0].left() != 1 || len(has) > 0 {
		t.Errorf("%v have functions: %v", has, err)
	}
}
