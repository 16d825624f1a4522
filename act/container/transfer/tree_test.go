package transfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/internal/testkit"
)

// memoryRoot mounts a tmpfs, as a container has.
func memoryRoot(t *testing.T) string {
	t.Helper()
	testkit.Root(t)
	dir := t.TempDir()
	if err := unix.Mount("test", dir, "tmpfs", 0, "size=256m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// treePair is a source and its target.
type treePair struct {
	t        *testing.T
	from, to string
	source   *Source
	target   *Target
	mapped   map[uint64]bool
}

func newPair(t *testing.T) *treePair {
	t.Helper()
	p := &treePair{t: t, from: memoryRoot(t), to: memoryRoot(t)}
	for _, dir := range []string{p.from + "/a", p.from + "/b"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p.source = NewSource(p.from, "a", "b")
	var err error
	if p.target, err = NewTarget(p.to); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.target.Close() })
	return p
}

// pass makes one pass and returns how many bytes of content were sent.
func (p *treePair) pass() int64 {
	p.t.Helper()
	n, err := p.source.Pass(p.t.Context(), p.mapped, func(m []byte) error { return p.target.Apply(bytes.Clone(m)) })
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}

// same checks that a program can see no difference between both sides.
func (p *treePair) same() {
	p.t.Helper()
	a, b := listing(p.t, p.from), listing(p.t, p.to)
	for _, line := range a {
		if !slices.Contains(b, line) {
			p.t.Errorf("only at the source: %s", line)
		}
	}
	for _, line := range b {
		if !slices.Contains(a, line) {
			p.t.Errorf("only at the target: %s", line)
		}
	}
	if p.t.Failed() {
		p.t.FailNow()
	}
}

// listing returns everything visible below a folder, except sockets.
func listing(t *testing.T, top string) (out []string) {
	t.Helper()
	first := map[uint64]string{}
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == top {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT == unix.S_IFSOCK {
			return nil
		}
		name := strings.TrimPrefix(path, top)
		line := fmt.Sprintf("%s %o %d:%d %d.%09d %x", name, st.Mode, st.Uid, st.Gid, st.Mtim.Sec, st.Mtim.Nsec, st.Rdev)
		switch {
		case st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink > 1:
			if first[st.Ino] == "" {
				first[st.Ino] = name
			}
			line += " is " + first[st.Ino]
			fallthrough
		case st.Mode&unix.S_IFMT == unix.S_IFREG:
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %d %x", len(text), hash(text))
		case st.Mode&unix.S_IFMT == unix.S_IFLNK:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			line += " to " + to
		}
		names := make([]byte, 4096)
		if n, err := unix.Llistxattr(path, names); err == nil {
			all := strings.Split(strings.Trim(string(names[:n]), "\x00"), "\x00")
			slices.Sort(all)
			for _, x := range all {
				value := make([]byte, 4096)
				if n, err := unix.Lgetxattr(path, x, value); err == nil {
					line += fmt.Sprintf(" %s=%q", x, value[:n])
				}
			}
		}
		out = append(out, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func hash(b []byte) (h uint64) {
	h = 14695981039346656037
	for _, c := range b {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestEveryKind: everything that a container can make arrives unchanged.
func TestEveryKind(t *testing.T) {
	p := newPair(t)
	a := p.from + "/a/"
	must(t, os.WriteFile(a+"file", []byte("content"), 0o640))
	must(t, os.Chown(a+"file", 1234, 1235))
	must(t, os.WriteFile(a+"setuid", []byte("#!"), 0o755))
	must(t, unix.Chmod(a+"setuid", 0o4755))
	must(t, unix.Lsetxattr(a+"setuid", "security.capability", []byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 0))
	must(t, os.WriteFile(a+"empty", nil, 0o600))
	must(t, os.Link(a+"file", a+"twin"))
	must(t, os.Symlink("../../../etc/passwd", a+"link"))
	must(t, os.Lchown(a+"link", 7, 8))
	must(t, os.Mkdir(a+"dir", 0o711))
	must(t, unix.Lsetxattr(a+"dir", "trusted.overlay.opaque", []byte("y"), 0))
	must(t, os.WriteFile(a+"dir/name with \n in it", []byte("x"), 0o600))
	must(t, unix.Mkfifo(a+"fifo", 0o622))
	must(t, unix.Mknod(a+"hidden", unix.S_IFCHR, 0)) // as an overlay marks a removed file
	sparse, err := os.Create(a + "sparse")
	must(t, err)
	must(t, sparse.Truncate(64<<20))
	_, err = sparse.WriteAt([]byte("deep"), 40<<20)
	must(t, err)
	must(t, sparse.Close())
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	must(t, err)
	defer unix.Close(socket)
	must(t, unix.Bind(socket, &unix.SockaddrUnix{Name: a + "socket"}))
	sent := p.pass()
	p.same()
	if sent > 1<<20 {
		t.Errorf("%d bytes were sent of files with holes", sent)
	}
	var st unix.Stat_t
	if err := unix.Stat(p.to+"/a/sparse", &st); err != nil || st.Blocks*512 > 1<<20 {
		t.Errorf("the holes take %d bytes at the target: %v", st.Blocks*512, err)
	}
	time.Sleep(2 * coarse)
	if p.pass(); p.pass() != 0 {
		t.Error("something was sent though nothing had changed")
	}
	p.same()
}

// TestChanges makes random changes between passes.
func TestChanges(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	p := newPair(t)
	name := func() string {
		parts := []string{[]string{"a", "b"}[random.IntN(2)]}
		for range 1 + random.IntN(3) {
			parts = append(parts, fmt.Sprintf("n%d", random.IntN(4)))
		}
		return filepath.Join(p.from, filepath.Join(parts...))
	}
	content := func() []byte {
		b := make([]byte, random.IntN(3*blockBytes))
		for i := range b {
			if random.IntN(4) > 0 {
				b[i] = byte(random.IntN(256))
			}
		}
		return b
	}
	for range 60 {
		for range 1 + random.IntN(8) {
			n := name()
			// Many of these fail, as they do for programs.
			switch random.IntN(14) {
			case 0, 1:
				os.MkdirAll(n, 0o755)
			case 2, 3:
				os.WriteFile(n, content(), 0o644)
			case 4:
				os.Rename(n, name())
			case 5:
				os.Remove(n)
			case 6:
				os.RemoveAll(n)
			case 7:
				os.Link(n, name())
			case 8:
				os.Symlink(name(), n)
			case 9:
				os.Chmod(n, os.FileMode(random.IntN(0o1000)))
			case 10:
				os.Lchown(n, random.IntN(9), random.IntN(9))
			case 11:
				os.Truncate(n, int64(random.IntN(3*blockBytes)))
			case 12:
				if f, err := os.OpenFile(n, os.O_WRONLY, 0); err == nil {
					f.WriteAt([]byte{byte(random.IntN(256))}, int64(random.IntN(3*blockBytes)))
					f.Close()
				}
			case 13:
				unix.Lsetxattr(n, fmt.Sprintf("trusted.x%d", random.IntN(2)), []byte{byte(random.IntN(256))}, 0)
			}
		}
		p.pass()
		if p.same(); t.Failed() {
			return
		}
	}
}

// TestMapped: a mapped file's times do not show writes to it.
func TestMapped(t *testing.T) {
	p := newPair(t)
	path := p.from + "/a/shared"
	must(t, os.WriteFile(path, make([]byte, 3*blockBytes), 0o600))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	m, err := unix.Mmap(int(f.Fd()), 0, 3*blockBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	defer unix.Munmap(m)
	for i := range m {
		m[i] = 1 // every page exists
	}
	var st unix.Stat_t
	must(t, unix.Fstat(int(f.Fd()), &st))
	p.mapped = map[uint64]bool{st.Ino: true}
	time.Sleep(2 * coarse)
	p.pass()
	m[blockBytes+5] = 7
	if sent := p.pass(); sent != blockBytes {
		t.Errorf("%d bytes were sent for one byte written", sent)
	}
	p.same()
	m[5] = 9
	p.mapped = nil // unmapped since; earlier writes still count
	p.pass()
	p.same()
}

// TestWhileItChanges: passes run while programs change the folders. One more pass after they
// have ended makes both sides equal.
func TestWhileItChanges(t *testing.T) {
	p := newPair(t)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			dir := fmt.Sprintf("%s/b/d%d", p.from, i%7)
			os.MkdirAll(dir, 0o755)
			os.WriteFile(fmt.Sprintf("%s/f%d", dir, i%5), bytes.Repeat([]byte{byte(i)}, i%blockBytes), 0o600)
			os.Rename(dir, fmt.Sprintf("%s/b/e%d", p.from, i%3))
			os.RemoveAll(fmt.Sprintf("%s/b/d%d", p.from, (i+3)%7))
			os.Symlink("/etc", fmt.Sprintf("%s/b/d%d", p.from, (i+2)%7))
			os.Link(fmt.Sprintf("%s/f%d", dir, i%5), fmt.Sprintf("%s/a/l%d", p.from, i%4))
			os.Link(fmt.Sprintf("%s/a/l%d", p.from, i%4), fmt.Sprintf("%s/b/l%d", p.from, i%3))
			os.Remove(fmt.Sprintf("%s/a/l%d", p.from, (i+1)%4))
			os.Remove(fmt.Sprintf("%s/b/l%d", p.from, (i+1)%3))
		}
	}()
	for range 200 {
		p.pass()
	}
	stop()
	<-done
	p.pass()
	p.same()
}

// TestRemovedMeanwhile: what goes away between being looked at and being sent is as if
// it had never been there.
func TestRemovedMeanwhile(t *testing.T) {
	for _, changed := range []func(a string){
		func(a string) { os.Remove(a + "one") },                              // first of two names
		func(a string) { os.RemoveAll(a + "z") },                             // a folder with something in it
		func(a string) { os.RemoveAll(a + "z"); os.Symlink("/etc", a+"z") },  // replaced by something else
		func(a string) { os.Remove(a + "two"); os.Mkdir(a+"two", 0o755) },    // also
		func(a string) { os.Remove(a + "link"); os.Remove(a + "z/in/file") }, // both kinds of leaf
		func(a string) { os.Rename(a+"z/in", a+"in") },                       // to a place that the pass has left
	} {
		p := newPair(t)
		a := p.from + "/a/"
		must(t, os.WriteFile(a+"one", []byte("one"), 0o600))
		must(t, os.Link(a+"one", a+"two"))
		must(t, os.Symlink("one", a+"link"))
		must(t, os.MkdirAll(a+"z/in", 0o755))
		must(t, os.WriteFile(a+"z/in/file", []byte("x"), 0o600))
		once := false
		_, err := p.source.Pass(t.Context(), nil, func(m []byte) error {
			if !once {
				once = true
				changed(a)
			}
			return p.target.Apply(bytes.Clone(m))
		})
		must(t, err)
		p.pass()
		p.same()
	}
}

// TestOverlay: a container's changes to its image are the same on top of the same image
// elsewhere.
func TestOverlay(t *testing.T) {
	top, p := memoryRoot(t), newPair(t)
	lower := filepath.Join(top, "lower")
	for path, text := range map[string]string{"keep": "keep", "gone": "gone", "dir/one": "1", "dir/two": "2", "old/x": "x"} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(lower, path)), 0o755))
		must(t, os.WriteFile(filepath.Join(lower, path), []byte(text), 0o644))
	}
	mount := func(store, name string) string {
		at := filepath.Join(top, name)
		must(t, os.MkdirAll(at, 0o755))
		must(t, os.MkdirAll(store+"/work", 0o755))
		must(t, unix.Mount("test", at, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s/a,workdir=%s/work", lower, store, store)))
		t.Cleanup(func() { unix.Unmount(at, unix.MNT_DETACH) })
		return at
	}
	here := mount(p.from, "here")
	must(t, os.Remove(here+"/gone"))
	must(t, os.RemoveAll(here+"/dir"))
	must(t, os.Mkdir(here+"/dir", 0o755))
	must(t, os.WriteFile(here+"/dir/three", []byte("3"), 0o644))
	must(t, os.WriteFile(here+"/keep", []byte("changed"), 0o644))
	p.pass()
	must(t, os.Remove(here+"/old/x"))
	p.pass()
	there := mount(p.to, "there")
	for path, want := range map[string]string{"keep": "changed", "gone": "", "dir/one": "", "dir/three": "3", "old/x": ""} {
		got, err := os.ReadFile(filepath.Join(there, path))
		if string(got) != want || want == "" && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is %q (%v), want %q", path, got, err, want)
		}
	}
}

// TestHostile: a message is carried out inside the folder, or not at all.
func TestHostile(t *testing.T) {
	to, outside := memoryRoot(t), t.TempDir()
	target, err := NewTarget(to)
	must(t, err)
	defer target.Close()
	about := appendStat(nil, &unix.Stat_t{Mode: unix.S_IFREG | 0o644})
	folder := appendStat(nil, &unix.Stat_t{Mode: unix.S_IFDIR | 0o755})
	must(t, target.Apply(append(message(opLink, "link", outside), about...)))
	must(t, target.Apply(append(message(opFolder, "folder"), folder...)))
	for what, m := range map[string][]byte{
		"nothing":              {},
		"unknown":              message('?', "x"),
		"no name":              append(message(opFile, ""), about...),
		"upwards":              append(message(opFile, "../x"), about...),
		"from the root":        append(message(opFile, "/x"), about...),
		"not clean":            append(message(opFile, "a/../x"), about...),
		"through a link":       append(message(opFile, "link/x"), about...),
		"a link itself":        append(message(opFile, "link"), about...),
		"a folder":             append(message(opFile, "folder"), about...),
		"a device":             append(message(opNode, "disk"), appendStat(nil, &unix.Stat_t{Mode: unix.S_IFBLK | 0o666, Rdev: unix.Mkdev(254, 0)})...),
		"another device":       append(message(opNode, "mem"), appendStat(nil, &unix.Stat_t{Mode: unix.S_IFCHR | 0o666, Rdev: unix.Mkdev(1, 1)})...),
		"twin of what is out":  message(opSame, "twin", "../../etc/passwd"),
		"twin through a link":  message(opSame, "twin", "link/x"),
		"short":                message(opFile, "x"),
		"a block of no file":   append(message(opBlock, ""), make([]byte, 9)...),
		"the end of no file":   appendTimes(message(opClose, ""), &unix.Stat_t{}),
		"removal through link": message(opRemove, "link/x"),
	} {
		if err := target.Apply(m); err == nil && what != "removal through link" {
			t.Errorf("%s was taken", what)
		}
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("outside there is %v: %v", left, err)
	}
}

// FuzzTake: any message is an error or stays inside.
func FuzzTake(f *testing.F) {
	stat := &unix.Stat_t{Mode: unix.S_IFREG | 0o644, Size: 3}
	f.Add(append(message(opFile, "x"), appendStat(nil, stat)...), append(message(opBlock, ""), 0, 0, 0, 0, 0, 0, 0, 0, 1))
	f.Add(append(message(opLink, "x", "/etc"), appendStat(nil, stat)...), append(message(opFile, "x/y"), appendStat(nil, stat)...))
	f.Add(message(opRemove, "x"), message(opSame, "x", "y"))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		target, err := NewTarget(t.TempDir())
		must(t, err)
		defer target.Close()
		for _, m := range [][]byte{first, second} {
			if len(m) > 0 && (m[0] == opFile || m[0] == opHole) && len(m) > 40 {
				continue // of any size: the tmpfs limits that
			}
			_ = target.Apply(m)
		}
	})
}
