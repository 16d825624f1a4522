package criu

import (
	"os"
	"path/filepath"
	"testing"

	"pagurus/internal/testkit"
)

// find returns the machine's CRIU, which all of these tests need.
func find(t *testing.T) Criu {
	t.Helper()
	testkit.Root(t, "tar")
	c, err := Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestProbe(t *testing.T) {
	testkit.Leftovers(t)
	c := find(t)
	folder := t.TempDir()
	a, err := c.Probe(t.Context(), folder)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", a)
	if a.Version != c.Version {
		t.Errorf("CRIU %s says it is %s", c.Version, a.Version)
	}
	left, err := os.ReadDir(folder)
	if err != nil || len(left) != 1 || left[0].Name() != memoryFile {
		t.Errorf("the probe left %v, %v", left, err)
	}
	if _, err := os.ReadFile(filepath.Join(folder, memoryFile)); err != nil {
		t.Error(err)
	}
}

// A machine that is so busy that CRIU takes long to begin can move containers all the same.
func TestProbeOfABusyMachine(t *testing.T) {
	testkit.Leftovers(t)
	c := find(t)
	slow := filepath.Join(t.TempDir(), "criu")
	text := "#!/bin/sh\nif mkdir " + slow + ".first 2>/dev/null; then sleep 5; fi\nexec " + c.Path + " \"$@\"\n"
	if err := os.WriteFile(slow, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	c.Path = slow
	if _, err := c.Probe(t.Context(), t.TempDir()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(slow + ".first"); err != nil {
		t.Error("CRIU was not slow:", err)
	}
}
