package image

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"pagurus/fleet"
)

// openStore is a new store.
func openStore(t *testing.T) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "images"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// put publishes an image whose root is text.
func put(t *testing.T, s *Store, name, text string) fleet.Image {
	t.Helper()
	w, err := s.workplace("put-"+name, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	files := filepath.Join(w.dir, "files")
	if err := os.Mkdir(files, 0o755); err != nil {
		t.Fatal(err)
	}
	for file, content := range map[string]string{RootFile: text, KernelFile: "kernel", ModulesFile: "modules"} {
		if err := os.WriteFile(filepath.Join(files, file), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	img := fleet.Image{Name: name, Suite: "trixie", Recipe: Recipe{Suite: "trixie", Packages: []string{text}}.Digest()}
	if img.Digest, img.Bytes, err = digestFolder(files); err != nil {
		t.Fatal(err)
	}
	if err := s.publish(files, img, nil); err != nil {
		t.Fatal(err)
	}
	return img
}

// tree lists every file of the store.
func tree(t *testing.T, s *Store) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(s.dir, func(path string, e os.DirEntry, err error) error {
		out = append(out, strings.TrimPrefix(path, s.dir))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func unused(fleet.Digest) bool { return false }

func TestNamesMeanImages(t *testing.T) {
	s := openStore(t)
	empty := tree(t, s)
	one, two := put(t, s, "one", "root"), put(t, s, "two", "another")
	also := put(t, s, "also", "root")
	if one.Digest != also.Digest || one.Digest == two.Digest {
		t.Errorf("digests %s %s %s", one.Digest, two.Digest, also.Digest)
	}
	list, err := s.List()
	if err != nil || len(list) != 3 || list[0].Name != "also" || list[2].Name != "two" {
		t.Errorf("list %v, %v", list, err)
	}
	for _, name := range []string{"three", "", "../one", "a/b", ".json", strings.Repeat("x", 64)} {
		if _, err := s.Find(name); err == nil {
			t.Errorf("there is an image %q", name)
		}
	}
	if _, err := s.Find("three"); !errors.Is(err, ErrUnknown) {
		t.Errorf("unknown image: %v", err)
	}
	busy := func(d fleet.Digest) bool { return d == one.Digest }
	if err := s.Remove("one", busy); !errors.Is(err, ErrInUse) {
		t.Errorf("removing what is in use: %v", err)
	}
	if _, err := s.Find("one"); err != nil {
		t.Errorf("after a refusal: %v", err)
	}
	if err := s.Remove("one", unused); err != nil || !s.Has(one.Digest) {
		t.Errorf("the files went with the first of two names: %v", err)
	}
	for _, name := range []string{"also", "two"} {
		if err := s.Remove(name, unused); err != nil {
			t.Error(err)
		}
	}
	if left := tree(t, s); !slices.Equal(left, empty) {
		t.Errorf("left behind: %v", left)
	}
}

func TestANewerBuildLeavesTheOldUntilPruned(t *testing.T) {
	s := openStore(t)
	old := put(t, s, "x", "old")
	put(t, s, "x", "new")
	busy := true
	inUse := func(d fleet.Digest) bool { return busy && d == old.Digest }
	for _, busy = range []bool{true, false} {
		if err := s.Prune(inUse); err != nil || s.Has(old.Digest) != busy {
			t.Errorf("in use %v: kept %v, %v", busy, s.Has(old.Digest), err)
		}
	}
}

func TestOpenedIsWhatAProcessHasOpen(t *testing.T) {
	s := openStore(t)
	img := put(t, s, "x", "root")
	if s.Opened(img.Digest) {
		t.Error("it says that it is open, and it is not")
	}
	f, err := os.Open(filepath.Join(s.Folder(img.Digest), RootFile))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if !s.Opened(img.Digest) {
		t.Error("open here, and it does not say so")
	}
}

func TestEnsureFetchesWholeImagesOnly(t *testing.T) {
	from := openStore(t)
	img := put(t, from, "x", strings.Repeat("root", 1000))
	honest := func(_ context.Context, d fleet.Digest, file string, w io.Writer) error {
		f, err := os.Open(filepath.Join(from.Folder(d), file))
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(w, f)
		return err
	}
	// All their files except the root are correct.
	lying := func(lie func(w io.Writer) error) Fetch {
		return func(ctx context.Context, d fleet.Digest, file string, w io.Writer) error {
			if file != RootFile {
				return honest(ctx, d, file, w)
			}
			return lie(w)
		}
	}
	for name, c := range map[string]struct {
		fetch Fetch
		want  string
	}{
		"no fetch": {nil, "not on this machine"},
		"another content": {lying(func(w io.Writer) error {
			_, err := io.WriteString(w, "another")
			return err
		}), "another image or broken"},
		"cut off": {lying(func(w io.Writer) error {
			_, err := io.Copy(w, io.MultiReader(strings.NewReader("roo"), iotest.ErrReader(io.ErrUnexpectedEOF)))
			return err
		}), "root.img: unexpected EOF"},
		"full disk":      {lying(func(io.Writer) error { return syscall.ENOSPC }), "is full: make room"},
		"nothing at all": {func(context.Context, fleet.Digest, string, io.Writer) error { return nil }, "image.json"},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t)
			before := tree(t, s)
			s.FetchWith(c.fetch)
			if _, err := s.Ensure(t.Context(), img.Digest); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
			if after := tree(t, s); !slices.Equal(before, after) {
				t.Errorf("left behind: %v", after)
			}
		})
	}
	s := openStore(t)
	s.FetchWith(honest)
	folder, err := s.Ensure(t.Context(), img.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if got, _, err := digestFolder(folder); err != nil || got != img.Digest {
		t.Errorf("fetched %s, %v", got, err)
	}
	s.FetchWith(nil)
	if again, err := s.Ensure(t.Context(), img.Digest); err != nil || again != folder {
		t.Errorf("the second time: %s, %v", again, err)
	}
	if list, err := s.List(); err != nil || len(list) != 0 {
		t.Errorf("a fetched image has a name: %v, %v", list, err)
	}
	for _, d := range []fleet.Digest{"", "sha256-12", "../../etc"} {
		if _, err := s.Ensure(t.Context(), d); err == nil {
			t.Errorf("digest %q is taken", d)
		}
	}
}

func TestEnsureOfManyFetchesOnce(t *testing.T) {
	from := openStore(t)
	img := put(t, from, "x", "root")
	s := openStore(t)
	fetched := make(chan string, 100)
	s.FetchWith(func(_ context.Context, d fleet.Digest, file string, w io.Writer) error {
		fetched <- file
		b, err := os.ReadFile(filepath.Join(from.Folder(d), file))
		if err == nil {
			_, err = w.Write(b)
		}
		return err
	})
	done := make(chan error)
	for range 5 {
		go func() {
			_, err := s.Ensure(t.Context(), img.Digest)
			done <- err
		}()
	}
	for range 5 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if len(fetched) != len(Files()) {
		t.Errorf("%d files fetched", len(fetched))
	}
}

func TestLitterOfKilledProcessesIsSwept(t *testing.T) {
	s := openStore(t)
	before := tree(t, s)
	held, err := s.workplace("held", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(s.dir, "building", "litter", "root"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := s.workplace("held", nil); !errors.Is(err, errBusy) {
		t.Errorf("a held workplace: %v", err)
	}
	s.sweep()
	if _, err := os.Stat(held.dir); err != nil {
		t.Errorf("swept away from under somebody: %v", err)
	}
	if err := held.close(); err != nil {
		t.Error(err)
	}
	if after := tree(t, s); !slices.Equal(before, after) {
		t.Errorf("left behind: %v", after)
	}
}

func TestWaitingForABuildEndsWithItsContext(t *testing.T) {
	s := openStore(t)
	held, err := s.workplace("x", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer held.close()
	ctx, cancel := context.WithCancel(t.Context())
	said := 0
	_, err = s.workplace("x", patiently(ctx, func() { said++; cancel() }))
	if !errors.Is(err, context.Canceled) || said != 1 {
		t.Errorf("%v, said %d times", err, said)
	}
}

// A name whose files were deleted cannot be run, and is still listed, so that it can be
// removed or rebuilt.
func TestANameWithoutFilesSaysSo(t *testing.T) {
	s := openStore(t)
	img := put(t, s, "lost", "root")
	if err := os.RemoveAll(s.Folder(img.Digest)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Find("lost"); err == nil || !strings.Contains(err.Error(), "image build lost") {
		t.Errorf("found: %v", err)
	}
	if all, err := s.List(); err != nil || len(all) != 1 {
		t.Errorf("listed: %v %v", all, err)
	}
}

// A name goes to the image that was built later, whichever came first.
func TestLaterImageHasTheName(t *testing.T) {
	s := openStore(t)
	old, other := put(t, s, "name", "old"), put(t, s, "other", "new")
	other.Name, other.Built = "name", old.Built.Add(time.Second)
	for _, c := range []struct {
		img      fleet.Image
		replaced bool
	}{{old, false}, {other, true}, {other, false}, {old, false}} {
		if replaced, err := s.Supersede(c.img); err != nil || replaced != c.replaced {
			t.Errorf("%+v: %v, %v", c.img, replaced, err)
		}
	}
	if now, err := s.Find("name"); err != nil || now.Digest != other.Digest {
		t.Errorf("it is %+v, %v", now, err)
	}
	other.Name = "more"
	if replaced, err := s.Supersede(other); err != nil || replaced {
		t.Errorf("a name that nobody has: %v, %v", replaced, err)
	}
	if free, err := s.FreeBytes(); err != nil || free <= 0 {
		t.Errorf("%d, %v", free, err)
	}
}

// A name that a backup has is given, unless it is taken; the files are then missing, and whoever
// needs them is told how they are built.
func TestRememberedNames(t *testing.T) {
	s := openStore(t)
	here := put(t, s, "here", "root")
	gone := fleet.Image{Name: "gone", Digest: fleet.Digest("sha256-" + strings.Repeat("0", 64))}
	if missing, err := s.Remember(gone); err != nil || !missing {
		t.Errorf("a new name: %v, %v", missing, err)
	}
	if _, err := s.Find("gone"); err == nil || !strings.Contains(err.Error(), "`pagurus image build gone` builds it again") {
		t.Errorf("its files: %v", err)
	}
	other := gone
	other.Name = "here"
	if missing, err := s.Remember(other); err != nil || missing {
		t.Errorf("a name that is taken: %v, %v", missing, err)
	}
	if now, err := s.Find("here"); err != nil || now.Digest != here.Digest {
		t.Errorf("it is now %+v, %v", now, err)
	}
	other.Name = "../up"
	if _, err := s.Remember(other); err == nil {
		t.Error("a name that is no name was given")
	}
}
