package criu

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pagurus/internal/testkit"
)

// TestKeptNamesOfALyingSource: a name that a source says it has kept is opened and removed in the job's directory alone, and only if
// it looks like one.
func TestKeptNamesOfALyingSource(t *testing.T) {
	job, outside := t.TempDir(), t.TempDir()
	good, sub := keptPrefix+"0123456789abcdef", "sub/"+keptPrefix+"1"
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(filepath.Join(job, "sub"), 0o700))
	must(os.Symlink(outside, filepath.Join(job, "away")))
	must(os.Symlink(filepath.Join(outside, good), filepath.Join(job, keptPrefix+"link")))
	for _, at := range []string{filepath.Join(outside, good), filepath.Join(outside, "passwd"), filepath.Join(job, "own"), filepath.Join(job, good), filepath.Join(job, sub)} {
		must(os.WriteFile(at, []byte("x"), 0o600))
	}
	base, err := os.OpenFile(job, unix.O_PATH|unix.O_DIRECTORY, 0)
	must(err)
	defer base.Close()
	up, err := filepath.Rel(job, filepath.Join(outside, good))
	must(err)
	for _, name := range []string{"away/" + good, up, filepath.Join(outside, good), "away/passwd", "own", "sub", "", ".", "..", "sub/../own", good + "/../own", "../" + good} {
		if f, err := (leftOut{Key: "file[1:1]", Kept: name}).open(base, SharedFolder{}); err == nil && name != "" {
			f.Close()
			t.Errorf("%q is opened", name)
		}
		_ = KeptName{Name: name}.Forget(job)
	}
	if f, err := (leftOut{Key: "file[1:1]", Kept: keptPrefix + "link"}).open(base, SharedFolder{}); err == nil {
		f.Close()
		t.Error("a link is taken for a file")
	}
	for _, at := range []string{filepath.Join(outside, good), filepath.Join(outside, "passwd"), filepath.Join(job, "own"), filepath.Join(job, sub)} {
		if _, err := os.Stat(at); err != nil {
			t.Errorf("it was removed: %v", err)
		}
	}
	for _, name := range []string{good, sub} {
		f, err := leftOut{Key: "file[1:1]", Kept: name}.open(base, SharedFolder{})
		must(err)
		f.Close()
		must(KeptName{Name: name}.Forget(job))
		must(KeptName{Name: name}.Forget(job)) // gone is not an error
		if _, err := os.Stat(filepath.Join(job, name)); err == nil {
			t.Errorf("%s is still there", name)
		}
	}
	must(KeptName{Name: "no/" + good}.Forget(job))
}

// TestHandlesOfALyingSource: a handle opens every file of a file system; a source has none opened but what the job's user has lost.
func TestHandlesOfALyingSource(t *testing.T) {
	testkit.Root(t)
	dir := t.TempDir()
	job := filepath.Join(dir, "job")
	if err := os.Mkdir(job, 0o755); err != nil {
		t.Fatal(err)
	}
	make := func(at string, uid int, removed bool) leftOut {
		t.Helper()
		at = filepath.Join(dir, at)
		f, err := os.Create(at)
		if err == nil {
			t.Cleanup(func() { f.Close() })
			err = os.Chown(at, uid, uid)
		}
		if err != nil {
			t.Fatal(err)
		}
		handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, at, 0)
		if err != nil {
			t.Fatal(err)
		}
		if removed {
			if err := os.Remove(at); err != nil {
				t.Fatal(err)
			}
		}
		return leftOut{Key: "file[1:1]", Type: handle.Type(), Handle: handle.Bytes()}
	}
	const user = 1000
	base, err := mountOf(job)
	if err != nil {
		t.Fatal(err)
	}
	defer base.Close()
	for name, c := range map[string]struct {
		file leftOut
		of   uint32
		want string // what is wrong; empty: it is opened
	}{
		"root's file, for a user's job":     {make("shadow", 0, false), user, "belongs to uid 0"},
		"another's file, for a user's job":  {make("other", 1001, false), user, "belongs to uid 1001"},
		"another's lost file, for a user's": {make("lost", 1001, true), user, "belongs to uid 1001"},
		"root's file, for a job of root":    {make("passwd", 0, false), 0, "still has a name elsewhere"},
		"a user's own lost file":            {make("job/own", user, true), user, ""},
		"root's own lost file":              {make("job/root", 0, true), 0, ""},
		"no handle":                         {leftOut{Key: "file[1:1]"}, user, "by its handle"},
		"a handle of nothing":               {leftOut{Key: "file[1:1]", Type: 1, Handle: []byte("xxxxxxxx")}, user, "by its handle"},
	} {
		f, err := c.file.open(base, SharedFolder{Owner: c.of})
		if err == nil {
			f.Close()
		}
		if c.want == "" != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzLeftOut: what a source has recorded of files without names ends no agent, and opens nothing in a directory that has none.
func FuzzLeftOut(f *testing.F) {
	f.Add([]byte(`[{"Key":"file[1:1]","Kept":"../.nfs.pagurus1"},{"Key":"x","Type":1,"Handle":"AAAA","At":"/job"}]`))
	f.Add([]byte(`[{"At":"/job","Name":"/../../etc","Inode":1}]`))
	dir := f.TempDir()
	base, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		f.Fatal(err)
	}
	defer base.Close()
	f.Fuzz(func(t *testing.T, text []byte) {
		var files []leftOut
		if json.Unmarshal(text, &files) != nil {
			return
		}
		for _, s := range files {
			if s.Kept == "" {
				continue // a handle may be one of this machine's files
			}
			if opened, err := s.open(base, SharedFolder{}); err == nil {
				opened.Close()
				t.Errorf("%+v opens %s", s, opened.Name())
			}
			_ = KeptName{s.At, s.Kept}.Forget(dir)
		}
	})
}

// FuzzFilters: what a source has sent for CRIU is looked through before anything is restored. It ends no agent, and images without a process have
// no filters.
func FuzzFilters(f *testing.F) {
	head := make([]byte, headBytes)
	f.Add(head, head)
	f.Add([]byte("short"), append(head, 0x0a, 0x02, 0x08, 0x01))
	f.Add(append(head, 0x0a, 0x04, 0x0a, 0x02, 0x06, 0x00), append(head, 0x1a, 0x02, 0x08, 0x02))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, seccomp, core []byte) {
		for name, text := range map[string][]byte{"seccomp.img": seccomp, "core-1.img": core} {
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if all, err := Filters(dir); err == nil && len(all) == 0 {
			t.Error("a process without filters is taken")
		}
	})
}
