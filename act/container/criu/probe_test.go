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
