package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"pagurus/act/host"
)

// enter makes this process the program of the cell. It returns only after an error.
func (c Cell) enter() error {
	// Rights are given up per thread, and the program gets the rights of the thread that
	// calls exec.
	runtime.LockOSThread()
	host.ExposeSelf() // while it may, and with the host's /proc
	if err := c.mount(); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(c.Hostname)); err != nil {
		return fmt.Errorf("name the guest: %w", err)
	}
	// No open file may lead outside, because such a file cannot be moved.
	if err := c.openOwn(); err != nil {
		return err
	}
	// Ignored signals would be ignored in every program of the container.
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT)
	for _, l := range limits {
		if err := l.set(); err != nil {
			return err
		}
	}
	unix.Umask(0o022)
	if err := confine(); err != nil {
		return err
	}
	return fmt.Errorf("run %s: %w", c.Program, syscall.Exec(c.Program, []string{c.Program}, c.Env))
}

// limit is a limit of a container's programs, which they can only lower.
type limit struct {
	of        int
	cur, most uint64
	name      string // in /proc/PID/limits
}

// limits are those that do not depend on how the agent was started. A program may have 1,024 files
// open unless it asks for more. The kernel's value of 1 for memory dumps means none, also where the host
// has them handled by a program: that would run outside the container, as root. Real-time
// priority would starve the host.
var limits = []limit{
	{unix.RLIMIT_NOFILE, 1024, 65536, "Max open files"}, {unix.RLIMIT_CORE, 1, 1, "Max core file size"},
	{unix.RLIMIT_RTPRIO, 0, 0, "Max realtime priority"}, {unix.RLIMIT_NICE, 0, 0, "Max nice priority"},
}

func (l limit) set() error {
	var now syscall.Rlimit
	if err := syscall.Getrlimit(l.of, &now); err != nil {
		return err
	}
	most := min(now.Max, l.most)
	if err := syscall.Setrlimit(l.of, &syscall.Rlimit{Cur: min(most, l.cur), Max: most}); err != nil {
		return fmt.Errorf("set limit %d: %w", l.of, err)
	}
	return nil
}

// mount makes the cell's root the root, and makes the mounts in it.
func (c Cell) mount() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("part from the host's mounts: %w", err)
	}
	var trees []int
	for _, m := range c.Mounts {
		fd, err := unix.OpenTree(unix.AT_FDCWD, m.From, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
		if err != nil {
			return fmt.Errorf("show %s in the guest: %w", m.From, err)
		}
		trees = append(trees, fd)
	}
	if err := os.Chdir(c.Root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("make %s the root: %w", c.Root, err)
	}
	// The old root is now on top of the new one.
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("let go of the host's files: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	for _, m := range kernelMounts {
		if m.target == "/dev/pts" {
			continue // in a folder that does not exist yet
		}
		if err := m.do(); err != nil {
			return err
		}
	}
	for i, m := range c.Mounts {
		if err := m.show(trees[i]); err != nil {
			return fmt.Errorf("show %s in the guest at %s: %w", m.From, m.At, err)
		}
		if m.At == "/dev" {
			if err := terminals.do(); err != nil {
				return err
			}
		}
	}
	return errors.Join(hide(c.Hide, nil), fix())
}

// mounting is one call of mount(2).
type mounting struct {
	source, target, kind string
	flags                uintptr
	options              string
}

func (m mounting) do() error {
	if err := os.MkdirAll(m.target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.options); err != nil {
		return fmt.Errorf("mount %s: %w", m.target, err)
	}
	return nil
}

const restricted = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

var kernelMounts = []mounting{
	{"proc", "/proc", "proc", restricted, ""},
	{"sysfs", "/sys", "sysfs", restricted | unix.MS_RDONLY, ""},
}

var terminals = mounting{"devpts", "/dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,gid=5"}

// show mounts a tree that was opened before the root was changed.
func (m Mount) show(tree int) error {
	defer unix.Close(tree)
	if err := m.place(tree); err != nil {
		return err
	}
	attributes := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID, Propagation: unix.MS_PRIVATE}
	for attribute, wanted := range map[uint64]bool{
		unix.MOUNT_ATTR_RDONLY: m.ReadOnly, unix.MOUNT_ATTR_NODEV: !m.Devices, unix.MOUNT_ATTR_NOEXEC: !m.Programs,
	} {
		if wanted {
			attributes.Attr_set |= attribute
		}
	}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attributes); err != nil {
		return err
	}
	return unix.MoveMount(tree, "", unix.AT_FDCWD, m.At, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// place makes the mount point.
func (m Mount) place(tree int) error {
	var st unix.Stat_t
	if err := unix.Fstat(tree, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return os.MkdirAll(m.At, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(m.At), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(m.At, os.O_CREATE|os.O_RDONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// bind mounts a file or folder read-only at another place.
func bind(from, at string) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, from, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("cover %s: %w", at, err)
	}
	defer unix.Close(tree)
	attributes := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC}
	if err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attributes); err == nil {
		err = unix.MoveMount(tree, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH)
	}
	if err != nil {
		return fmt.Errorf("cover %s: %w", at, err)
	}
	return nil
}

// openOwn gives the program standard files that are inside the container.
func (c Cell) openOwn() error {
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev/null: %w", err)
	}
	console, err := unix.Open(c.Console, unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("open %s: %w", c.Console, err)
	}
	for to, from := range []int{null, console, console} {
		if err := unix.Dup3(from, to, 0); err != nil {
			return err
		}
	}
	return unix.CloseRange(3, ^uint(0)>>33, unix.CLOSE_RANGE_CLOEXEC)
}
