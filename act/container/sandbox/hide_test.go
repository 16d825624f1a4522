package sandbox

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// Of virtual devices only those are seen that name no machine, whichever others a kernel has; and nothing is covered twice.
func TestVirtualDevicesAreHiddenUnlessHarmless(t *testing.T) {
	at := t.TempDir()
	for _, name := range append([]string{"nvme-subsystem", "powercap", "newer"}, harmless...) {
		if err := os.MkdirAll(filepath.Join(at, name, "nvme-subsys0"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{at + "/powercap", at + "/newer", at + "/nvme-subsystem"}
	if got := named([]string{at + "/powercap", at + "/*"}); !slices.Equal(got, want) {
		t.Errorf("hidden are %q, should be %q", got, want)
	}
	all := HiddenHere()
	here, err := filepath.Glob("/sys/devices/virtual/*")
	if err != nil || len(here) == 0 {
		t.Fatalf("this machine has no virtual devices: %v", err)
	}
	for _, path := range here {
		if hidden, shown := slices.Contains(all, path), slices.Contains(harmless, filepath.Base(path)); hidden == shown {
			t.Errorf("%s is hidden: %v", path, hidden)
		}
	}
	for _, path := range []string{"/proc/cmdline", "/sys/devices/virtual/powercap"} {
		if !slices.Contains(all, path) {
			t.Errorf("%s is seen", path)
		}
	}
	slices.Sort(all)
	if len(slices.Compact(slices.Clone(all))) != len(all) {
		t.Errorf("some are covered twice: %q", all)
	}
}
