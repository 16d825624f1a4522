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
		err = Cut{Files: []File{{At: c.at, Name: c.name, Inode: st.Ino, Bytes: 4}}}.Back(folders, Owner{user, user, c.groups})
		info, _ := os.Stat(file)
		if (err == nil) != c.cut || (info.Size() == 4) != c.cut {
			t.Errorf("%s%s, groups %v: %d bytes, %v", c.at, c.name, c.groups, info.Size(), err)
		}
	}
	if unix.Geteuid() != 0 {
		t.Error("the process is another user now")
	}
}
