package main

import (
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pagurus/cmd/roles"
	"pagurus/internal/testkit"
)

// One sentence says why an agent cannot start, and drivers that were never opened are not
// closed.
func TestAgentSaysWhyItCannotStart(t *testing.T) {
	testkit.Root(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*roles.Agent)
		want   string
	}{
		"run folder":   {func(f *roles.Agent) { f.RunDir = filepath.Join(file, "run") }, "making the host's folders"},
		"state folder": {func(f *roles.Agent) { f.StateDir = filepath.Join(file, "state") }, "making the host's folders"},
		"address":      {func(f *roles.Agent) { f.Address = "nowhere" }, `--address "nowhere" is not an IP address`},
		"images":       {func(f *roles.Agent) { f.ImageDir = filepath.Join(file, "images") }, "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			f := roles.Agent{Name: "host1", RunDir: filepath.Join(t.TempDir(), "run"), StateDir: t.TempDir(), ImageDir: t.TempDir(), Address: roles.Loopback}
			c.change(&f)
			h, err := openHost(t.Context(), f, slog.New(slog.DiscardHandler))
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want a sentence with %q", err, c.want)
			}
			if h != nil {
				t.Error("it opened something all the same")
				_ = h.close()
			}
		})
	}
}

// A host with IPv6 alone finds its address, and its drivers open with that, to be reached in clear or by WireGuard.
func TestAgentWithIPv6Alone(t *testing.T) {
	testkit.Root(t)
	h := testkit.Hosts(t, 1)[0]
	h.OnlyIPv6()
	for _, controller := range []string{"unix:/run/x", "[2001:db8::9]:7461", "[" + h.Six().String() + "]:7461"} {
		h.Must(func() error {
			f := roles.Agent{Name: "host1", RunDir: filepath.Join(t.TempDir(), "run"), StateDir: t.TempDir(), ImageDir: t.TempDir(), Address: ownAddress(controller)}
			if f.Address != h.Six().String() {
				t.Errorf("with a controller at %s it is %s", controller, f.Address)
			}
			opened := &host{flags: f, log: slog.New(slog.DiscardHandler)}
			err := opened.openNetwork(h.Six())
			return errors.Join(err, opened.close())
		})
	}
}

// A host follows the address that it calls from, but does not go to and fro between the two families.
func TestWhichAddressAHostFollows(t *testing.T) {
	const own, other = "192.0.2.1", "2001:db8::1"
	has := func(a netip.Addr) bool { return a.String() == own || a.String() == other }
	for _, c := range []struct {
		at, now string
		is      bool
	}{
		{own, "192.0.2.2", true}, {other, "2001:db8::2", true}, {own, own, false},
		{own, other, false}, {other, own, false},
		{"192.0.2.9", other, true}, {"2001:db8::9", own, true},
		{roles.Loopback, other, true}, {roles.Loopback, own, true}, {"::1", own, true},
		{own, "::1", false}, {own, roles.Loopback, false}, {own, "fe80::1", false}, {own, "", false},
	} {
		now, _ := netip.ParseAddr(c.now)
		if follows(netip.MustParseAddr(c.at), now, has) != c.is {
			t.Errorf("from %s to %q: not %v", c.at, c.now, c.is)
		}
	}
}

// The host on the controller's machine has the address by which others reach it: with
// loopback no guest there would reach one elsewhere.
func TestAddressOfTheControllersMachine(t *testing.T) {
	testkit.Root(t)
	hosts := testkit.Hosts(t, 1)
	for controller, want := range map[string]string{"unix:/run/x": hosts[0].Addr.String(), "127.0.0.1:7461": roles.Loopback, hosts[0].Addr.String() + ":7461": hosts[0].Addr.String()} {
		hosts[0].Must(func() error {
			if got := ownAddress(controller); got != want {
				t.Errorf("with a controller at %s it is %s, not %s", controller, got, want)
			}
			return nil
		})
	}
}
