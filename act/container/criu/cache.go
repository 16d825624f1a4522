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

// cacheFile is where CRIU looks, before it tries what the kernel can, whether an
// earlier one has done so (criu/kerndat.c).
const cacheFile = "/run/criu.kdat"

// Warm leaves CRIU's own notes of what this kernel can where CRIU looks for them,
// which saves each dump and restore the 0.1 s of finding out. CRIU keeps them by
// itself only where /run is in memory, since they are not true after a boot with
// another kernel; elsewhere they are made anew by every call of Warm. Without them
// all works as well, but slower.
func (c Criu) Warm(ctx context.Context) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(cacheFile), &fs); err != nil {
		return fmt.Errorf("look at %s: %w", filepath.Dir(cacheFile), err)
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
		return fmt.Errorf("keep what CRIU finds the kernel can: %w", err)
	}
	return nil
}

// notes has a CRIU look at the kernel that sees a /run in memory, and gives what it
// left there. Its thread has mounts of its own from then on.
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
	if missing != nil { // what check says of abilities that nobody needs here is no error
		return nil, fmt.Errorf("%w (%v: %s)", missing, err, bytes.TrimSpace(said))
	}
	return notes, nil
}
