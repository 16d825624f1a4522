package container

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"pagurus/act/host"
	"pagurus/fleet"
	"pagurus/internal/thread"
)

// writtenFile is a job's file that a guest had open for writing at its cut. What is written
// behind its end afterwards is cut off when the guest is restored.
type writtenFile struct {
	At    string `json:"at"`   // the job's directory
	Name  string `json:"name"` // from there
	Inode uint64 `json:"inode"`
	Bytes int64  `json:"bytes"`
}

// noteFiles notes the files that a suspended guest has open for writing.
func (a *about) noteFiles(pid int, folders []folder) {
	a.Written, a.Amiss = nil, nil
	eachWritten(pid, folders, func(f writtenFile, odd string) {
		if at := slices.IndexFunc(a.Written, f.same); at < 0 {
			a.Written = append(a.Written, f)
		}
		if odd != "" && !slices.Contains(a.Amiss, odd) {
			a.Amiss = append(a.Amiss, odd)
		}
	})
}

// noteGrowth notes those that have grown since, before the guest continues. Another guest has
// written to them. The one of these guests that was cut last saw their length at the cut.
func (a *about) noteGrowth(pid int, folders []folder) {
	if len(a.Written) == 0 {
		return
	}
	eachWritten(pid, folders, func(f writtenFile, _ string) {
		at := slices.IndexFunc(a.Written, f.same)
		if at < 0 || a.Written[at].Bytes == f.Bytes {
			return
		}
		a.Written[at].Bytes = max(f.Bytes, a.Written[at].Bytes)
		a.Amiss = append(a.Amiss, fmt.Sprintf("%s%s is written by others, too, and may keep what they wrote after the checkpoint", f.At, f.Name))
	})
}

func (f writtenFile) same(other writtenFile) bool { return f.At == other.At && f.Name == other.Name }

// eachWritten calls f for each job's file that a guest's processes can write to. odd says, for
// people, why such a file will not be as it was at the cut; it is empty if only its end moves.
func eachWritten(pid int, folders []folder, f func(file writtenFile, odd string)) {
	if len(folders) == 0 {
		return
	}
	for _, process := range host.Family(pid) {
		root := fmt.Sprintf("/proc/%d/", process)
		entries, _ := os.ReadDir(root + "fd") // after an error it has ended
		for _, e := range entries {
			file, ours := jobFile(root+"fd/"+e.Name(), folders)
			if !ours {
				continue
			}
			flags, position := opened(root + "fdinfo/" + e.Name())
			switch {
			case flags&unix.O_ACCMODE == unix.O_RDONLY:
			case flags&unix.O_APPEND == 0 && position < file.Bytes:
				f(file, fmt.Sprintf("%s%s is written before its end: what it has there after the checkpoint stays", file.At, file.Name))
			default:
				f(file, "")
			}
		}
		text, _ := os.ReadFile(root + "maps")
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			if len(fields) < 6 || len(fields[1]) != 4 || fields[1][1] != 'w' || fields[1][3] != 's' {
				continue
			}
			if file, ours := jobFile(root+"map_files/"+mapName(fields[0]), folders); ours {
				f(file, fmt.Sprintf("%s%s is in the memory of a program that writes to it: what it changes after the checkpoint stays", file.At, file.Name))
			}
		}
	}
}

// mapName is the name in map_files of a range in maps.
func mapName(text string) string {
	from, to, _ := strings.Cut(text, "-")
	trim := func(s string) string { return cmp.Or(strings.TrimLeft(s, "0"), "0") }
	return trim(from) + "-" + trim(to)
}

// jobFile reports what regular file of the job's directories a link in /proc leads to.
func jobFile(link string, folders []folder) (file writtenFile, ours bool) {
	name, err := os.Readlink(link)
	if err != nil {
		return file, false
	}
	for _, f := range folders {
		at := filepath.Clean(f.At)
		rest, below := strings.CutPrefix(name, at+"/")
		if !below || f.ReadOnly || len(at) < len(file.At) {
			continue
		}
		file, ours = writtenFile{At: f.At, Name: "/" + rest}, true
	}
	var st unix.Statx_t
	if !ours || unix.Statx(unix.AT_FDCWD, link, unix.AT_STATX_DONT_SYNC, unix.STATX_BASIC_STATS, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink == 0 {
		return file, false
	}
	file.Inode, file.Bytes = st.Ino, int64(st.Size)
	return file, true
}

// opened returns how a file is open, and where.
func opened(path string) (flags int, position int64) {
	text, _ := os.ReadFile(path)
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "flags:"); ok {
			_, _ = fmt.Sscanf(strings.TrimSpace(rest), "%o", &flags)
		}
		if rest, ok := strings.CutPrefix(line, "pos:"); ok {
			_, _ = fmt.Sscan(rest, &position)
		}
	}
	return flags, position
}

// owner is the user whose files a job's directories are.
type owner struct {
	uid, gid uint32
	groups   []uint32
}

func ownerOf(t fleet.Task) owner {
	return owner{t.Job.Spec.UID, t.Job.Spec.GID, t.Job.Spec.Groups}
}

// reachToCut opens such a file for writing, if the job's user may write it: its name was told by
// the host that made the checkpoint, whose owner may have chosen it. A file of the user's own may
// be read-only by now. A network file system judges by itself.
func (f writtenFile) reachToCut(folders []folder, user owner) (*os.File, error) {
	if slices.ContainsFunc(folders, func(mine folder) bool { return mine.At == f.At && mine.ReadOnly }) {
		return nil, fmt.Errorf("%s%s: the job may not write there", f.At, f.Name)
	}
	if slices.ContainsFunc(folders, func(mine folder) bool { return mine.At == f.At && mine.Remote }) {
		return f.reach(folders, unix.O_RDWR)
	}
	var found *os.File
	err := thread.As(user.uid, user.gid, user.groups, func() (err error) {
		if found, err = f.reach(folders, unix.O_PATH); err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(found.Fd()), &st); err != nil || st.Uid == user.uid {
			return err
		}
		if err := unix.Faccessat(int(found.Fd()), "", unix.W_OK, unix.AT_EACCESS|unix.AT_EMPTY_PATH); err != nil {
			return fmt.Errorf("the job's user may not write %s%s: %w", f.At, f.Name, err)
		}
		return nil
	})
	if found != nil {
		defer found.Close()
	}
	if err != nil {
		return nil, err
	}
	return os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", found.Fd()), os.O_RDWR|unix.O_NONBLOCK, 0) // the same file, whatever its name leads to now
}

// reach opens such a file on this host. Neither it nor a folder above it may be a link, which a
// job's user could have made.
func (f writtenFile) reach(folders []folder, flags uint64) (*os.File, error) {
	at := slices.IndexFunc(folders, func(mine folder) bool { return mine.At == f.At })
	if at < 0 {
		return nil, fmt.Errorf("%s is not a directory of the job", f.At)
	}
	dir, err := os.OpenFile(folders[at].From, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	if flags&unix.O_PATH == 0 { // which waits for nobody, and bears no other flag
		flags |= unix.O_NONBLOCK
	}
	fd, err := unix.Openat2(int(dir.Fd()), strings.TrimPrefix(f.Name, "/"), &unix.OpenHow{
		Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return nil, fmt.Errorf("open %s%s: %w", f.At, f.Name, err)
	}
	file := os.NewFile(uintptr(fd), f.Name)
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%s%s is not a file any more", f.At, f.Name), err, file.Close())
	}
	return file, nil
}

// syncFiles writes the files of this host to their disk that a guest had open for writing: a
// checkpoint is useless without what they had at the cut.
func (a about) syncFiles(folders []folder) error {
	for _, w := range a.Written {
		if slices.ContainsFunc(folders, func(f folder) bool { return f.At == w.At && f.Remote }) {
			continue // writeFiles has done it
		}
		f, err := w.reach(folders, unix.O_RDONLY)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since, and missed when the guest is restored
		}
		if err == nil {
			err = errors.Join(f.Sync(), f.Close())
		}
		if err != nil {
			return fmt.Errorf("write the job's files: %w", err)
		}
	}
	return nil
}

// cutBack makes the files as long as they were at the cut. One that is shorter cannot be made so.
func (a about) cutBack(folders []folder, user owner) error {
	var long []*os.File
	defer func() {
		for _, f := range long {
			f.Close()
		}
	}()
	var sizes []int64
	for _, w := range a.Written { // all are examined before one is changed
		f, err := w.reachToCut(folders, user)
		if err != nil {
			return fmt.Errorf("make the job's files as they were: %w", err)
		}
		long, sizes = append(long, f), append(sizes, w.Bytes)
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			return fmt.Errorf("make the job's files as they were: %s%s: %w", w.At, w.Name, err)
		}
		switch {
		case st.Ino != w.Inode:
			return fmt.Errorf("%s%s is another file than at the checkpoint: somebody replaced it", w.At, w.Name)
		case st.Size < w.Bytes:
			return fmt.Errorf("%s%s has %d bytes and had %d at the checkpoint: what is missing cannot be had", w.At, w.Name, st.Size, w.Bytes)
		}
	}
	for i, f := range long {
		if info, err := f.Stat(); err == nil && info.Size() == sizes[i] {
			continue
		}
		if err := f.Truncate(sizes[i]); err != nil {
			return fmt.Errorf("cut off what was written after the checkpoint: %w", err)
		}
	}
	return nil
}
