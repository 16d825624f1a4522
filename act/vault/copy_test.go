package vault

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// keptHere is a store with a checkpoint of two guests, and its description.
func keptHere(t *testing.T, seed uint64) (*Store, fleet.SealedCopy, map[string]string) {
	t.Helper()
	s, folder := opened(t, t.TempDir(), 0), t.TempDir()
	files := map[string]string{"memory": string(noise(seed, 3<<20)), "about": "it", "images/": "", "images/core": string(noise(seed+1, 300<<10))}
	write(t, folder, files)
	c := fleet.CheckpointCopy{Version: fleet.CopyVersion, Cluster: "here", Checkpoint: fleet.Checkpoint{ID: "j1c1", Job: "j1"}}
	for _, g := range []fleet.GuestID{"j1g0", "j1g1"} {
		put, err := Save(t.Context(), folder, Part{Checkpoint: "j1c1", Guest: g}, s)
		if err != nil {
			t.Fatal(err)
		}
		c.Checkpoint.Guests = append(c.Checkpoint.Guests, fleet.CheckpointPart{Guest: g, Manifest: put.Manifest, Bytes: put.Bytes})
	}
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return s, fleet.SealedCopy{Text: text, Seal: []byte("seal")}, files
}

// returned loads a guest of a copy that was given back to another store.
func returned(t *testing.T, to *Store, dir string) map[string]string {
	t.Helper()
	_, is, err := ReadCopy(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	part := Part{Checkpoint: "j1c7", Guest: "j1g1"}
	if err := Load(t.Context(), fleet.KeptPart{PartName: part, Manifest: is.Checkpoint.Guests[1].Manifest}, to, out); err != nil {
		t.Fatal(err)
	}
	return content(t, out)
}

// backs is a store to which a copy comes back.
type backs struct {
	*Store
	want map[fleet.GuestID]fleet.Digest
}

func (b backs) PutManifest(ctx context.Context, p Part, text []byte) error {
	return b.Back(b.want[p.Guest], 64<<20).PutManifest(ctx, p, text)
}

func backTo(t *testing.T, of fleet.SealedCopy) backs {
	t.Helper()
	is, err := fleet.ReadCopy(of.Text)
	if err != nil {
		t.Fatal(err)
	}
	b := backs{opened(t, t.TempDir(), 0), map[fleet.GuestID]fleet.Digest{}}
	for _, p := range is.Checkpoint.Guests {
		b.want[p.Guest] = p.Manifest
	}
	return b
}

// What is copied into a folder comes back, to a vault that has nothing, under another name, and stays there when it is opened again.
func TestCopyComesBack(t *testing.T) {
	s, of, files := keptHere(t, 1)
	dir := filepath.Join(t.TempDir(), "copy")
	if err := CheckCopy(dir, ""); err != nil {
		t.Fatal(err)
	}
	if err := WriteCopy(t.Context(), dir, of, s, nil); err != nil {
		t.Fatal(err)
	}
	if err := WriteCopy(t.Context(), dir, of, nil, nil); err != nil { // all is there
		t.Error(err)
	}
	to := backTo(t, of)
	last := int64(0)
	if err := GiveBack(t.Context(), dir, "j1c7", to, func(done, _ int64) { last = done }); err != nil {
		t.Fatal(err)
	}
	if all := int64(2 * (3<<20 + 300<<10 + 2)); last != all {
		t.Errorf("%d of %d bytes were told", last, all)
	}
	same(t, returned(t, to.Store, dir), files)
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	again := opened(t, dirOf(to.Store), 0)
	same(t, returned(t, again, dir), files)
}

// limited is a source, or a target, that breaks after some chunks.
type limited struct {
	Chunks
	mu   sync.Mutex
	left int
}

var errCut = errors.New("the line is cut")

func (l *limited) Chunk(ctx context.Context, p Part, d fleet.Digest) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left--; l.left < 0 {
		return nil, errCut
	}
	return l.Chunks.Chunk(ctx, p, d)
}

// A copy that is cut off is none, says how it goes on, and goes on.
func TestCopyIsCutOff(t *testing.T) {
	s, of, files := keptHere(t, 2)
	dir := t.TempDir()
	err := WriteCopy(t.Context(), dir, of, &limited{Chunks: s, left: 4}, nil)
	if !errors.Is(err, errCut) {
		t.Fatal(err)
	}
	said := func(what string, err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, _, err = ReadCopy(dir)
	said("half a copy", err, "the copy of j1c1 in "+dir+" is unfinished: `pagurus checkpoint copy j1c1 --to "+dir+"` finishes it")
	said("another into it", CheckCopy(dir, "j1c2"), "has an unfinished copy of j1c1")
	said("a new one into it", CheckCopy(dir, ""), "has an unfinished copy of j1c1")
	counts := &limited{Chunks: s, left: 1000}
	if err := WriteCopy(t.Context(), dir, of, counts, nil); err != nil {
		t.Fatal(err)
	}
	fresh := &limited{Chunks: s, left: 1000}
	if err := WriteCopy(t.Context(), t.TempDir(), of, fresh, nil); err != nil {
		t.Fatal(err)
	}
	if again, all := 1000-counts.left, 1000-fresh.left; again > all-4 {
		t.Errorf("%d of %d chunks were fetched again", again, all)
	}
	to := backTo(t, of)
	if err := GiveBack(t.Context(), dir, "j1c7", to, nil); err != nil {
		t.Fatal(err)
	}
	same(t, returned(t, to.Store, dir), files)
	said("a copy into a copy", CheckCopy(dir, "j1c2"), "has a copy of another checkpoint (j1c1)")
}

// Whatever is wrong with a folder is said in one sentence, before anything is written.
func TestCopyFolders(t *testing.T) {
	s, of, _ := keptHere(t, 3)
	full, file := t.TempDir(), filepath.Join(t.TempDir(), "file")
	write(t, full, map[string]string{"mine": "x"})
	write(t, filepath.Dir(file), map[string]string{"file": "x"})
	for what, c := range map[string]struct{ dir, says string }{
		"not empty": {full, "is not empty (it has mine): choose an empty one"},
		"a file":    {file, "is not a folder"},
		"no parent": {filepath.Join(full, "a", "b"), "is not there"},
	} {
		if err := CheckCopy(c.dir, ""); err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", what, err)
		}
		if err := WriteCopy(t.Context(), c.dir, of, s, nil); err == nil {
			t.Errorf("%s: written", what)
		}
	}
	same(t, content(t, full), map[string]string{"mine": "x"})
	if _, _, err := ReadCopy(full); err == nil || !strings.Contains(err.Error(), "has no copy of a checkpoint") {
		t.Error(err)
	}
	if _, _, err := ReadCopy(filepath.Join(full, "none")); err == nil || !strings.Contains(err.Error(), "is not there") {
		t.Error(err)
	}
	fresh := filepath.Join(t.TempDir(), "new")
	if err := errors.Join(CheckCopy(fresh, ""), CheckCopy(fresh, "j1c1")); err != nil {
		t.Error(err)
	}
	same(t, content(t, fresh), map[string]string{})
}

// Two programs do not write into one folder.
func TestCopyByTwo(t *testing.T) {
	dir := t.TempDir()
	c, err := openCopy(dir, "j1c1")
	if err != nil {
		t.Fatal(err)
	}
	if err := CheckCopy(dir, "j1c1"); err == nil || !strings.Contains(err.Error(), "another program writes a copy into") {
		t.Error(err)
	}
	if err := errors.Join(c.close(true), CheckCopy(dir, "j1c1")); err != nil {
		t.Error(err)
	}
}

// What has changed in a copy is noticed before it counts, and links lead nowhere outside.
func TestCopyWasChanged(t *testing.T) {
	s, of, _ := keptHere(t, 4)
	chunkIn := func(dir string) string {
		all, err := filepath.Glob(filepath.Join(dir, "chunks", "*", "*"))
		if err != nil || len(all) == 0 {
			t.Fatal(all, err)
		}
		return all[0]
	}
	for what, c := range map[string]struct {
		change func(dir string) error
		says   string
	}{
		"a chunk changed":    {func(dir string) error { return flip(chunkIn(dir)) }, "the copy is damaged"},
		"a chunk is missing": {func(dir string) error { return os.Remove(chunkIn(dir)) }, "is missing"},
		"a chunk is short":   {func(dir string) error { return os.Truncate(chunkIn(dir), 10) }, "the copy is damaged"},
		"a chunk is a pipe": {func(dir string) error {
			chunk := chunkIn(dir)
			return errors.Join(os.Remove(chunk), unix.Mkfifo(chunk, 0o600))
		}, "is not a file"},
		"a manifest changed": {func(dir string) error { return flip(filepath.Join(dir, "manifests", "j1g1.json")) }, "the copy is damaged"},
		"a manifest is gone": {func(dir string) error { return os.Remove(filepath.Join(dir, "manifests", "j1g0.json")) }, "its manifest is missing"},
		"another version": {func(dir string) error {
			return os.WriteFile(filepath.Join(dir, copyText), []byte(`{"version":2}`), 0o600)
		}, "it has version 2, and this program reads 1"},
		"no description": {func(dir string) error { return os.WriteFile(filepath.Join(dir, copyText), []byte(`{`), 0o600) }, "is not a copy of a checkpoint"},
		"chunks lead away": {func(dir string) error {
			return errors.Join(os.Rename(filepath.Join(dir, "chunks"), filepath.Join(dir, "other")), os.Symlink("/etc", filepath.Join(dir, "chunks")))
		}, "escapes"},
	} {
		dir := t.TempDir()
		if err := errors.Join(WriteCopy(t.Context(), dir, of, s, nil), c.change(dir)); err != nil {
			t.Fatal(what, err)
		}
		to := backTo(t, of)
		if err := GiveBack(t.Context(), dir, "j1c7", to, nil); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", what, err)
		}
		if err := to.Close(); err != nil {
			t.Error(err)
		}
	}
}

// flip changes a byte of a file.
func flip(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	b[len(b)/2] ^= 1
	return os.WriteFile(path, b, 0o600)
}

// A part comes back only with the manifest that it had, and only for a checkpoint of the same job.
func TestBackIsTheSame(t *testing.T) {
	s, of, _ := keptHere(t, 5)
	dir := t.TempDir()
	if err := WriteCopy(t.Context(), dir, of, s, nil); err != nil {
		t.Fatal(err)
	}
	to := backTo(t, of)
	to.want["j1g1"] = DigestOf(nil)
	if err := GiveBack(t.Context(), dir, "j1c7", to, nil); !errors.Is(err, ErrDamaged) {
		t.Errorf("another manifest: %v", err)
	}
	if err := GiveBack(t.Context(), dir, "j2c7", backTo(t, of), nil); err == nil {
		t.Error("another job's")
	}
	if err := GiveBack(t.Context(), dir, "j1c7", opened(t, t.TempDir(), 0), nil); err == nil {
		t.Error("as if it were saved under that name")
	}
}

// On a full disk a copy fails in one sentence, and goes on when there is room.
func TestCopyToFullDisk(t *testing.T) {
	testkit.Root(t)
	s, of, _ := keptHere(t, 6)
	disk := t.TempDir()
	if err := unix.Mount("small", disk, "tmpfs", 0, "size=2m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, 0); err != nil {
			t.Error(err)
		}
	})
	err := WriteCopy(t.Context(), disk, of, s, nil)
	if !errors.Is(err, ErrNoRoom) || !strings.Contains(err.Error(), "the disk that holds "+disk+" is full: make room there") || strings.Contains(err.Error(), "\n") {
		t.Errorf("full: %v", err)
	}
	if err := unix.Mount("small", disk, "tmpfs", unix.MS_REMOUNT, "size=20m"); err != nil {
		t.Fatal(err)
	}
	if err := WriteCopy(t.Context(), disk, of, s, nil); err != nil {
		t.Error(err)
	}
	if err := unix.Mount("small", disk, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, "size=20m"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := ReadCopy(disk); err != nil {
		t.Errorf("read only: %v", err)
	}
}
