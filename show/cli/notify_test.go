package cli

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"pagurus/fleet"
	"pagurus/internal/testkit"
	"pagurus/serve/wire"
)

// desktop is what shows notifications on a bus.
type desktop struct{ shown chan [2]any }

// Notify is asked as every desktop is.
func (d desktop) Notify(_ string, replaces uint32, _, _, body string, _ []string, _ map[string]dbus.Variant, _ int32) (uint32, *dbus.Error) {
	d.shown <- [2]any{replaces, body}
	return 7, nil
}

// A guest that comes, and that goes, is told by the real bus of a session, once; not to a session whose owner switched it off.
func TestOwnerIsNotified(t *testing.T) {
	testkit.Root(t, "dbus-daemon")
	dir := t.TempDir()
	address := "unix:path=" + filepath.Join(dir, "bus")
	daemon := exec.Command("dbus-daemon", "--session", "--nofork", "--nopidfile", "--address="+address)
	daemon.Stderr = os.Stderr
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = daemon.Process.Kill(); _ = daemon.Wait() }()
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", address)
	t.Setenv("XDG_CONFIG_HOME", dir)
	d := desktop{make(chan [2]any, 8)}
	var bus *dbus.Conn
	testkit.Until(t, 20*time.Second, "the bus answers", func() (up bool) {
		var err error
		bus, err = dbus.Connect(address)
		return err == nil
	})
	defer bus.Close()
	if err := bus.Export(d, notifyPath, notifications); err != nil {
		t.Fatal(err)
	}
	if got, err := bus.RequestName(notifications, dbus.NameFlagDoNotQueue); err != nil || got != dbus.RequestNameReplyPrimaryOwner {
		t.Fatal(got, err)
	}

	var mu sync.Mutex
	now := fleet.OwnerAnswer{Host: "office3", Owner: &fleet.Owner{State: fleet.OwnerAbsent}}
	socket := filepath.Join(dir, "owner.sock")
	l, err := wire.ListenUnix(socket)
	if err != nil {
		t.Fatal(err)
	}
	go func(l net.Listener) {
		_ = wire.ServeOwner(t.Context(), l, func(uint32, fleet.OwnerAsk) fleet.OwnerAnswer {
			mu.Lock()
			defer mu.Unlock()
			return now
		})
	}(l)
	guests := func(ids ...fleet.GuestID) {
		mu.Lock()
		defer mu.Unlock()
		now.Guests = nil
		for _, id := range ids {
			now.Guests = append(now.Guests, fleet.OwnerGuest{ID: id})
		}
	}
	run := func(ctx context.Context, verb string) (string, error) {
		var out strings.Builder
		root := Root(Options{Args: []string{"owner", "notify", verb, "--owner-socket", socket}, Out: &out, Err: &out})
		err := root.ExecuteContext(ctx)
		return out.String(), err
	}
	if out, err := run(t.Context(), "on"); err != nil || !strings.Contains(out, "next login") {
		t.Fatal(out, err)
	}
	entry, err := os.ReadFile(filepath.Join(dir, "autostart", "pagurus-owner-notify.desktop"))
	if err != nil || !strings.Contains(string(entry), `owner notify run --owner-socket "`+socket) {
		t.Errorf("%s, %v", entry, err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := run(t.Context(), "run")
		ended <- err
	}()
	testkit.Until(t, 20*time.Second, "it is on the bus", func() bool {
		owned := false
		_ = bus.BusObject().Call("org.freedesktop.DBus.NameHasOwner", 0, notifyName).Store(&owned)
		return owned
	})
	if _, err := run(t.Context(), "run"); err == nil || !strings.Contains(err.Error(), "has a notifier already") {
		t.Errorf("a second one: %v", err)
	}
	for _, c := range []struct {
		guests []fleet.GuestID
		want   [2]any
	}{
		{[]fleet.GuestID{"j1g0", "<b>"}, [2]any{uint32(0), "j1g0, &lt;b&gt; came to office3: 2 guests now."}},
		{[]fleet.GuestID{"j1g0"}, [2]any{uint32(7), "&lt;b&gt; left office3: 1 guest now."}},
		{nil, [2]any{uint32(7), "j1g0 left office3: none is here now."}},
	} {
		guests(c.guests...)
		select {
		case got := <-d.shown:
			if got != c.want {
				t.Errorf("it shows %q, want %q", got, c.want)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("nothing was shown, want %q", c.want)
		}
	}
	if out, err := run(t.Context(), "off"); err != nil {
		t.Error(out, err)
	}
	if err := <-ended; err != nil || len(d.shown) > 0 {
		t.Errorf("it ends with %v, and %d more", err, len(d.shown))
	}
}
