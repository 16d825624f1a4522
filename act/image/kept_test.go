package image

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// What is fetched stays within bounds: what nobody uses goes, the user's own first and of it the oldest; what a process has open, or is named
// here, stays. Who is refused is told why, nothing goes in vain, and another user goes on.
func TestFetchedImagesAreBounded(t *testing.T) {
	from, s := openStore(t), openStore(t)
	s.FetchWith(func(_ context.Context, d fleet.Digest, file string, w io.Writer) error {
		f, err := os.Open(filepath.Join(from.Folder(d), file))
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(w, f)
		return err
	})
	images := map[string]fleet.Image{}
	of := func(name string, uid uint32) {
		img := put(t, from, name, name)
		img.UID = uid
		if err := writeLabel(filepath.Join(from.Folder(img.Digest), LabelFile), img); err != nil {
			t.Fatal(err)
		}
		images[name] = img
	}
	of("ada1", 7)
	of("ada2", 7)
	of("ada3", 7)
	of("bob1", 8)
	of("bob2", 8)
	of("bob3", 8)
	used := func(name string, ago time.Duration) {
		at := time.Now().Add(-ago)
		if err := os.Chtimes(s.Folder(images[name].Digest), at, at); err != nil {
			t.Fatal(err)
		}
	}
	ensure := func(name string) error {
		_, err := s.Ensure(t.Context(), images[name].Digest)
		return err
	}
	are := func(when, want string) {
		t.Helper()
		var have []string
		for _, name := range []string{"ada1", "ada2", "ada3", "bob1", "bob2", "bob3"} {
			if s.Has(images[name].Digest) {
				have = append(have, name)
			}
		}
		if got := strings.Join(have, " "); got != want {
			t.Errorf("%s there are %s, not %s", when, got, want)
		}
	}
	full := errors.New("no more than three, and two of each user")
	s.BoundFetched(func(there []fleet.Image, more fleet.Image) error {
		mine := 0
		for _, i := range there {
			if i.Bytes <= 0 {
				t.Errorf("%+v", i)
			}
			if i.UID == more.UID {
				mine++
			}
		}
		if mine >= 2 || len(there) >= 3 {
			return full
		}
		return nil
	}, 1)
	for _, name := range []string{"ada1", "ada2", "bob1"} {
		if err := ensure(name); err != nil {
			t.Fatal(err)
		}
	}
	if err := ensure("ada3"); !errors.Is(err, full) {
		t.Errorf("all were used just now: %v", err)
	}
	are("after a refusal", "ada1 ada2 bob1")
	used("ada1", 2*time.Hour)
	used("ada2", time.Hour)
	used("bob1", 3*time.Hour)
	open, err := os.Open(filepath.Join(s.Folder(images["ada1"].Digest), RootFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := ensure("ada3"); err != nil {
		t.Error(err)
	}
	are("with one that is open", "ada1 ada3 bob1")
	if err := errors.Join(open.Close(), ensure("bob2")); err != nil {
		t.Error(err)
	}
	are("of another user the own goes first", "ada1 ada3 bob2")
	if err := ensure("ada1"); err != nil || time.Since(usedAt(t, s, images["ada1"].Digest)) > time.Minute {
		t.Errorf("what is there is not noted as used: %v", err)
	}
	// On a full disk what is there stays, and runs.
	s.BoundFetched(nil, 1<<60)
	used("ada1", time.Hour)
	if err := ensure("bob3"); err == nil || !strings.Contains(err.Error(), "are kept free for others, and the image needs") {
		t.Errorf("on a full disk: %v", err)
	}
	are("on a full disk", "ada1 ada3 bob2")
	if err := ensure("ada1"); err != nil {
		t.Errorf("what is there: %v", err)
	}
	for _, e := range tree(t, s) {
		if strings.HasPrefix(e, "/building/") {
			t.Errorf("left behind: %s", e)
		}
	}
}

// On a machine that is controller and host, what jobs elsewhere may need stays when the host fetches: earlier builds of a name, and what was
// fetched for other hosts. What the host had fetched for itself before it got a name here is kept with the name.
func TestWhatAControllerHasStays(t *testing.T) {
	from, s := openStore(t), openStore(t)
	fetch := func(_ context.Context, d fleet.Digest, file string, w io.Writer) error {
		b, err := os.ReadFile(filepath.Join(from.Folder(d), file))
		if err == nil {
			_, err = w.Write(b)
		}
		return err
	}
	s.FetchWith(fetch)
	full := errors.New("no more than one")
	s.BoundFetched(func(there []fleet.Image, _ fleet.Image) error {
		if len(there) > 0 {
			return full
		}
		return nil
	}, 1)
	ensure := func(s *Store, img fleet.Image) {
		t.Helper()
		if _, err := s.Ensure(t.Context(), img.Digest); err != nil {
			t.Error(err)
		}
		at := time.Now().Add(-time.Hour)
		if err := os.Chtimes(s.Folder(img.Digest), at, at); err != nil {
			t.Error(err)
		}
	}
	built := put(t, s, "built", "the first")
	put(t, s, "built", "the second")
	unbounded := &Store{dir: s.dir}
	mirrored := put(t, from, "mirrored", "of another controller")
	ensure(unbounded.FetchingWith(fetch), mirrored)
	named := put(t, from, "named", "fetched, then named")
	ensure(s, named)
	if _, err := s.Supersede(named); err != nil {
		t.Error(err)
	}
	put(t, s, "named", "in its place")
	mine := put(t, from, "mine", "fetched")
	ensure(s, mine)
	ensure(s, put(t, from, "next", "fetched next"))
	for what, img := range map[string]fleet.Image{"the earlier build": built, "the one of another controller": mirrored, "the one that had a name": named} {
		if !s.Has(img.Digest) {
			t.Errorf("%s is gone", what)
		}
	}
	if s.Has(mine.Digest) {
		t.Error("what was fetched before stays")
	}
	if err := s.Prune(unused); err != nil || s.Has(built.Digest) || s.Has(mirrored.Digest) {
		t.Errorf("builds that nobody needs stay: %v", err)
	}
}

// usedAt is when an image was used.
func usedAt(t *testing.T, s *Store, d fleet.Digest) time.Time {
	info, err := os.Stat(s.Folder(d))
	if err != nil {
		t.Fatal(err)
	}
	return info.ModTime()
}
