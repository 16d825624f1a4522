package criu

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"pagurus/internal/note"
	"pagurus/internal/thread"
)

// cacheFile is where CRIU stores what it found out about the kernel (criu/kerndat.c).
const cacheFile = "/run/criu.kdat"

// Warm provides CRIU's cache of kernel features, which saves each dump and restore 0.1 s.
// CRIU itself keeps the cache only if /run is in memory, because another kernel may be
// booted. Otherwise every call of Warm makes the cache again. Without the cache
// everything works, but slower.
func (c Criu) Warm(ctx context.Context) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(cacheFile), &fs); err != nil {
		return fmt.Errorf("check %s: %w", filepath.Dir(cacheFile), err)
	}
	if fs.Type == unix.TMPFS_MAGIC {
		return nil
	}
	var notes []byte
	err := thread.Own(func() (err error) {
		notes, err = c.notes(ctx)
		return err
	})
	if err == nil {
		err = note.Write(cacheFile, notes, 0o600)
	}
	if err != nil {
		return fmt.Errorf("keep CRIU's record of the kernel's features: %w", err)
	}
	return nil
}

// notes makes CRIU check the kernel with a /run in memory, and returns the cache that
// CRIU wrote there. Its thread has its own mounts from then on.
func (c Criu) notes(ctx context.Context) ([]byte, error) {
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
		return nil, fmt.Errorf("make mounts of its own: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return nil, fmt.Errorf("keep mounts to itself: %w", err)
	}
	if err := unix.Mount("criu", filepath.Dir(cacheFile), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=1m,mode=700"); err != nil {
		return nil, fmt.Errorf("mount memory: %w", err)
	}
	ctx, stop := context.WithTimeout(ctx, versionLimit)
	defer stop()
	said, err := exec.CommandContext(ctx, c.Path, "check").CombinedOutput()
	notes, missing := os.ReadFile(cacheFile)
	if missing != nil { // other errors of the check are about unused features
		return nil, fmt.Errorf("%w (%v: %s)", missing, err, bytes.TrimSpace(said))
	}
	return notes, nil
}
