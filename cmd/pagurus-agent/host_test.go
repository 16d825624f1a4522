package main

import (
	"log/slog"
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
