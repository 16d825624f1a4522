package drive_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pagurus/bench/drive"
	"pagurus/fleet"
	"pagurus/serve/wire"
)

// TestNamedControllerIsNoLab: if a controller that was named does not answer, no lab is
// brought up in its place.
func TestNamedControllerIsNoLab(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "pagurus")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho \"$*\" >>"+dir+"/typed\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	p := drive.Pagurus{Program: script, Dir: dir}
	try := func() error {
		return p.In(t.Context(), drive.Lab{Instead: func() {}}, func(fleet.Snapshot, bool) error { t.Error("it was in a cluster"); return nil })
	}
	t.Setenv(wire.CredentialsVariable, filepath.Join(dir, "none"))
	t.Setenv(wire.ControllerVariable, "unix:"+filepath.Join(dir, "nobody.sock"))
	err := try()
	if err == nil || !strings.Contains(err.Error(), "nobody.sock does not answer") || !strings.Contains(err.Error(), "--controller") {
		t.Errorf("a named one: %v", err)
	}
	if typed, _ := os.ReadFile(filepath.Join(dir, "typed")); len(typed) > 0 {
		t.Errorf("it typed %s", typed)
	}
	if _, err := os.Stat(wire.DefaultSocket); err == nil {
		t.Skip("this machine has a controller")
	}
	t.Setenv(wire.ControllerVariable, "")
	_ = try()
	if typed, _ := os.ReadFile(filepath.Join(dir, "typed")); string(typed) != "lab up\n" {
		t.Errorf("without a name it typed %q", typed)
	}
}
