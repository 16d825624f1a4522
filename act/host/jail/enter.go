package jail

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"pagurus/act/host"
)

// become is all that a jail's first process does itself.
func become(args []string) error {
	files, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	orders, answer := firstFile+files, firstFile+files+1
	unix.CloseOnExec(orders)
	unix.CloseOnExec(answer)
	said := os.NewFile(uintptr(answer), "answer")
	fmt.Fprintln(said, readyWord)
	line, err := bufio.NewReader(os.NewFile(uintptr(orders), "orders")).ReadBytes('\n')
	if err != nil {
		os.Exit(1) // the process that started this one has ended
	}
	var j Jail
	if err = json.Unmarshal(line, &j); err == nil {
		err = j.enter(orders)
	}
	fmt.Fprintln(said, strings.ReplaceAll(fmt.Sprint(err), "\n", "; "))
	os.Exit(1)
	return nil
}

// enter makes this process the jail's program, which inherits the descriptors below files. It returns only after an error.
func (j Jail) enter(files int) error {
	// Rights are given up per thread, and the program gets those of the thread that calls exec.
	runtime.LockOSThread()
	host.ExposeSelf() // while it may, and with the host's /proc
	if err := j.furnish(); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(j.Hostname)); err != nil {
		return fmt.Errorf("name the host: %w", err)
	}
	if err := unix.CloseRange(uint(files), ^uint(0)>>33, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close what the program must not have: %w", err)
	}
	if err := j.limit(); err != nil {
		return err
	}
	if err := os.Chdir(j.Folder); err != nil {
		return err
	}
	unix.Umask(0o077)
	if err := j.disarm(); err != nil {
		return err
	}
	binary := cmp.Or(j.Binary, j.Program[0])
	return fmt.Errorf("run %s: %w", binary, syscall.Exec(binary, j.Program, j.Env))
}

// noDumps is a limit of memory dumps that also keeps the host's handler of dumps (core_pattern with a pipe), which
// runs as root, from being started; 0 does not (core(5)).
const noDumps = 1

// limit sets the limits. A write beyond the largest file fails and does not end the program: it
// ignores the signal, since this process does.
func (j Jail) limit() error {
	signal.Ignore(unix.SIGXFSZ)
	limits := map[int]uint64{unix.RLIMIT_FSIZE: j.FileBytes, unix.RLIMIT_NOFILE: j.OpenFiles, unix.RLIMIT_CORE: noDumps}
	if j.Memory > 0 {
		limits[unix.RLIMIT_AS] = j.Memory
	}
	if j.Locked > 0 {
		limits[unix.RLIMIT_MEMLOCK] = j.Locked
	}
	for resource, most := range limits {
		if err := syscall.Setrlimit(resource, &syscall.Rlimit{Cur: most, Max: most}); err != nil {
			return fmt.Errorf("limit resource %d: %w", resource, err)
		}
	}
	return nil
}

// noRoot keeps programs that root starts from getting rights because of that, for good: they have those that
// they are given (SECBIT_NOROOT and its lock).
const noRoot = 1<<0 | 1<<1

// disarm gives up root and every capability but those that the program has, for ever: also a file's mode gives none back.
func (j Jail) disarm() error {
	for c := 0; c <= unix.CAP_LAST_CAP; c++ {
		if slices.Contains(j.Rights, c) {
			continue
		}
		// EINVAL: the kernel does not know the capability.
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil && err != unix.EINVAL {
			return fmt.Errorf("give up capability %d: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("give up capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("refuse new rights: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_SECUREBITS, noRoot, 0, 0, 0); err != nil {
		return fmt.Errorf("refuse root's rights: %w", err)
	}
	uid, gid := int(j.UID), int(j.GID)
	if len(j.Rights) > 0 {
		if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("keep rights: %w", err)
		}
	}
	if err := syscall.Setgroups(nil); err != nil {
		return fmt.Errorf("leave root's groups: %w", err)
	}
	if err := syscall.Setresgid(gid, gid, gid); err != nil {
		return fmt.Errorf("become group %d: %w", gid, err)
	}
	if err := syscall.Setresuid(uid, uid, uid); err != nil { // the last of root's capabilities go with its user
		return fmt.Errorf("become user %d: %w", uid, err)
	}
	return j.arm()
}

// arm leaves this thread, and the program that it becomes, the rights of the jail.
func (j Jail) arm() error {
	if len(j.Rights) == 0 {
		return nil
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	for _, c := range j.Rights {
		s := &sets[c/32]
		s.Effective |= 1 << (c % 32)
		s.Permitted, s.Inheritable = s.Effective, s.Effective
	}
	if err := unix.Capset(&header, &sets[0]); err != nil {
		return fmt.Errorf("keep rights: %w", err)
	}
	for _, c := range j.Rights {
		if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(c), 0, 0); err != nil {
			return fmt.Errorf("keep right %d: %w", c, err)
		}
	}
	return nil
}

const (
	quiet = unix.MS_NOSUID | unix.MS_NOEXEC
	// rootSize is enough for mount points and device files, which take none.
	rootSize = "size=64k,nr_inodes=512,mode=755"
	// scratchSize is enough for a file or two.
	scratchSize = "size=64k,nr_inodes=256,mode=700"
	// ownProcesses shows the jail's processes and nothing else of the kernel.
	ownProcesses = "subset=pid,hidepid=2"
)

// furnish makes the program's root the root: a folder in memory with what the jail names, and
// nothing else of the host.
func (j Jail) furnish() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("part from the host's mounts: %w", err)
	}
	trees := make([]int, len(j.Files))
	for i, f := range j.Files {
		if trees[i] = f.Tree; f.Tree > 0 {
			continue
		}
		var err error
		if trees[i], err = unix.OpenTree(unix.AT_FDCWD, f.Path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC); err != nil {
			return fmt.Errorf("show %s: %w", f.Path, err)
		}
	}
	if err := unix.Mount("pagurus", j.Root, "tmpfs", quiet, rootSize); err != nil {
		return fmt.Errorf("mount a root on %s: %w", j.Root, err)
	}
	if err := os.Chdir(j.Root); err != nil {
		return err
	}
	if j.Scratch != "" { // before the files, which may be below
		at := "." + j.Scratch
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("pagurus", at, "tmpfs", quiet|unix.MS_NODEV, fmt.Sprintf("%s,uid=%d,gid=%d", scratchSize, j.UID, j.GID)); err != nil {
			return fmt.Errorf("mount %s: %w", j.Scratch, err)
		}
	}
	for i, f := range j.Files {
		if err := f.show(trees[i]); err != nil {
			return fmt.Errorf("show %s: %w", f.Path, err)
		}
	}
	for _, d := range j.Devices {
		if err := d.make(int(j.UID)); err != nil {
			return fmt.Errorf("make %s: %w", d.Path, err)
		}
	}
	if err := os.Mkdir("proc", 0o555); err != nil {
		return err
	}
	if err := unix.Mount("proc", "proc", "proc", quiet|unix.MS_NODEV, ownProcesses); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("make %s the root: %w", j.Root, err)
	}
	// The old root is now on top of the new one.
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("let go of the host's files: %w", err)
	}
	if err := j.write(); err != nil {
		return fmt.Errorf("write its own files: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|quiet, ""); err != nil {
		return fmt.Errorf("make the root read-only: %w", err)
	}
	return nil
}

// write makes the program's own files. In a list of its mounts those in memory have another name, for a program that
// takes files in memory for lost.
func (j Jail) write() error {
	texts := maps.Clone(j.Texts)
	if j.MountList != "" {
		list, err := os.ReadFile("/proc/thread-self/mounts")
		if err != nil {
			return err
		}
		if texts == nil {
			texts = map[string]string{}
		}
		texts[j.MountList] = strings.ReplaceAll(string(list), " tmpfs ", " memory ")
	}
	for path, text := range texts {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o444); err != nil {
			return err
		}
	}
	return nil
}

// show mounts a tree that was opened before, below the working folder.
func (f File) show(tree int) error {
	defer unix.Close(tree)
	at := "." + f.Path
	if err := place(tree, at); err != nil {
		return err
	}
	attributes := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if !f.Writable {
		attributes.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if f.Runs { // also from where nothing can be executed, as /run of Debian
		attributes.Attr_clr |= unix.MOUNT_ATTR_NOEXEC
	} else {
		attributes.Attr_set |= unix.MOUNT_ATTR_NOEXEC
	}
	flags := uint(unix.AT_EMPTY_PATH)
	if f.Tree > 0 {
		flags |= unix.AT_RECURSIVE
	}
	if err := unix.MountSetattr(tree, "", flags, &attributes); err != nil {
		return err
	}
	return unix.MoveMount(tree, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// place makes the mount point of a tree.
func place(tree int, at string) error {
	var st unix.Stat_t
	if err := unix.Fstat(tree, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return os.MkdirAll(at, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(at, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// make makes a device file below the working folder.
func (d Device) make(owner int) error {
	at := "." + d.Path
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	if err := unix.Mknod(at, unix.S_IFCHR|0o600, int(d.Number)); err != nil {
		return err
	}
	return os.Chown(at, owner, owner)
}
