package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pagurus/fleet"
)

// What is wrong with a directory is said before the controller is asked.
func TestMoreDirectoriesAreChecked(t *testing.T) {
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(top)
	for _, name := range []string{"own", "data/deep", "other"} {
		if err := os.MkdirAll(name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile("file", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("data", "link"); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(top, "own")
	got, err := moreDirectories([]string{"link:ro", filepath.Join(top, "other")}, own)
	want := []fleet.Directory{{Path: filepath.Join(top, "data"), ReadOnly: true}, {Path: filepath.Join(top, "other")}}
	if err != nil || len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("%+v, %v", got, err)
	}
	for says, names := range map[string][]string{
		"--files none: there is no such directory on this machine": {"none"},
		"--files file: it is not a directory":                      {"file"},
		`--files ":ro" names no directory`:                         {":ro"},
		"guests have their own":                                    {"/usr/share"},
		"is inside the other":                                      {"data", "data/deep:ro"},
		"--files own: one of":                                      {"own"},
		"--files .: one of":                                        {"."},
		"--files can be given 16 times":                            make([]string, 17),
	} {
		if _, err := moreDirectories(names, own); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: %v, want %s", names, err, says)
		}
	}
}

// The request has the directories, with what they are.
func TestRunWithMoreDirectories(t *testing.T) {
	w := newWorld(t)
	w.runs(func(job fleet.JobID) { w.ends(job, exited(0)) })
	t.Chdir(t.TempDir())
	data, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if got := w.pagurus("", "run", "-n", "1", "--files", data+":ro", "--", "true"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if spec := w.asked[0].Spec; len(spec.Files) != 1 || spec.Files[0] != (fleet.Directory{Path: data, ReadOnly: true}) {
		t.Errorf("asked for %+v", spec)
	}
	if got := w.pagurus("", "run", "-n", "1", "--files", filepath.Join(data, "none"), "--", "true"); got.code != exitOwn || !strings.Contains(got.err, "no such directory") || len(w.asked) != 1 {
		t.Errorf("%+v, %d requests", got, len(w.asked))
	}
}
