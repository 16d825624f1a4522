package criu

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/checkpoint-restore/go-criu/v8/rpc"
	"golang.org/x/sys/unix"
)

// leftOut is a file that source and target both have and that has lost its name: the name was
// removed or given to another file. CRIU would dump a copy of it, and other programs that have
// the file open would not see what is written to the copy.
type leftOut struct {
	Key    string // CRIU's name for it
	Type   int32  // with Handle, the file system's identifier of the file
	Handle []byte
	At     string `json:",omitempty"` // its folder in the container; empty: the first
	Inode  uint64 `json:",omitempty"`
	Kept   string `json:",omitempty"` // a name in the folder that it was given for the target; empty: it is opened by its handle
}

// JobFolder is a folder of files that source and target both have, as a container sees it.
type JobFolder struct {
	At      string
	Remote  bool // it is of a network file system: names are changed elsewhere, too, and this kernel learns of it late
	Crosses bool // the target has it by another file system: there files are known by their names alone
}

// sameFile is the image in which the left-out files are recorded.
const sameFile = "pagurus-same.json"

// deleted is what the kernel appends to the name of a removed file.
const deleted = " (deleted)"

// Leave makes CRIU leave out those files in folders of the container that cannot
// be opened by their names. It records how the target opens them; OpenLeftOut is the
// other end. The processes must be suspended.
func (d *Dumping) Leave(at []JobFolder) error {
	files, err := sames(d.spec.PID, at)
	for _, f := range files {
		if f.Kept != "" {
			d.Kept = append(d.Kept, KeptName{f.At, f.Kept})
		}
	}
	if err == nil && len(files) > 0 {
		var text []byte
		if text, err = json.Marshal(files); err == nil {
			err = os.WriteFile(filepath.Join(d.spec.Images, sameFile), text, 0o600)
		}
	}
	if err == nil {
		err = d.recordNames(at)
	}
	if err != nil {
		return d.spec.wrap(err)
	}
	d.call.shared = at
	for _, f := range files {
		d.call.opts.External = append(d.call.opts.External, f.Key)
	}
	return nil
}

// SharedFolder is a folder of the container that has the source's files, and where it is on
// this host.
type SharedFolder struct {
	At, From string
	Remote   bool   // it is of a network file system, whose server judges handles
	Owner    uint32 // the job's user
}

// OpenLeftOut opens the files that Leave left out, in these folders, for the processes that
// will be restored, and makes sure that the others are found by their names. Call Do
// afterwards.
func (r *Restoring) OpenLeftOut(folders []SharedFolder) error {
	if err := r.checkNames(folders); err != nil {
		return r.spec.wrap(err)
	}
	text, err := os.ReadFile(filepath.Join(r.spec.Images, sameFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var files []leftOut
	if err == nil {
		err = json.Unmarshal(text, &files)
	}
	if err == nil {
		err = r.giveLeftOut(folders, files)
	}
	if err != nil {
		return r.spec.wrap(fmt.Errorf("open the job's files that have no name: %w", err))
	}
	return nil
}

// giveLeftOut passes the files to a new CRIU, because the waiting one cannot receive any.
func (r *Restoring) giveLeftOut(folders []SharedFolder, files []leftOut) error {
	bases, places := map[string]*os.File{}, map[string]SharedFolder{}
	defer func() {
		for _, base := range bases {
			base.Close()
		}
	}()
	for i, f := range folders {
		base, err := mountOf(f.From)
		if err != nil {
			return err
		}
		if bases[f.At], places[f.At] = base, f; i == 0 {
			bases[""], places[""] = base, f
		}
	}
	var opened []*os.File
	defer func() {
		for _, f := range opened {
			f.Close()
		}
		r.call.files = nil
	}()
	r.call.opts.InheritFd = nil
	for i, s := range files {
		base := bases[s.At]
		if base == nil {
			return fmt.Errorf("%s is in %s, which this host does not have", s.Key, s.At)
		}
		f, err := s.open(base, places[s.At])
		if err != nil {
			return err
		}
		opened = append(opened, f)
		if s.Kept != "" {
			r.Kept = append(r.Kept, KeptName{s.At, s.Kept})
		}
		r.call.opts.InheritFd = append(r.call.opts.InheritFd, &rpc.InheritFd{Key: new(s.Key), Fd: new(int32(firstFile + i))})
	}
	r.call.files = opened
	if r.over == nil {
		return errors.New("criu has to wait for them")
	}
	r.Close()
	return r.startCriu()
}

// mountOf clones a folder's mount. Nothing else sees the clone. Files opened through it
// do not keep the folder's own mount from being removed, and give programs no rights
// there.
func mountOf(folder string) (*os.File, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, folder, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("clone the mount of %s: %w", folder, err)
	}
	defer unix.Close(fd) // base keeps the mount
	safe := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &safe); err != nil {
		return nil, fmt.Errorf("restrict a mount of %s: %w", folder, err)
	}
	base, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a mount of %s: %w", folder, err)
	}
	return os.NewFile(uintptr(base), folder), nil
}

// open opens the file. The source has said which, and may be in wrong hands: by a handle it could name every file of the file system that the
// folder is on.
func (s leftOut) open(base *os.File, in SharedFolder) (*os.File, error) {
	var fd int
	var err error
	if s.Kept != "" {
		fd, err = KeptName{s.At, s.Kept}.within(base, s.Kept, 0)
	} else {
		fd, err = unix.OpenByHandleAt(int(base.Fd()), unix.NewFileHandle(s.Type, s.Handle), unix.O_PATH|unix.O_CLOEXEC)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s by its handle, or the name that was kept for it: %w", s.Key, err)
	}
	f := os.NewFile(uintptr(fd), s.Key)
	st, err := statx(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil || s.Inode != 0 && st.Ino != s.Inode {
		f.Close()
		return nil, errors.Join(fmt.Errorf("%s has the handle of another file here", s.Key), err)
	}
	if says := in.foreign(st, s.Kept != ""); says != "" {
		f.Close()
		return nil, fmt.Errorf("%s is a file that has lost its name and %s: the program has to close it before its guest can move", s.Key, says)
	}
	return f, nil
}

// foreign says why a file may be none of the job's; empty: it is one. named: it was found below the folder, and not by its handle alone. Of a
// job of root what has no name has to have been removed, since all is root's.
func (f SharedFolder) foreign(st unix.Statx_t, named bool) string {
	kind := st.Mode & unix.S_IFMT
	switch {
	case kind != unix.S_IFREG && kind != unix.S_IFDIR:
		return "is neither a file nor a directory"
	case named, f.Remote, kind == unix.S_IFDIR && st.Nlink == 0: // a removed directory is empty
		return ""
	case f.Owner != 0 && st.Uid != f.Owner:
		return fmt.Sprintf("belongs to uid %d, not to the job's user", st.Uid)
	case f.Owner == 0 && st.Nlink > 0:
		return "still has a name elsewhere"
	}
	return ""
}

// sames finds the files to leave out.
func sames(pid int, folders []JobFolder) ([]leftOut, error) {
	if len(folders) == 0 {
		return nil, nil
	}
	all, err := Processes(pid)
	if err != nil {
		return nil, err
	}
	jobs, err := placesOf(pid, folders)
	if err != nil {
		return nil, err
	}
	var found []leftOut
	seen := map[string]bool{}
	for _, p := range all {
		for path, name := range opens(p, jobs) {
			st, job := jobs.nameless(p, path, name)
			key := fmt.Sprintf("file[%x:%x]", st.Mnt_id, st.Ino)
			if job == nil || seen[key] {
				continue
			}
			seen[key] = true
			if job.Crosses {
				return nil, errors.New(crossing(NameOf(p), strings.TrimSuffix(name, deleted)))
			}
			if job.Remote && st.Nlink == 0 {
				return nil, errors.New(stuck(NameOf(p), strings.TrimSuffix(name, deleted)))
			}
			kept, err := job.keepName(p, name)
			if err != nil {
				return found, err
			}
			handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
			if err != nil {
				return found, fmt.Errorf("%s: %w", stuck(NameOf(p), strings.TrimSuffix(name, deleted)), err)
			}
			found = append(found, leftOut{Key: key, Type: handle.Type(), Handle: handle.Bytes(), At: job.At, Inode: st.Ino, Kept: kept})
		}
	}
	return found, nil
}

// crossing says that a file without a name cannot go where the files are reached otherwise.
func crossing(who, what string) string {
	return fmt.Sprintf("%s has %s open, a name that was removed or given to another file, and the target reaches the job's files in another way, by names alone: "+
		"let it close the file, or keep its name, or move it to a host that reaches them as this one does", who, printable(what))
}

// stuck says that a file system cannot open a file without a name.
func stuck(who, what string) string {
	return fmt.Sprintf("%s has %s open, a name that was removed or given to another file, and the file system of the job's files cannot open it by anything else: "+
		"let it close the file, or keep its name", who, printable(what))
}

// job is a folder of files that source and target both have.
type job struct {
	JobFolder
	device uint64
	tables map[int]map[uint64]string // of each examined process: mount points by the mounts' identifiers
}

// jobs are all such folders of a container.
type jobs []*job

func placesOf(pid int, folders []JobFolder) (all jobs, err error) {
	for _, f := range folders {
		f.At = filepath.Clean(f.At)
		st, err := statx(fmt.Sprintf("/proc/%d/root%s", pid, f.At))
		if err != nil {
			return nil, fmt.Errorf("read the job's files in %s: %w", f.At, err)
		}
		all = append(all, &job{JobFolder: f, device: device64(st), tables: map[int]map[uint64]string{}})
	}
	return all, nil
}

// nameless gives the folder whose file without a name a process has open; nil: none.
func (js jobs) nameless(pid int, path, name string) (st unix.Statx_t, of *job) {
	for _, j := range js {
		var ours bool
		if st, ours = j.nameless(pid, path, name); ours {
			return st, j
		}
	}
	return st, nil
}

// on reports whether a device is that of one of the folders.
func (js jobs) on(device uint64) bool {
	return slices.ContainsFunc(js, func(j *job) bool { return j.device == device })
}

func statx(path string) (st unix.Statx_t, err error) {
	err = unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &st)
	return st, err
}

func device64(st unix.Statx_t) uint64 { return unix.Mkdev(st.Dev_major, st.Dev_minor) }

// odd reports whether a file of this name can be a job's file that has lost its name.
func (j *job) odd(name string) bool {
	return strings.HasPrefix(name, "/") && (j.Remote || strings.HasSuffix(name, deleted) || name != j.At && !strings.HasPrefix(name, j.At+"/"))
}

// nameless examines a process's file, given a path in /proc and its name. ours: it is a
// file or folder of the job without a name, or was opened as one at an earlier move.
func (j *job) nameless(pid int, path, name string) (st unix.Statx_t, ours bool) {
	if !j.odd(name) {
		return st, false
	}
	flags := 0
	if j.Remote {
		flags = unix.AT_STATX_FORCE_SYNC
	}
	err := unix.Statx(unix.AT_FDCWD, path, flags, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &st)
	kind := st.Mode & unix.S_IFMT
	if err != nil || device64(st) != j.device || kind != unix.S_IFREG && kind != unix.S_IFDIR {
		return st, false
	}
	if j.tables[pid] == nil {
		j.tables[pid] = mountTable(pid)
	}
	at, known := j.tables[pid][st.Mnt_id]
	return st, !known || at == j.At && (strings.HasSuffix(name, deleted) || j.Remote && j.misnamed(pid, name, st.Ino))
}

// opens returns a process's open files, as paths in /proc with their names. It omits the
// many mapped files that cannot belong to the job.
func opens(pid int, of jobs) map[string]string {
	folder := fmt.Sprintf("/proc/%d/", pid)
	found := map[string]string{}
	add := func(path string) {
		if name, err := os.Readlink(path); err == nil {
			found[path] = name
		}
	}
	for _, one := range []string{"exe", "cwd", "root"} {
		add(folder + one)
	}
	entries, _ := os.ReadDir(folder + "fd")
	for _, e := range entries {
		add(folder + "fd/" + e.Name())
	}
	f, err := os.Open(folder + "maps")
	if err != nil {
		return found
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		m, ok := parseMapping(line)
		if ok && strings.HasPrefix(m.path, "/") && (strings.HasSuffix(m.path, deleted) || of.on(deviceOf(line))) {
			found[fmt.Sprintf("%smap_files/%x-%x", folder, m.start, m.end)] = m.path
		}
	}
	return found
}

// deviceOf is the device of the file in a line of /proc/PID/maps.
func deviceOf(line string) uint64 {
	var major, minor uint32
	if f := strings.Fields(line); len(f) > 3 {
		if _, err := fmt.Sscanf(f[3], "%x:%x", &major, &minor); err == nil {
			return unix.Mkdev(major, minor)
		}
	}
	return 0
}

// mountTable returns a process's mount points by the mounts' identifiers.
func mountTable(pid int) map[uint64]string {
	table := map[uint64]string{}
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		var id uint64
		if len(f) < 5 {
			continue
		}
		if _, err := fmt.Sscan(f[0], &id); err == nil {
			table[id] = unescape(f[4])
		}
	}
	return table
}
