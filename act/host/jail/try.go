package jail

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Supported returns an error if this kernel is too old for jails.
func Supported() error {
	// Without a file the call fails, where there is one.
	if err := unix.MountSetattr(-1, "", unix.AT_EMPTY_PATH, &unix.MountAttr{}); !errors.Is(err, unix.ENOSYS) {
		return nil
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err
	}
	return fmt.Errorf("jails, which QEMU and jobs' file servers run in, need Linux 5.12 or newer (mount_setattr), and this is Linux %s: install a newer kernel and reboot", unix.ByteSliceToString(u.Release[:]))
}

// Try runs a program that does nothing in a jail, whose root is over a folder. shim is the path of pagurus-shim. Nothing is left.
func Try(ctx context.Context, shim, dir string, uid uint32) (err error) {
	if err := Supported(); err != nil {
		return err
	}
	program, err := exec.LookPath("true")
	if err != nil {
		return err
	}
	files, err := Libraries(ctx, program)
	if err != nil {
		return err
	}
	own := filepath.Join(dir, "own")
	if err := os.Mkdir(own, 0o700); err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	const few = 64
	first, err := Start(shim, Jail{
		UID: uid, Root: dir, Hostname: "trial", Files: append(files, File{Path: own, Writable: true}), Folder: own,
		Program: []string{program}, Env: []string{}, FileBytes: few, OpenFiles: few,
	}, null)
	if err != nil {
		return err
	}
	return errors.Join(first.Enter(), first.Kill())
}
