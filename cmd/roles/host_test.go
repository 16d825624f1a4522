package roles

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pagurus/internal/testkit"
)

// What keeps an agent from starting is said in one sentence, and what was never
// opened is not closed.
func TestAgentSaysWhyItCannotStart(t *testing.T) {
	testkit.Root(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*hostFlags)
		want   string
	}{
		"run folder":   {func(f *hostFlags) { f.run = filepath.Join(file, "run") }, "making the host's folders"},
		"state folder": {func(f *hostFlags) { f.state = filepath.Join(file, "state") }, "making the host's folders"},
		"address":      {func(f *hostFlags) { f.address = "nowhere" }, `--address "nowhere" is not an IP address`},
		"images":       {func(f *hostFlags) { f.images = filepath.Join(file, "images") }, "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			f := hostFlags{name: "host1", run: filepath.Join(t.TempDir(), "run"), state: t.TempDir(), images: t.TempDir(), address: loopback}
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
