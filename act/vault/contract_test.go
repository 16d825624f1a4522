package vault

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/internal/fault"
	"pagurus/internal/testkit"
)

// asSaver makes this program save a folder into a vault: "VAULT FOLDER CHECKPOINT".
const asSaver = "VAULT_TEST_SAVE"

func TestMain(m *testing.M) {
	if args := strings.Fields(os.Getenv(asSaver)); len(args) == 3 {
		s, err := Open(Config{Folder: args[0]})
		if err == nil {
			_, err = Save(context.Background(), args[1], Part{Checkpoint: fleet.CheckpointID(args[2]), Guest: "j1g0"}, s)
		}
		if err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// A process that is killed between any two steps of a save leaves nothing but what was there, and the
// next one saves.
func TestKilledWhileSaving(t *testing.T) {
	dir := t.TempDir()
	s := opened(t, dir, 0)
	folder, memory := guest(t)
	first := Part{Checkpoint: "j1c1", Guest: "j1g0"}
	put := saved(t, s, folder, first)
	kept := t.TempDir()
	if err := Load(t.Context(), fleet.KeptPart{PartName: first, Manifest: put.Manifest}, s, kept); err != nil {
		t.Fatal(err)
	}
	before := s.Usage()
	s.Close()
	copy(memory[2<<20:], noise(3, 1<<20))
	write(t, folder, map[string]string{"memory": string(memory)})
	saver := func(faults string) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.Env = append(os.Environ(), asSaver+"="+strings.Join([]string{dir, folder, "j1c2"}, " "), fault.Environment+"="+faults)
		return cmd.Run()
	}
	for _, point := range []string{"chunk.half", "chunk.written", "chunk.named", "manifest.half", "manifest.written"} {
		for _, how := range []string{"kill", "error"} {
			if err := saver("vault." + point + "=" + how); err == nil {
				t.Fatalf("%s at %s did not end the save", how, point)
			}
			s := opened(t, dir, 0)
			loads(t, s, first, put.Manifest, kept)
			if now := s.Usage(); now.Bytes != before.Bytes || now.Parts != 1 || now.Chunks != before.Chunks {
				t.Errorf("%s at %s: usage %+v instead of %+v", how, point, now, before)
			}
			if chunks, others := onDisk(t, s); chunks != before.Chunks || others != 1 {
				t.Errorf("%s at %s: %d chunks instead of %d, and %d other files", how, point, chunks, before.Chunks, others)
			}
			s.Close()
		}
	}
	if err := saver("vault.manifest.named=kill"); err == nil {
		t.Fatal("it was not killed")
	}
	s = opened(t, dir, 0)
	second := Part{Checkpoint: "j1c2", Guest: "j1g0"}
	loads(t, s, second, s.List()[second], folder) // its name was there, so it is whole
	loads(t, s, first, put.Manifest, kept)
}

// On a full disk a save fails in one sentence, what was there stays, and there is room again after a removal.
func TestAFullDisk(t *testing.T) {
	testkit.Root(t)
	disk := t.TempDir()
	if err := unix.Mount("small", disk, "tmpfs", 0, "size=6m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil { // the lock is closed after this
			t.Error(err)
		}
	})
	s := opened(t, filepath.Join(disk, "vault"), 0)
	folder, memory := guest(t)
	first, second := Part{Checkpoint: "j1c1", Guest: "j1g0"}, Part{Checkpoint: "j1c2", Guest: "j1g0"}
	put := saved(t, s, folder, first)
	loads(t, s, first, put.Manifest, folder)
	other := t.TempDir()
	write(t, other, map[string]string{"memory": string(noise(5, len(memory)))})
	_, err := Save(t.Context(), other, second, s)
	if !errors.Is(err, ErrNoRoom) || !strings.Contains(err.Error(), "is full: remove checkpoints") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v", err)
	}
	var small unix.Statfs_t
	if err := unix.Statfs(disk, &small); err != nil || small.Bavail < small.Blocks/10 || s.Usage().Free > 1<<20 {
		t.Errorf("%d of %d blocks are free, %v: the last tenth is not the vault's; usage %+v", small.Bavail, small.Blocks, err, s.Usage())
	}
	loads(t, s, first, put.Manifest, folder)
	if err := s.Abandon(second); err != nil {
		t.Fatal(err)
	}
	chunks, others := onDisk(t, s)
	if u := s.Usage(); chunks != u.Chunks || others != 1 || u.Bytes != put.NewBytes {
		t.Errorf("%d chunks, %d other files, usage %+v after %+v", chunks, others, u, put)
	}
	if err := s.Remove(first.Checkpoint); err != nil {
		t.Fatal(err)
	}
	next := saved(t, s, other, second)
	loads(t, s, second, next.Manifest, other)
	s.Close()
	if _, err := Open(Config{Folder: filepath.Join(disk, "vault")}); err != nil {
		t.Error(err)
	}
}
