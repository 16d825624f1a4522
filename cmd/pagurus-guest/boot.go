// This file turns the initramfs of a virtual machine into the root file system of the
// guest's image, and powers the machine off. A container does not need it: its driver has
// done the same from outside.
//
// It must not know the guest's purpose. Its tests are those of the guest agent, in real
// guests.

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// mounting is one mount(2).
type mounting struct {
	source, target, kind string
	flags                uintptr
	options              string
}

func (m mounting) do() error {
	if err := os.MkdirAll(m.target, 0o755); err != nil {
		return fmt.Errorf("making the mount point: %w", err)
	}
	if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.options); err != nil {
		return fmt.Errorf("mounting %s on %s: %w", m.kind, m.target, err)
	}
	return nil
}

// kernelMounts are made in the initramfs and moved into the root.
var kernelMounts = []mounting{
	{"proc", "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
	{"sysfs", "/sys", "sysfs", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
	{"devtmpfs", "/dev", "devtmpfs", unix.MS_NOSUID, "mode=0755"},
}

// rootMounts are made in the root.
var rootMounts = []mounting{
	{"devpts", "/dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "ptmxmode=0666,mode=0620,gid=5"},
	{"tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
	{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755"},
	{"tmpfs", "/tmp", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
}

const (
	moduleList = "/modules.order.pagurus"
	newRoot    = "/newroot"
	rootWait   = 10 * time.Second // for the disk to appear; a virtio disk needs no time
)

// rootDevices are the root disk's name in a virtual machine and in a guest of Xen.
var rootDevices = []string{"/dev/vda", "/dev/xvda"}

// onXen reports whether this is a guest of Xen.
func onXen() bool {
	kind, err := os.ReadFile("/sys/hypervisor/type")
	return err == nil && strings.TrimSpace(string(kind)) == "xen"
}

// Boot turns the initramfs into the root file system of the image. It says what is wrong but
// not fatal.
func Boot(say func(format string, args ...any)) error {
	for _, m := range kernelMounts {
		if err := m.do(); err != nil {
			return err
		}
	}
	loadModules(say)
	if err := mountRoot(); err != nil {
		return err
	}
	if err := switchRoot(); err != nil {
		return err
	}
	for _, m := range rootMounts {
		if err := m.do(); err != nil {
			return err
		}
	}
	unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF)
	return nil
}

// loadModules loads the image's listed modules. A module that does not load is not fatal:
// whatever needs it fails with a better error.
func loadModules(say func(format string, args ...any)) {
	list, err := os.Open(moduleList)
	if err != nil {
		say("no list of kernel modules: %v", err)
		return
	}
	defer list.Close()
	xen, device := onXen(), onCommandLine(fleet.GuestDeviceWord)
	for lines := bufio.NewScanner(list); lines.Scan(); {
		path, driver := strings.CutPrefix(strings.TrimSpace(lines.Text()), fleet.DriverWord)
		if path == "" || driver && !device || strings.HasPrefix(filepath.Base(path), "xen-") && !xen {
			continue
		}
		if err := loadModule("/" + strings.TrimPrefix(path, "/")); err != nil {
			say("kernel module %s: %v", path, err)
		}
	}
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	err = unix.FinitModule(int(f.Fd()), "", 0)
	if errors.Is(err, unix.EEXIST) {
		return nil // built in, or listed twice
	}
	return err
}

// mountRoot mounts the image's root under newRoot: read-only below, in memory above, so that
// only memory has to move with the guest.
func mountRoot() error {
	rootDevice, err := waitFor(rootDevices)
	if err != nil {
		return err
	}
	err = errors.New("no file system tried")
	for _, kind := range []string{"squashfs", "erofs"} {
		if err = (mounting{rootDevice, "/lower", kind, unix.MS_RDONLY, ""}).do(); err == nil {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("root disk is neither squashfs nor erofs, or the kernel lacks the module: %w", err)
	}
	if err := (mounting{"tmpfs", "/upper", "tmpfs", 0, "mode=0755,size=75%"}).do(); err != nil {
		return err
	}
	for _, dir := range []string{"/upper/files", "/upper/work"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	return mounting{"overlay", newRoot, "overlay", 0, "lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work"}.do()
}

// waitFor returns the first of these files that is there.
func waitFor(paths []string) (string, error) {
	for deadline := time.Now().Add(rootWait); ; time.Sleep(10 * time.Millisecond) {
		for _, path := range paths {
			if _, err := os.Stat(path); err == nil {
				return path, nil
			}
		}
		if time.Now().After(deadline) {
			return "", fmt.Errorf("the root disk did not appear: there is none of %s", strings.Join(paths, ", "))
		}
	}
}

// switchRoot makes newRoot the root and frees the initramfs's memory. The guest agent stays
// in the initramfs, bound into the new root, so that memory has one copy of it and it can be
// run again.
func switchRoot() error {
	for _, m := range kernelMounts {
		if err := os.MkdirAll(newRoot+m.target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.target, newRoot+m.target, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("moving %s: %w", m.target, err)
		}
	}
	emptyInitramfs()
	if err := os.Chdir(newRoot); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("moving the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("entering the root: %w", err)
	}
	return os.Chdir("/")
}

// emptyInitramfs removes everything except /init and mounts.
func emptyInitramfs() {
	var root unix.Stat_t
	if unix.Stat("/", &root) != nil {
		return
	}
	var dirs []string
	filepath.WalkDir("/", func(path string, d fs.DirEntry, err error) error {
		var st unix.Stat_t
		switch {
		case err != nil || path == "/" || path == "/init":
			return nil
		case unix.Lstat(path, &st) != nil:
			return nil
		case d.IsDir() && st.Dev != root.Dev:
			return fs.SkipDir
		case d.IsDir():
			dirs = append(dirs, path)
		default:
			unix.Unlink(path)
		}
		return nil
	})
	for i := len(dirs) - 1; i >= 0; i-- {
		unix.Rmdir(dirs[i])
	}
}

// PowerOff ends a guest that cannot run; the console's last lines tell the host why.
func PowerOff() {
	unix.Sync()
	for {
		unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
		time.Sleep(time.Minute)
	}
}
