package written

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"pagurus/internal/testkit"
)

// A checkpoint comes from another host. It cuts only what the job's user could cut, and nothing if
// any name is not so.
func TestOnlyTheUsersFilesAreCut(t *testing.T) {
	testkit.Root(t)
	const user, other = 4711, 4712
	dir := t.TempDir()
	for above := dir; above != os.TempDir() && above != "/"; above = filepath.Dir(above) {
		if err := os.Chmod(above, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	put := func(name string, uid, gid int, mode fs.FileMode) {
		t.Helper()
		at := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte("0123456789"), 0o600), os.Chown(at, uid, gid), os.Chmod(at, mode)); err != nil {
			t.Fatal(err)
		}
	}
	put("own", user, user, 0o600)
	put("finished", user, user, 0o444)
	put("everybody's", other, other, 0o666)
	put("group's", other, 100, 0o660)
	put("others'", other, other, 0o644)
	put("root's", 0, 0, 0o600)
	put("closed/own", user, user, 0o600)
	if err := os.Chmod(filepath.Join(dir, "closed"), 0o700); err != nil {
		t.Fatal(err)
	}
	folders := []Folder{{At: "/job", From: dir}, {At: "/read", From: dir, ReadOnly: true}}
	for _, c := range []struct {
		at, name string
		groups   []uint32
		cut      bool
	}{
		{"/job", "/own", nil, true},
		{"/job", "/finished", nil, true},
		{"/job", "/everybody's", nil, true},
		{"/job", "/group's", []uint32{99, 100}, true},
		{"/job", "/group's", []uint32{99}, false},
		{"/job", "/others'", nil, false},
		{"/job", "/root's", nil, false},
		{"/job", "/closed/own", nil, false},
		{"/read", "/own", nil, false},
	} {
		file := filepath.Join(dir, c.name)
		var st unix.Stat_t
		if err := unix.Stat(file, &st); err != nil {
			t.Fatal(err)
		}
		text := []byte("0123456789")
		was, _ := os.OpenFile(file, os.O_RDWR, 0)
		_, err := was.WriteAt(text, 0)
		if err = errors.Join(err, was.Close()); err != nil {
			t.Fatal(err)
		}
		_, err = Cut{Files: []File{{At: c.at, Name: c.name, Inode: st.Ino, Bytes: 4}}}.Back(folders, Owner{user, user, c.groups})
		info, _ := os.Stat(file)
		if (err == nil) != c.cut || (info.Size() == 4) != c.cut {
			t.Errorf("%s%s, groups %v: %d bytes, %v", c.at, c.name, c.groups, info.Size(), err)
		}
	}
	if unix.Geteuid() != 0 {
		t.Error("the process is another user now")
	}
}

// What a guest told of its files is measured later. Those that are not there, or others, are said and left out. A file
// that another guest's host has cut back to where this guest last saw it is not too short.
func TestMeasure(t *testing.T) {
	dir := t.TempDir()
	folders := []Folder{{At: "/job", From: dir}}
	file := func(name, text string) File {
		t.Helper()
		at := filepath.Join(dir, name)
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Stat(at, &st); err != nil {
			t.Fatal(err)
		}
		return File{At: "/job", Name: "/" + name, Inode: st.Ino, Bytes: 3}
	}
	grown, behind, gone, other := file("grown", "012345"), file("behind", "0"), file("gone", ""), file("other", "")
	if err := errors.Join(os.Remove(filepath.Join(dir, "gone")), os.Rename(filepath.Join(dir, "behind"), filepath.Join(dir, "other"))); err != nil {
		t.Fatal(err)
	}
	link := File{At: "/job", Name: "/link", Inode: grown.Inode}
	if err := os.Symlink("grown", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	behind.Name = "/other" // its inode has this name now
	c := Cut{Files: []File{grown, behind, gone, other, link}}
	c.Measure(folders)
	if len(c.Files) != 2 || c.Files[0].Bytes != 6 || c.Files[0].Grew != 3 || c.Files[1].Bytes != 1 || c.Files[1].Grew != 0 || len(c.Amiss) != 3 {
		t.Fatalf("%+v", c)
	}
	user := Owner{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	for _, at := range []struct {
		is, then int64
		refused  bool
	}{{9, 6, false}, {6, 6, false}, {4, 4, false}, {3, 3, false}, {2, 2, true}} {
		if err := os.Truncate(filepath.Join(dir, "grown"), at.is); err != nil {
			t.Fatal(err)
		}
		_, err := Cut{Files: c.Files[:1]}.Back(folders, user)
		if info, _ := os.Stat(filepath.Join(dir, "grown")); (err != nil) != at.refused || info.Size() != at.then {
			t.Errorf("%d bytes became %d: %v", at.is, info.Size(), err)
		}
	}
}
