package vault

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"pagurus/fleet"
)

// noise gives n bytes that nothing compresses, the same for the same seed.
func noise(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = r.Read(b) // never fails
	return b
}

// write fills a folder. A path with a slash at its end is a folder, a content with "→" a link.
func write(t *testing.T, folder string, files map[string]string) {
	t.Helper()
	for path, content := range files {
		at := filepath.Join(folder, path)
		var err error
		if link, is := strings.CutPrefix(content, "→"); is {
			err = errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.Symlink(link, at))
		} else if strings.HasSuffix(path, "/") {
			err = os.MkdirAll(at, 0o755)
		} else {
			err = errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(content), 0o640))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// content reads a folder as write has it.
func content(t *testing.T, folder string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		at, _ := filepath.Rel(folder, path)
		switch {
		case err != nil || at == ".":
			return err
		case e.IsDir():
			out[at+"/"] = ""
		case e.Type() == fs.ModeSymlink:
			link, err := os.Readlink(path)
			out[at] = "→" + link
			return err
		default:
			b, err := os.ReadFile(path)
			out[at] = string(b)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func same(t *testing.T, got, want map[string]string) {
	t.Helper()
	for path, text := range want {
		if g, is := got[path]; !is || g != text {
			t.Errorf("%s: there: %t, %d bytes instead of %d", path, is, len(g), len(text))
		}
	}
	for path := range got {
		if _, is := want[path]; !is {
			t.Errorf("%s: too much", path)
		}
	}
}

// dirOf is the folder of a store.
func dirOf(s *Store) string { return s.at.String() }

func opened(t *testing.T, dir string, quota int64) *Store {
	t.Helper()
	s, err := Open(Config{Folder: dir, Quota: quota})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // a test may have closed it
	return s
}

func saved(t *testing.T, s Chunks, folder string, p Part) Put {
	t.Helper()
	put, err := Save(t.Context(), folder, p, s)
	if err != nil {
		t.Fatal(err)
	}
	return put
}

// loads compares what a part gives with what a folder has.
func loads(t *testing.T, s Chunks, p Part, d fleet.Digest, folder string) {
	t.Helper()
	out := t.TempDir()
	if err := Load(t.Context(), fleet.KeptPart{PartName: p, Manifest: d}, s, out); err != nil {
		t.Fatal(err)
	}
	same(t, content(t, out), content(t, folder))
}

// onDisk is how many chunks and other files a store has.
func onDisk(t *testing.T, s *Store) (chunks, others int) {
	t.Helper()
	for path := range content(t, dirOf(s)) {
		switch {
		case strings.HasSuffix(path, "/") || path == lockFile:
		case strings.HasPrefix(path, chunksFolder):
			chunks++
		default:
			others++
		}
	}
	return chunks, others
}

func guest(t *testing.T) (folder string, memory []byte) {
	t.Helper()
	folder, memory = t.TempDir(), noise(1, 4<<20)
	write(t, folder, map[string]string{
		"memory": string(memory), "images/core-1.img": "registers", "images/parent": "→../before", "before/": "", "empty": "",
		"zeros": string(make([]byte, 2<<20)),
	})
	return folder, memory
}

func TestASavedPartIsLoaded(t *testing.T) {
	s := opened(t, t.TempDir(), 0)
	folder, _ := guest(t)
	p := Part{Checkpoint: "j1c1", Guest: "j1g0"}
	put := saved(t, s, folder, p)
	loads(t, s, p, put.Manifest, folder)
	if put.Bytes != 6<<20+9 || put.NewBytes < 4<<20 || put.NewBytes > 5<<20 {
		t.Errorf("put %+v", put)
	}
	if u := s.Usage(); u.Bytes != put.NewBytes || u.Parts != 1 || u.Trouble != "" || u.Free <= 0 {
		t.Errorf("usage %+v after %+v", u, put)
	}
	if again := saved(t, s, folder, p); again.Manifest != put.Manifest {
		t.Errorf("again: %+v", again)
	}
	before := s.Usage()
	s.Close()
	s = opened(t, dirOf(s), 0)
	if after := s.Usage(); after.Bytes != before.Bytes || after.Chunks != before.Chunks || after.Parts != 1 {
		t.Errorf("usage %+v after opening, %+v before", after, before)
	}
	loads(t, s, p, put.Manifest, folder)
}

func TestModesAreKept(t *testing.T) {
	s := opened(t, t.TempDir(), 0)
	folder, out := t.TempDir(), t.TempDir()
	write(t, folder, map[string]string{"f": "x", "d/g": "y"})
	if err := errors.Join(os.Chmod(filepath.Join(folder, "f"), 0o604), os.Chmod(filepath.Join(folder, "d"), 0o711)); err != nil {
		t.Fatal(err)
	}
	p := Part{Checkpoint: "j1c1", Guest: "j1g0"}
	put := saved(t, s, folder, p)
	if err := Load(t.Context(), fleet.KeptPart{PartName: p, Manifest: put.Manifest}, s, out); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]fs.FileMode{"f": 0o604, "d": 0o711, "d/g": 0o640} {
		if info, err := os.Stat(filepath.Join(out, path)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v %v", path, info.Mode(), err)
		}
	}
}

// A second checkpoint of a guest that has changed little adds little, also where bytes were inserted.
func TestWhatIsThereIsNotPutAgain(t *testing.T) {
	s := opened(t, t.TempDir(), 0)
	folder, memory := guest(t)
	saved(t, s, folder, Part{Checkpoint: "j1c1", Guest: "j1g0"})
	copy(memory[2<<20:], "changed")
	memory = append([]byte("shifted"), memory...)
	write(t, folder, map[string]string{"memory": string(memory)})
	second := saved(t, s, folder, Part{Checkpoint: "j1c2", Guest: "j1g0"})
	if second.NewBytes > 2*maxChunk {
		t.Errorf("%d new bytes", second.NewBytes)
	}
	loads(t, s, Part{Checkpoint: "j1c2", Guest: "j1g0"}, second.Manifest, folder)
	write(t, folder, map[string]string{"memory": "less"}) // truncates it
	third := saved(t, s, folder, Part{Checkpoint: "j1c2", Guest: "j1g1"})
	if third.NewBytes > 16<<10 {
		t.Errorf("%d new bytes of nearly the same", third.NewBytes)
	}
	loads(t, s, Part{Checkpoint: "j1c2", Guest: "j1g1"}, third.Manifest, folder)
}

func TestRemovalLeavesWhatOthersHave(t *testing.T) {
	s := opened(t, t.TempDir(), 0)
	folder, memory := guest(t)
	first, second := Part{Checkpoint: "j1c1", Guest: "j1g0"}, Part{Checkpoint: "j1c2", Guest: "j1g0"}
	saved(t, s, folder, first)
	copy(memory, noise(2, 1<<20))
	write(t, folder, map[string]string{"memory": string(memory)})
	put := saved(t, s, folder, second)
	for range 2 {
		if err := s.Remove("j1c1"); err != nil {
			t.Fatal(err)
		}
	}
	loads(t, s, second, put.Manifest, folder)
	if _, err := s.Manifest(t.Context(), first); !errors.Is(err, ErrUnknown) {
		t.Errorf("a removed manifest: %v", err)
	}
	if err := s.Remove("j1c2"); err != nil {
		t.Fatal(err)
	}
	if chunks, others := onDisk(t, s); chunks != 0 || others != 0 || s.Usage().Bytes != 0 {
		t.Errorf("%d chunks and %d files are left, usage %+v", chunks, others, s.Usage())
	}
}

// A removal meanwhile takes no chunk that an unfinished part was told to be there.
func TestRemovalDuringASave(t *testing.T) {
	s := opened(t, t.TempDir(), 0)
	folder, _ := guest(t)
	saved(t, s, folder, Part{Checkpoint: "j1c1", Guest: "j1g0"})
	put := saved(t, removing{s, "j1c1"}, folder, Part{Checkpoint: "j1c2", Guest: "j1g0"})
	loads(t, s, Part{Checkpoint: "j1c2", Guest: "j1g0"}, put.Manifest, folder)
}

// removing removes a checkpoint before the manifest of another comes.
type removing struct {
	*Store
	checkpoint fleet.CheckpointID
}

func (r removing) PutManifest(ctx context.Context, p Part, text []byte) error {
	if err := r.Remove(r.checkpoint); err != nil {
		return err
	}
	return r.Store.PutManifest(ctx, p, text)
}

func TestAbandonedPartsLeaveNothing(t *testing.T) {
	s := opened(t, t.TempDir(), 0)
	folder, _ := guest(t)
	p := Part{Checkpoint: "j1c1", Guest: "j1g0"}
	if _, err := Save(t.Context(), folder, p, refusing{s}); err == nil {
		t.Fatal("saved without a manifest")
	}
	if chunks, _ := onDisk(t, s); chunks == 0 {
		t.Fatal("nothing was put")
	}
	if err := s.Abandon(p); err != nil {
		t.Fatal(err)
	}
	if chunks, others := onDisk(t, s); chunks+others != 0 || s.Usage().Bytes != 0 {
		t.Errorf("%d chunks and %d files are left, usage %+v", chunks, others, s.Usage())
	}
}

type refusing struct{ *Store }

func (refusing) PutManifest(context.Context, Part, []byte) error { return errors.New("refused") }

func TestManyAtOnce(t *testing.T) {
	s := opened(t, t.TempDir(), 0)
	common := noise(7, 1<<20)
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			folder := t.TempDir()
			p := Part{Checkpoint: fleet.CheckpointID("j1c" + string(rune('1'+i))), Guest: "j1g0"}
			write(t, folder, map[string]string{"memory": string(append(noise(uint64(i+10), 256<<10), common...))})
			for try := range 2 {
				p.Checkpoint += fleet.CheckpointID(rune('1' + try)) // a removed one does not come back
				put, err := Save(context.Background(), folder, p, s)
				if err != nil {
					t.Error(err)
					return
				}
				out := t.TempDir()
				if err := errors.Join(Load(context.Background(), fleet.KeptPart{PartName: p, Manifest: put.Manifest}, s, out), s.Remove(p.Checkpoint)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if chunks, others := onDisk(t, s); chunks+others != 0 || s.Usage().Bytes != 0 {
		t.Errorf("%d chunks and %d files are left, usage %+v", chunks, others, s.Usage())
	}
}

func TestQuotaBoundsTheVault(t *testing.T) {
	s := opened(t, t.TempDir(), 2<<20)
	folder, _ := guest(t)
	p := Part{Checkpoint: "j1c1", Guest: "j1g0"}
	_, err := Save(t.Context(), folder, p, s)
	if !errors.Is(err, ErrNoRoom) || !strings.Contains(err.Error(), "remove checkpoints") {
		t.Errorf("error %v", err)
	}
	if u := s.Usage(); u.Bytes > 2<<20 {
		t.Errorf("usage %+v", u)
	}
	if err := s.Remove(p.Checkpoint); err != nil {
		t.Fatal(err)
	}
	if u := s.Usage(); u.Bytes != 0 || u.Free > 2<<20 {
		t.Errorf("usage %+v", u)
	}
	write(t, folder, map[string]string{"memory": "small"})
	p.Checkpoint = "j1c2"
	put := saved(t, s, folder, p)
	loads(t, s, p, put.Manifest, folder)
}

// What is in the vault is tested on reading, and a damaged chunk is put again by the next checkpoint.
func TestDamageIsFound(t *testing.T) {
	for what, harm := range map[string]func(path string, b []byte) error{
		"another byte":  func(path string, b []byte) error { b[len(b)/2] ^= 1; return os.WriteFile(path, b, 0o600) },
		"cut off":       func(path string, b []byte) error { return os.Truncate(path, int64(len(b)/2)) },
		"empty":         func(path string, _ []byte) error { return os.Truncate(path, 0) },
		"gone":          func(path string, _ []byte) error { return os.Remove(path) },
		"another chunk": func(path string, _ []byte) error { return os.WriteFile(path, pack([]byte("another")), 0o600) },
		"a bomb":        func(path string, _ []byte) error { return os.WriteFile(path, pack(make([]byte, 64<<20)), 0o600) },
	} {
		t.Run(what, func(t *testing.T) {
			s := opened(t, t.TempDir(), 0)
			folder, _ := guest(t)
			p := Part{Checkpoint: "j1c1", Guest: "j1g0"}
			put := saved(t, s, folder, p)
			victim := ""
			for path := range content(t, dirOf(s)) {
				if info, err := os.Stat(filepath.Join(dirOf(s), path)); strings.HasPrefix(path, chunksFolder) && err == nil && info.Size() > minChunk && !info.IsDir() {
					victim = filepath.Join(dirOf(s), path)
				}
			}
			b, err := os.ReadFile(victim)
			if err != nil {
				t.Fatal(err)
			}
			if err := harm(victim, bytes.Clone(b)); err != nil {
				t.Fatal(err)
			}
			out := t.TempDir()
			if err := Load(t.Context(), fleet.KeptPart{PartName: p, Manifest: put.Manifest}, s, out); !errors.Is(err, ErrDamaged) {
				t.Errorf("error %v", err)
			}
			same(t, content(t, out), nil)
			next := saved(t, s, folder, Part{Checkpoint: "j1c2", Guest: "j1g0"})
			loads(t, s, Part{Checkpoint: "j1c2", Guest: "j1g0"}, next.Manifest, folder)
		})
	}
}

func TestAnotherManifestIsRefused(t *testing.T) {
	s := opened(t, t.TempDir(), 0)
	folder, _ := guest(t)
	p := Part{Checkpoint: "j1c1", Guest: "j1g0"}
	put := saved(t, s, folder, p)
	if err := Load(t.Context(), fleet.KeptPart{PartName: p, Manifest: DigestOf([]byte("another"))}, s, t.TempDir()); !errors.Is(err, ErrDamaged) {
		t.Errorf("error %v", err)
	}
	write(t, folder, map[string]string{"memory": "another"})
	if _, err := Save(t.Context(), folder, p, s); err == nil {
		t.Error("a finished part was replaced")
	}
	if got := s.List()[p]; got != put.Manifest {
		t.Errorf("manifest %s, put %s", got, put.Manifest)
	}
	full := t.TempDir()
	write(t, full, map[string]string{"there": "before"})
	if err := Load(t.Context(), fleet.KeptPart{PartName: p, Manifest: put.Manifest}, s, full); err == nil {
		t.Error("loaded into a folder that is not empty")
	}
	same(t, content(t, full), map[string]string{"there": "before"})
}

// Nobody knows what chunks a manifest has that cannot be read, so none is removed until it is.
func TestAnUnreadableManifestKeepsChunks(t *testing.T) {
	s := opened(t, t.TempDir(), 0)
	folder, _ := guest(t)
	p, other := Part{Checkpoint: "j1c1", Guest: "j1g0"}, Part{Checkpoint: "j1c2", Guest: "j1g0"}
	saved(t, s, folder, p)
	put := saved(t, s, folder, other)
	chunks, _ := onDisk(t, s)
	if err := os.WriteFile(filepath.Join(dirOf(s), manifestName(p)), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Close()
	s = opened(t, dirOf(s), 0)
	if u := s.Usage(); !strings.Contains(u.Trouble, "j1c1") {
		t.Errorf("usage %+v", u)
	}
	if _, err := s.Manifest(t.Context(), p); !errors.Is(err, ErrDamaged) {
		t.Errorf("error %v", err)
	}
	loads(t, s, other, put.Manifest, folder)
	if now, _ := onDisk(t, s); now != chunks {
		t.Errorf("%d chunks instead of %d", now, chunks)
	}
	if err := errors.Join(s.Remove("j1c1"), s.Remove("j1c2")); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if now, _ := onDisk(t, opened(t, dirOf(s), 0)); now != 0 {
		t.Errorf("%d chunks are left", now)
	}
}

func TestOneProcessAtATime(t *testing.T) {
	s := opened(t, t.TempDir(), 0)
	if _, err := Open(Config{Folder: dirOf(s)}); err == nil || !strings.Contains(err.Error(), "another process uses the vault") {
		t.Errorf("error %v", err)
	}
	s.Close()
	opened(t, dirOf(s), 0)
}

func TestBadNamesAreRefused(t *testing.T) {
	s := opened(t, t.TempDir(), 0)
	ctx := t.Context()
	for _, names := range [][2]string{{"../x", "j1g0"}, {"j1c1", "../../etc"}, {"", "g"}, {"j1c1", ""}, {"a/b", "g"}, {".", "g"}} {
		p := Part{Checkpoint: fleet.CheckpointID(names[0]), Guest: fleet.GuestID(names[1])}
		_, manifest := s.Manifest(ctx, p)
		_, missing := s.Missing(ctx, p, nil)
		_, chunk := s.Chunk(ctx, p, "x")
		for what, err := range map[string]error{"manifest": manifest, "missing": missing, "chunk": chunk, "put": s.PutChunk(ctx, p, DigestOf(nil), pack(nil)), "finish": s.PutManifest(ctx, p, []byte("{}"))} {
			if err == nil {
				t.Errorf("%s of %+v was accepted", what, p)
			}
		}
		if _, err := Save(ctx, t.TempDir(), p, s); err == nil {
			t.Errorf("saved %+v", p)
		}
	}
	p := Part{Checkpoint: "j1c1", Guest: "j1g0"}
	for _, d := range []fleet.Digest{"", "sha256-", "../../x", DigestOf(nil)[:70], "sha256-" + fleet.Digest(strings.Repeat("/", 64))} {
		if _, err := s.Missing(ctx, p, []fleet.Digest{d}); err == nil {
			t.Errorf("digest %q was accepted", d)
		}
		if err := s.PutChunk(ctx, p, d, nil); err == nil {
			t.Errorf("digest %q was accepted", d)
		}
	}
	if err := s.PutChunk(ctx, p, DigestOf([]byte("a")), pack([]byte("b"))); !errors.Is(err, ErrDamaged) {
		t.Errorf("another content: %v", err)
	}
	if err := s.Remove("../.."); err == nil {
		t.Error("removed a folder outside")
	}
}

func TestOnlyFilesAreSaved(t *testing.T) {
	s := opened(t, t.TempDir(), 0)
	for what, files := range map[string]map[string]string{"link outside": {"l": "→../x"}, "absolute link": {"l": "→/etc/passwd"}} {
		folder := t.TempDir()
		write(t, folder, files)
		if _, err := Save(t.Context(), folder, Part{Checkpoint: "j1c1", Guest: "j1g0"}, s); err == nil || !strings.Contains(err.Error(), "outside") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := Save(t.Context(), filepath.Join(t.TempDir(), "none"), Part{Checkpoint: "j1c1", Guest: "j1g0"}, s); err == nil {
		t.Error("saved a folder that is not there")
	}
}
