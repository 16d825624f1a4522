package cli

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pagurus/fleet"
)

// A job has the links by which its directories were named, so that each name means in guests what it means here.
func TestDirectoriesByLinks(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	at := func(path string) string { return filepath.Join(root, path) }
	for _, dir := range []string{"real/sub", "data", "more"} {
		if err := os.MkdirAll(at(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for path, to := range map[string]string{"way": "real", "real/on": "../data", "files": "way/../more", "twice": "files"} {
		if err := os.Symlink(to, at(path)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		dir, export, files string
		real               string
		links              []fleet.Link
		pwd                []string
	}{
		{dir: "real/sub", real: "real/sub"},
		{dir: "way/sub", real: "real/sub", links: []fleet.Link{{Path: at("way"), To: at("real")}}, pwd: []string{"PWD=" + at("way/sub")}},
		{dir: "way/on", real: "data", links: []fleet.Link{{Path: at("way"), To: at("real")}, {Path: at("real/on"), To: at("data")}}, pwd: []string{"PWD=" + at("way/on")}},
		{dir: "real/sub", export: at("way"), files: at("twice"), real: "real/sub", links: []fleet.Link{{Path: at("way"), To: at("real")}, {Path: at("twice"), To: at("more")}}},
	} {
		t.Chdir(at(c.dir)) // sets PWD, as a shell does
		f := &runFlags{export: c.export}
		if c.files != "" {
			f.files = []string{c.files}
		}
		if err := f.findDirectories(); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
		if f.directory != at(c.real) || !slices.Equal(f.links, c.links) || !slices.Equal(f.environment, c.pwd) {
			t.Errorf("%+v: %s, %v, %v", c, f.directory, f.links, f.environment)
		}
	}
}
