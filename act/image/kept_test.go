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

// usedAt is when an image was used.
func usedAt(t *testing.T, s *Store, d fleet.Digest) time.Time {
	info, err := os.Stat(s.Folder(d))
	if err != nil {
		t.Fatal(err)
	}
	return info.ModTime()
}
