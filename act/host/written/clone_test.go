package written

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/internal/testkit"
)

const cloneUser = 4711

// tree is a job's directory on a file system, with files of a user's.
type tree struct {
	t       testing.TB
	dir     string
	folders []Folder
	user    Owner
}

func newTree(t testing.TB, dir string) *tree {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for above := filepath.Dir(dir); above != os.TempDir() && above != "/"; above = filepath.Dir(above) {
		if err := os.Chmod(above, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(dir, cloneUser, cloneUser); err != nil {
		t.Fatal(err)
	}
	return &tree{t: t, dir: dir, folders: []Folder{{At: "/job", From: dir}}, user: Owner{UID: cloneUser, GID: cloneUser}}
}

func (r *tree) path(name string) string { return filepath.Join(r.dir, name) }

// write writes a user's file in place.
func (r *tree) write(name, text string) {
	r.t.Helper()
	f, err := os.OpenFile(r.path(name), os.O_WRONLY|os.O_CREATE, 0o644)
	if err == nil {
		_, err = f.WriteString(text)
	}
	if err = errors.Join(err, f.Truncate(int64(len(text))), f.Close(), os.Chown(r.path(name), cloneUser, cloneUser)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *tree) is(name, want string) {
	r.t.Helper()
	if text, err := os.ReadFile(r.path(name)); err != nil || string(text) != want {
		r.t.Errorf("%s has %q in place of %q: %v", name, text[:min(len(text), 80)], want[:min(len(want), 80)], err)
	}
}

// open is such a file as a guest that writes to it has it.
func (r *tree) open(name string) File {
	r.t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(r.path(name), &st); err != nil {
		r.t.Fatal(err)
	}
	return File{At: "/job", Name: "/" + name, Inode: st.Ino, Bytes: st.Size, Inside: true, Odd: name + " is odd"}
}

func (r *tree) at(of string) Clones {
	return Clones{Of: of, User: r.user, Until: time.Now().Add(time.Minute)}
}

// cut clones files as at a checkpoint.
func (r *tree) cut(of string, names ...string) (c Cut) {
	r.t.Helper()
	for _, name := range names {
		f := r.open(name)
		c.Files, c.Amiss = append(c.Files, f), append(c.Amiss, f.Odd)
	}
	if err := c.ReadyToClone(r.folders, r.at(of)); err != nil {
		r.t.Fatal(err)
	}
	c.Clone(r.folders, r.at(of))
	if err := c.SyncClones(r.folders, r.user); err != nil {
		r.t.Fatal(err)
	}
	return c
}

// Files that may be written before their ends are as they were at the checkpoint again, whatever was done to their content
// since, and as often as the job goes on from there. Their clones are their user's, and go when they are not kept.
func TestClones(t *testing.T) {
	t.Run("xfs", func(t *testing.T) { asAtTheCut(t, testkit.Reflinks(t, "xfs")) })
	disk := testkit.Reflinks(t, "btrfs")
	for name, test := range map[string]func(*testing.T, string){"as at the cut": asAtTheCut, "the first counts": firstCounts, "nobody else's": nobodyElses, "quota": quota} {
		t.Run(name, func(t *testing.T) { test(t, filepath.Join(disk, strings.ReplaceAll(name, " ", "-"))) })
	}
}

func asAtTheCut(t *testing.T, disk string) {
	r := newTree(t, filepath.Join(disk, "job"))
	long := strings.Repeat("0123456789", 100_000)
	r.write("inside", "as at the cut")
	r.write("empty", "")
	r.write("long", long)
	r.write("grown", "short")
	names := []string{"inside", "empty", "long", "grown"}
	if !CanClone(r.dir) {
		t.Error("it is not noticed that files can be cloned")
	}
	c := r.cut("j1-1-c1", names...)
	if len(c.Amiss) != 0 || c.Files[0].Clone == "" {
		t.Fatalf("%+v", c)
	}
	var st unix.Stat_t
	if err := unix.Stat(r.path(filepath.Join(ClonesFolder, c.Files[0].Clone)), &st); err != nil || st.Uid != cloneUser || st.Mode&0o777 != 0o600 {
		t.Errorf("the clone is %o of user %d: %v", st.Mode, st.Uid, err)
	}
	for range 2 {
		r.write("inside", "changed")
		r.write("empty", "no more")
		r.write("long", "cut off")
		r.write("grown", long)
		if gone, err := c.Back(r.folders, r.user); err != nil || len(gone) != 0 {
			t.Fatal(gone, err)
		}
		r.is("inside", "as at the cut")
		r.is("empty", "")
		r.is("long", long)
		r.is("grown", "short")
	}
	r.cut("j1-1-c2", "inside")
	if err := KeepClones(r.dir, r.user, func(of string) bool { return of == "j1-1-c2" }); err != nil {
		t.Fatal(err)
	}
	r.write("inside", "now, and longer")
	if gone, err := c.Back(r.folders, r.user); err != nil || len(gone) != 4 {
		t.Errorf("without its clones: %q, %v", gone, err)
	}
	r.is("inside", "now, and long")
	if err := KeepClones(r.dir, r.user, func(string) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(r.path(ClonesFolder)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder stays: %v", err)
	}
}

// Of a file that several guests write the first clone counts: when it was made all of them were suspended. What an earlier
// attempt left does not.
func firstCounts(t *testing.T, disk string) {
	r := newTree(t, disk)
	r.write("shared", "stale")
	r.cut("c1", "shared")
	r.write("shared", "at the cut")
	first := r.cut("c1", "shared") // ready again: the attempt before came to nothing
	second := Cut{Files: []File{r.open("shared")}}
	r.write("shared", "the first runs on")
	second.Clone(r.folders, r.at("c1"))
	if len(second.Files) != 1 || second.Files[0].Clone != first.Files[0].Clone {
		t.Fatalf("%+v, %+v", first, second)
	}
	if _, err := second.Back(r.folders, r.user); err != nil {
		t.Fatal(err)
	}
	r.is("shared", "at the cut")
	late := Cut{Files: []File{r.open("shared")}}
	late.Clone(r.folders, Clones{Of: "c2", User: r.user, Until: time.Now()})
	if len(late.Amiss) != 1 || !strings.Contains(late.Amiss[0], "no time") || late.Files[0].Clone != "" {
		t.Errorf("%+v", late)
	}
}

// Nothing is cloned with other rights than the job's user's, or out of the job's directory; and where the file system cannot
// clone, nothing is left.
func nobodyElses(t *testing.T, disk string) {
	job := filepath.Join(disk, "job")
	if err := errors.Join(os.MkdirAll(job, 0o755), os.WriteFile(filepath.Join(disk, "secret"), []byte("secret"), 0o600), os.Mkdir(filepath.Join(disk, "else"), 0o777), os.Chmod(filepath.Join(disk, "else"), 0o777)); err != nil {
		t.Fatal(err)
	}
	r := newTree(t, job)
	r.write("own", "own")
	if err := errors.Join(os.Link(filepath.Join(disk, "secret"), r.path("root's")), os.Symlink("../secret", r.path("link"))); err != nil {
		t.Fatal(err)
	}
	linked := r.open("link")
	c := Cut{Files: []File{r.open("root's"), linked, r.open("own")}}
	c.Clone(r.folders, r.at("c1"))
	if len(c.Amiss) != 2 || c.Files[0].Clone != "" || c.Files[1].Clone != "" || c.Files[2].Clone == "" {
		t.Errorf("%+v", c)
	}
	for _, name := range []string{"../../../secret", "..", "c1/../../root's", "c1/", "/c1", ""} {
		f := r.open("own")
		if f.Clone = name; name == "" {
			continue
		}
		if _, err := (Cut{Files: []File{f}}).Back(r.folders, r.user); err == nil {
			t.Errorf("a clone named %q is taken", name)
		}
	}
	r.is("own", "own")

	if err := errors.Join(os.RemoveAll(r.path(ClonesFolder)), os.Symlink("../else", r.path(ClonesFolder))); err != nil {
		t.Fatal(err)
	}
	c = Cut{Files: []File{r.open("own")}}
	c.Clone(r.folders, r.at("c1"))
	if left, _ := os.ReadDir(filepath.Join(disk, "else")); len(left) != 0 || len(c.Amiss) != 1 {
		t.Errorf("a link out of the directory was followed: %v, %+v", left, c)
	}

	plain := t.TempDir()
	if err := unix.Mount("tmpfs", plain, "tmpfs", 0, "mode=755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(plain, 0) })
	r = newTree(t, plain)
	r.write("own", "own")
	c = r.cut("c1", "own")
	if left, _ := os.ReadDir(plain); len(left) != 1 || c.Files[0].Clone != "" || fmt.Sprint(c.Amiss) != "[own is odd]" || CanClone(plain) {
		t.Errorf("where files cannot be cloned: %v, %+v", left, c)
	}
}

// A user's quota counts for clones, too: then the file is cut back as without.
func quota(t *testing.T, disk string) {
	testkit.Run(t, "btrfs", "subvolume", "create", disk)
	r := newTree(t, disk)
	r.write("own", strings.Repeat("x", 1<<20))
	testkit.Run(t, "btrfs", "filesystem", "sync", disk)
	testkit.Run(t, "btrfs", "quota", "enable", disk)
	testkit.Run(t, "btrfs", "quota", "rescan", "-W", disk) // which enabling has begun
	testkit.Run(t, "btrfs", "qgroup", "limit", "1M", disk)
	c := r.cut("c1", "own")
	if len(c.Amiss) != 1 || !strings.Contains(c.Amiss[0], "quota") || c.Files[0].Clone != "" {
		t.Errorf("beyond the quota: %+v", c)
	}
}

// What cloning takes in the stop, of files whose content is on the disk and of such whose content is not.
func BenchmarkClones(b *testing.B) {
	for _, kind := range []string{"btrfs", "xfs"} {
		disk := testkit.Reflinks(b, kind)
		for _, ready := range []bool{true, false} {
			b.Run(fmt.Sprintf("%s,ready=%v", kind, ready), func(b *testing.B) {
				r := newTree(b, filepath.Join(disk, fmt.Sprint("job", ready)))
				for n := range b.N {
					b.StopTimer()
					c := Cut{}
					for i := range 16 {
						name := fmt.Sprint("f", i)
						r.write(name, strings.Repeat("y", 1<<20))
						c.Files = append(c.Files, r.open(name))
					}
					to := r.at(fmt.Sprint("c", n))
					if ready {
						if err := c.ReadyToClone(r.folders, to); err != nil {
							b.Fatal(err)
						}
					}
					b.StartTimer()
					c.Clone(r.folders, to)
					b.StopTimer()
					if err := c.SyncClones(r.folders, r.user); err != nil || len(c.Amiss) != 0 {
						b.Fatal(err, c.Amiss)
					}
					if err := KeepClones(r.dir, r.user, func(string) bool { return false }); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
