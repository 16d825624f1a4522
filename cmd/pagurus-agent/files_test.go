package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// What hosts share is known by what it is; what is not there is a trouble, and hides nothing.
func TestSharedDirectories(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	none := filepath.Join(dir, "none")
	w := watchShared([]string{dir, none})
	defer w.close()
	found, troubles := w.last()
	if len(found) != 1 || found[0].Path != dir || !strings.HasSuffix(found[0].Source, filepath.Base(dir)) {
		t.Errorf("found %+v", found)
	}
	if len(troubles) != 1 || !strings.Contains(troubles[0], "--shared "+none) {
		t.Errorf("said is %q", troubles)
	}
}
