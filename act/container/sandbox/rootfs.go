package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"pagurus/act/host"
)

// The folders of a store. Those in Carried move with the container unchanged; the others
// are made again on each host.
const (
	Files   = "files" // what differs from the image
	Run     = "run"
	Temp    = "tmp"
	Shm     = "shm"
	Devices = "dev"
	work    = "work" // the overlay's work folder
)

// Carried lists the folders whose content belongs to the container.
var Carried = []string{Files, Run, Temp, Shm}

// kinds lists the file systems that an image may have.
var kinds = []string{"squashfs", "erofs"}

// MountImage mounts an image's file read-only on dir, which it creates. It does nothing
// if the image is mounted already. After an error nothing is mounted.
func MountImage(file, dir string) error {
	if at, err := mounts(dir); err != nil || at > 0 {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	device, err := attach(file)
	if err != nil {
		return fmt.Errorf("make a device of %s: %w", file, err)
	}
	defer device.Close() // the device exists until its last user closes or unmounts it
	for _, kind := range kinds {
		if err = unix.Mount(device.Name(), dir, kind, unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""); err == nil {
			return nil
		}
	}
	return fmt.Errorf("mount %s, which should be squashfs or erofs: %w", file, err)
}

// attachTries is more than 1 because another process may take the free device first.
const attachTries = 20

// attach makes a loop device of a file; the device disappears with its last user.
func attach(file string) (*os.File, error) {
	image, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer image.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	for range attachTries {
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, control.Fd(), unix.LOOP_CTL_GET_FREE, 0)
		if errno != 0 {
			return nil, fmt.Errorf("find a free loop device: %w", errno)
		}
		device, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDONLY, 0)
		if err != nil {
			return nil, err
		}
		config := unix.LoopConfig{
			Fd: uint32(image.Fd()), Size: 4096,
			Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_READ_ONLY},
		}
		copy(config.Info.File_name[:len(config.Info.File_name)-1], file)
		err = unix.IoctlLoopConfigure(int(device.Fd()), &config)
		if err == nil {
			return device, nil
		}
		device.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, err
		}
	}
	return nil, errors.New("all loop devices are taken again and again")
}

// MountStore mounts a new file system in memory, of so many bytes, on dir for the
// container's files. After an error nothing is mounted.
func MountStore(dir string, bytes int64) (err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("pagurus", dir, "tmpfs", unix.MS_NOATIME, fmt.Sprintf("mode=0700,size=%d", bytes)); err != nil {
		return fmt.Errorf("mount memory for a guest's files: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, Unmount(dir))
		}
	}()
	for name, mode := range map[string]os.FileMode{
		Files: 0o755, Run: 0o755, Temp: os.ModeSticky | 0o777, Shm: os.ModeSticky | 0o777, Devices: 0o755, work: 0o700,
	} {
		if err := makeFolder(filepath.Join(dir, name), mode); err != nil {
			return err
		}
	}
	return makeDevices(filepath.Join(dir, Devices))
}

// BoundStore changes how much a store may have. What it has stays: with less than that nothing can be added.
func BoundStore(dir string, bytes int64) error {
	if err := unix.Mount("pagurus", dir, "tmpfs", unix.MS_REMOUNT|unix.MS_NOATIME, fmt.Sprintf("size=%d", bytes)); err != nil {
		return fmt.Errorf("bound a guest's files: %w", err)
	}
	return nil
}

// StoreBound is how much a store may have.
func StoreBound(dir string) int64 {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil || st.Type != unix.TMPFS_MAGIC {
		return 0
	}
	return int64(st.Blocks) * st.Bsize
}

// EmptyDir removes the container's own content from a store whose content will be
// received.
func EmptyDir(dir string) error {
	for _, name := range Carried {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// NewMemory replaces everything at dir by a new file system in memory. It lasts until it
// is unmounted. After an error nothing is mounted.
func NewMemory(dir string) error {
	if err := ClearRoot(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("pagurus", dir, "tmpfs", unix.MS_NOATIME|unix.MS_NOSUID|unix.MS_NODEV, "mode=0700,size=100%"); err != nil {
		return fmt.Errorf("mount memory for a guest's state: %w", err)
	}
	return nil
}

// makeFolder makes a folder with exactly that mode.
func makeFolder(path string, mode os.FileMode) error {
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

// makeDevices makes the devices that every program may expect in /dev, and nothing of the
// host's.
func makeDevices(dir string) error {
	for _, d := range []struct {
		name         string
		major, minor uint32
	}{{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}} {
		path := filepath.Join(dir, d.name)
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(d.major, d.minor))); err != nil {
			return fmt.Errorf("make the device %s: %w", d.name, err)
		}
		if err := os.Chmod(path, 0o666); err != nil {
			return err
		}
	}
	for name, to := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
		"ptmx": "pts/ptmx",
	} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	for _, name := range []string{"pts", "shm", "empty"} { // mount points
		if err := makeFolder(filepath.Join(dir, name), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// MountRoot mounts a container's files as an overlay on top of an image. From then on the
// store's Files may be changed only through the overlay. After an error nothing is
// mounted.
func MountRoot(image, store, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, path := range []string{image, store, dir} {
		if strings.ContainsAny(path, `:,\`) {
			return fmt.Errorf("%s cannot be part of a guest's file system: give Pagurus folders whose names have no colon, comma or backslash", path)
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", image, filepath.Join(store, Files), filepath.Join(store, work))
	if err := unix.Mount("pagurus", dir, "overlay", 0, options); err != nil {
		return fmt.Errorf("mount a guest's files on its image: %w", err)
	}
	return nil
}

// Unmount unmounts everything on dir, even if it is in use: it then disappears with its
// last user. It is not an error if nothing is mounted there.
func Unmount(dir string) error {
	for {
		at, err := mounts(dir)
		if err != nil || at == 0 {
			return err
		}
		if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
	}
}

// UsedBytes returns the memory that a store's files occupy.
func UsedBytes(dir string) int64 {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil || st.Type != unix.TMPFS_MAGIC {
		return 0
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize
}

// Mounted returns the mount points at and below a folder, the innermost first.
func Mounted(dir string) ([]string, error) {
	all, err := host.MountsBelow(dir)
	slices.Reverse(all)
	return all, err
}

// mounts counts the mounts on exactly dir.
func mounts(dir string) (n int, err error) {
	all, err := Mounted(dir)
	for _, at := range all {
		if at == dir {
			n++
		}
	}
	return n, err
}

// ClearRoot unmounts everything at and below a folder and removes the folder. It is not
// an error if the folder does not exist.
func ClearRoot(dir string) error {
	if err := bare(dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// SweepRoots removes everything in a folder except the paths that are needed.
func SweepRoots(dir string, needed func(path string) bool) error {
	all, err := os.ReadDir(dir)
	for _, e := range all {
		if path := filepath.Join(dir, e.Name()); err == nil && !needed(path) {
			err = ClearRoot(path)
		}
	}
	return err
}

// HoldFiles mounts an open directory, with the mounts below it, at a path. It stays there
// even if its own path changes.
func HoldFiles(files *os.File, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	tree, err := unix.OpenTree(int(files.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE)
	if err != nil {
		return fmt.Errorf("hold on to %s: %w", files.Name(), err)
	}
	defer unix.Close(tree)
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("hold on to %s: %w", files.Name(), err)
	}
	return nil
}

// ReleaseFiles undoes HoldFiles. It never touches the content of the directory, even
// after an error, because it removes the mount point only when that is empty.
func ReleaseFiles(dir string) error {
	if err := bare(dir); err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// bare unmounts everything at and below a folder. Nothing is mounted where there is no folder, and
// listing all mounts of a host takes some milliseconds: too long before each guest that arrives.
func bare(dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	all, err := Mounted(dir)
	if err != nil {
		return err
	}
	for _, at := range all {
		if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("unmount %s: %w", at, err)
		}
	}
	return nil
}

// keepClear lists directories that a job's files must not cover, because they hold the
// image's programs and the kernel's file systems.
var keepClear = []string{"/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr"}

// Showable returns an error if a job's files cannot be mounted at a path of a guest.
func Showable(export string) error {
	if !filepath.IsAbs(export) || filepath.Clean(export) != export {
		return fmt.Errorf("%q is not an absolute path", export)
	}
	if export == "/" {
		return errors.New("/ cannot be shared with guests: it would hide the image; run from a directory of your own")
	}
	for _, dir := range keepClear {
		if export == dir || strings.HasPrefix(export, dir+"/") {
			return fmt.Errorf("%s cannot be shared with guests: it would hide the image's own %s; run from a directory of your own", export, dir)
		}
	}
	return nil
}
