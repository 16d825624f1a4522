package cli

import (
	"os"
	"path/filepath"
	"slices"
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
	got, _, err := moreDirectories([]string{"link:ro", filepath.Join(top, "other")})
	want := []fleet.Directory{{Path: filepath.Join(top, "data"), ReadOnly: true}, {Path: filepath.Join(top, "other")}}
	if err != nil || len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("%+v, %v", got, err)
	}
	for says, names := range map[string][]string{
		"--files none: there is no such directory on this machine": {"none"},
		"--files file: it is not a directory":                      {"file"},
		`--files ":ro" names no directory`:                         {":ro"},
		"guests have their own":                                    {"/usr/share"},
	} {
		if _, _, err := moreDirectories(names); err == nil || !strings.Contains(err.Error(), says) {
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
	if spec := w.Asked()[0].Spec; len(spec.Files) != 1 || spec.Files[0] != (fleet.Directory{Path: data, ReadOnly: true}) {
		t.Errorf("asked for %+v", spec)
	}
	deep := filepath.Join(data, "deep")
	if err := os.Mkdir(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	for says, names := range map[string][]string{
		"one is inside the other":             {data, deep + ":ro"},
		"leave out --files":                   {"."}, // the job's own
		"17 directories are more than the 16": slices.Repeat([]string{data}, 17),
	} {
		args := []string{"run", "-n", "1"}
		for _, name := range names {
			args = append(args, "--files", name)
		}
		if got := w.pagurus("", append(args, "--", "true")...); got.code != exitOwn || !strings.Contains(got.err, says) || len(w.Asked()) != 1 {
			t.Errorf("%v: %+v, want %s", names, got, says)
		}
	}
	if got := w.pagurus("", "run", "-n", "1", "--files", filepath.Join(data, "none"), "--", "true"); got.code != exitOwn || !strings.Contains(got.err, "no such directory") || len(w.Asked()) != 1 {
		t.Errorf("%+v, %d requests", got, len(w.Asked()))
	}
}
