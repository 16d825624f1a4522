package vault

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pagurus/fleet"
)

// What another host puts as one part is bounded by the guest that it is a part of.
func TestAPartIsBounded(t *testing.T) {
	s, p, ctx := opened(t, t.TempDir(), 0), Part{Checkpoint: "j1c1", Guest: "j1g0"}, t.Context()
	to := s.Bounded(8 << 20)
	folder, _ := guest(t) // 6 MiB, and blocks of small files
	put := saved(t, to, folder, p)
	loads(t, s, p, put.Manifest, folder)
	other := t.TempDir()
	write(t, other, map[string]string{"memory": string(noise(2, 10<<20))})
	next := Part{Checkpoint: "j1c2", Guest: "j1g0"}
	if _, err := Save(ctx, other, next, to); err == nil || !strings.Contains(err.Error(), "may take 8388608 bytes") {
		t.Errorf("10 MiB: %v", err)
	}
	if u := s.Usage(); u.Bytes > 15<<20 {
		t.Errorf("the vault has %d bytes", u.Bytes)
	}
	// Small files cost, too.
	small := Part{Checkpoint: "j1c3", Guest: "j1g0"}
	var err error
	for i := range 4000 {
		plain := noise(uint64(i), 100)
		if err = to.PutChunk(ctx, small, DigestOf(plain), pack(plain)); err != nil {
			break
		}
	}
	if err == nil {
		t.Error("4000 files of a block each were put into 8 MiB")
	}
	// One chunk, named often, is a long file.
	plain := noise(3, 1<<20)
	c := Chunk{DigestOf(plain), 1 << 20}
	f := File{Path: "memory", Mode: 0o600, Bytes: 20 << 20}
	for range 20 {
		f.Chunks = append(f.Chunks, c)
	}
	long := Manifest{Version: manifestVersion, Checkpoint: "j1c4", Guest: "j1g0", Files: []File{f}}
	text, err := long.Text()
	of := Part{Checkpoint: "j1c4", Guest: "j1g0"}
	if err = errors.Join(err, to.PutChunk(ctx, of, c.Digest, pack(plain))); err != nil {
		t.Fatal(err)
	}
	if err := to.PutManifest(ctx, of, text); err == nil {
		t.Error("20 MiB were named by one chunk")
	}
	if err := s.PutManifest(ctx, of, text); err != nil {
		t.Fatal(err)
	}
	want := fleet.KeptPart{PartName: of, Manifest: DigestOf(text), MostBytes: 8 << 20}
	if err := Load(ctx, want, s, t.TempDir()); err == nil {
		t.Error("20 MiB were loaded as 8")
	}
}

// Each thing in a manifest costs memory before it can be refused.
func TestManifestsOfNothing(t *testing.T) {
	for _, thing := range []string{"{}", "null", "1", `{"chunks":[{},{}]}`} {
		text := `{"version":1,"checkpoint":"j1c1","guest":"j1g0","files":[` + strings.Repeat(thing+",", 2_000_000) + thing + "]}"
		if _, err := ParseManifest([]byte(text)); err == nil || !strings.Contains(err.Error(), "things in") {
			t.Errorf("%s: %v", thing, err)
		}
	}
}

// What was on its way when a checkpoint was removed is not taken again.
func TestNothingComesAfterRemoval(t *testing.T) {
	s, p, ctx := opened(t, t.TempDir(), 0), Part{Checkpoint: "j1c1", Guest: "j1g0"}, t.Context()
	folder, _ := guest(t)
	saved(t, s, folder, p)
	if err := s.Remove(p.Checkpoint); err != nil {
		t.Fatal(err)
	}
	plain := noise(1, 1000)
	_, asked := s.Missing(ctx, p, nil)
	text, err := Manifest{Version: manifestVersion, Checkpoint: p.Checkpoint, Guest: p.Guest}.Text()
	if err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{"names": asked, "a chunk": s.PutChunk(ctx, p, DigestOf(plain), pack(plain)), "a manifest": s.PutManifest(ctx, p, text)} {
		if !errors.Is(err, ErrUnknown) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if u := s.Usage(); u.Bytes != 0 {
		t.Errorf("usage %+v", u)
	}
	for i := range 3 * mostRemoved {
		if err := s.Remove(fleet.CheckpointID("j2c" + strings.Repeat("1", 1+i%50))); err != nil {
			t.Fatal(err)
		}
	}
	saved(t, s, folder, Part{Checkpoint: "j1c2", Guest: "j1g0"})
}

// A checkpoint does not count as kept if a chunk that it shares is gone or cut short; the next try puts it again.
func TestSharedChunksAreLookedAt(t *testing.T) {
	for what, harm := range map[string]func(path string) error{
		"gone":  os.Remove,
		"short": func(path string) error { return os.Truncate(path, 10) },
	} {
		s := opened(t, t.TempDir(), 0)
		folder, _ := guest(t)
		first, next := Part{Checkpoint: "j1c1", Guest: "j1g0"}, Part{Checkpoint: "j1c2", Guest: "j1g0"}
		saved(t, s, folder, first)
		var d fleet.Digest
		for d = range s.kept[first].chunks {
			break
		}
		if err := harm(filepath.Join(dirOf(s), chunkName(d))); err != nil {
			t.Fatal(err)
		}
		if _, err := Save(t.Context(), folder, next, s); err == nil || errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", what, err)
		}
		put := saved(t, s, folder, next)
		loads(t, s, next, put.Manifest, folder)
		if chunks, _ := onDisk(t, s); chunks != s.Usage().Chunks {
			t.Errorf("%s: %d chunks, usage %+v", what, chunks, s.Usage())
		}
	}
}

// A folder that others use stays as it is.
func TestOnlyAnEmptyFolderBecomesAVault(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"lock/": "", "work": "of others"})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := Open(Config{Folder: dir})
	if err == nil || !strings.Contains(err.Error(), "choose an empty folder") {
		t.Errorf("error %v", err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o755 || len(content(t, dir)) != 2 {
		t.Errorf("%v, %v, %v", info.Mode(), content(t, dir), err)
	}
	disk := t.TempDir()
	write(t, disk, map[string]string{"lost+found/": ""})
	s := opened(t, disk, 0)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	write(t, disk, map[string]string{"note": "of a person"})
	opened(t, disk, 0)
}

// What a failed Save has put is said.
func TestAFailedSaveTellsWhatItPut(t *testing.T) {
	folder, _ := guest(t)
	put, err := Save(t.Context(), folder, Part{Checkpoint: "j1c1", Guest: "j1g0"}, refusing{opened(t, t.TempDir(), 0)})
	if err == nil || put.NewBytes < 4<<20 || put.Manifest != "" {
		t.Errorf("%+v, %v", put, err)
	}
}
