package vault

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pagurus/fleet"
)

// A vault whose folder is removed while it is in use says so, has no room, keeps nothing, and gives nothing for whole. When the folder
// is opened again it is as good as a new one.
func TestFolderIsGone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "vault")
	s := opened(t, dir, 0)
	folder, _ := guest(t)
	p, next := Part{Checkpoint: "j1c1", Guest: "j1g0"}, Part{Checkpoint: "j1c2", Guest: "j1g0"}
	put := saved(t, s, folder, p)
	if err := os.Rename(dir, dir+".moved"); err != nil {
		t.Fatal(err)
	}
	for _, empty := range []bool{false, true} { // removed, or a disk that is not mounted
		if empty {
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if u := s.Usage(); u.Free != 0 || !strings.Contains(u.Trouble, "its folder is gone") {
			t.Errorf("usage %+v", u)
		}
		if _, err := Save(t.Context(), folder, next, s); err == nil || !strings.Contains(err.Error(), "its folder is gone") || strings.Contains(err.Error(), "\n") {
			t.Errorf("saved: %v", err)
		}
		out := t.TempDir()
		if err := Load(t.Context(), fleet.KeptPart{PartName: p, Manifest: put.Manifest}, s, out); !errors.Is(err, ErrDamaged) {
			t.Errorf("loaded: %v", err)
		}
		same(t, content(t, out), nil)
		if err := s.Remove("j1c9"); err != nil { // of which nothing is there
			t.Errorf("removed: %v", err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = opened(t, dir, 0)
	if u := s.Usage(); u.Trouble != "" || u.Parts != 0 {
		t.Errorf("usage %+v", u)
	}
	loads(t, s, next, saved(t, s, folder, next).Manifest, folder)
}
