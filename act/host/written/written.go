// Package written keeps a job's files as they were at a checkpoint, as far as that can be done without copying: it notes
// which files guests had open for writing and how long they were, and cuts off later what was written behind their
// ends since. Where the file system can copy files without their blocks (reflinks) it does that with files that may be
// written elsewhere, and puts them back.
//
// It knows processes and directories, not guests or how they are written. Names come from whoever made the checkpoint,
// and are followed with the rights of the job's user only. The tests use files of several users, and package
// container's a real job.
package written

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"pagurus/act/host"
	"pagurus/fleet"
	"pagurus/internal/thread"
)

// Folder is a directory of a job on this host.
type Folder struct {
	At       string // its path in guests
	From     string // its path here
	ReadOnly bool
	Remote   bool // another host serves it
	Served   bool // by the job's file server, which cannot clone files
}

// File is a job's file that a guest had open for writing at its cut. What is written behind its end
// afterwards is cut off when the guest is restored.
type File struct {
	At    string `json:"at"`   // the job's directory
	Name  string `json:"name"` // from there
	Inode uint64 `json:"inode"`
	Bytes int64  `json:"bytes"`          // when the guest continued: all guests of the job were suspended
	Grew  int64  `json:"grew,omitempty"` // so much of that came after this guest's own cut, and is of others

	Inside bool   `json:"inside,omitempty"` // it may also be written before its end
	Odd    string `json:"odd,omitempty"`    // what Amiss says of it, unless it has a clone
	Clone  string `json:"clone,omitempty"`  // in ClonesFolder: the file as it was at the cut
}

// Cut is what is known of a job's files at a guest's cut.
type Cut struct {
	Files []File   `json:"written,omitempty"` // that were open for writing
	Amiss []string `json:"amiss,omitempty"`   // what will not be as it was at the cut, for people
}

// NoteFiles notes the files that a suspended guest, with this first process, has open for writing.
func (c *Cut) NoteFiles(pid int, folders []Folder) {
	c.Files, c.Amiss = nil, nil
	eachWritten(pid, folders, func(f File, odd string) {
		f.Odd = odd
		if at := slices.IndexFunc(c.Files, f.same); at < 0 {
			c.Files = append(c.Files, f)
		} else if is := &c.Files[at]; f.Inside {
			is.Inside, is.Odd = true, cmp.Or(is.Odd, odd)
		}
		if odd != "" && !slices.Contains(c.Amiss, odd) {
			c.Amiss = append(c.Amiss, odd)
		}
	})
}

// Open is what was noted, as it is told to others.
func (c Cut) Open() (all fleet.OpenFiles) {
	for _, f := range c.Files {
		all.Files = append(all.Files, fleet.OpenFile{At: f.At, Name: f.Name, Inode: f.Inode, Bytes: f.Bytes, Inside: f.Inside, Odd: f.Odd})
	}
	all.Amiss = c.Amiss
	return all
}

// Told is the other end of Open.
func Told(open fleet.OpenFiles) Cut {
	c := Cut{Amiss: slices.Clone(open.Amiss)}
	for _, f := range open.Files {
		c.Files = append(c.Files, File{At: f.At, Name: f.Name, Inode: f.Inode, Bytes: f.Bytes, Inside: f.Inside, Odd: f.Odd})
	}
	return c
}

// NoteGrowth notes those that have grown since, before the guest continues. Another guest has
// written to them. The one of these guests that continues first sees their length at the cut.
func (c *Cut) NoteGrowth(pid int, folders []Folder) {
	if len(c.Files) == 0 {
		return
	}
	eachWritten(pid, folders, func(f File, _ string) {
		at := slices.IndexFunc(c.Files, f.same)
		if at < 0 || c.Files[at].Bytes >= f.Bytes {
			return
		}
		c.Files[at].Grew += f.Bytes - c.Files[at].Bytes
		c.Files[at].Bytes = f.Bytes
		c.Amiss = append(c.Amiss, fmt.Sprintf("%s%s is written by others, too, and may keep what they wrote after the checkpoint", f.At, f.Name))
	})
}

// Grown is the part of Amiss that OpenFiles cannot tell before.
func (c Cut) Grown() []string {
	return slices.DeleteFunc(slices.Clone(c.Amiss), func(said string) bool {
		return slices.ContainsFunc(c.Files, func(f File) bool { return f.Odd == said })
	})
}

func (f File) same(other File) bool { return f.At == other.At && f.Name == other.Name }

// eachWritten calls f for each job's file that a guest's processes can write to. odd says, for
// people, why such a file will not be as it was at the cut; it is empty if only its end moves.
func eachWritten(pid int, folders []Folder, f func(file File, odd string)) {
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
			file.Inside = flags&unix.O_APPEND == 0 // also one that is written at its end now: all of it may have been, and is again
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
				file.Inside = true
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
func jobFile(link string, folders []Folder) (file File, ours bool) {
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
		file, ours = File{At: f.At, Name: "/" + rest}, true
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

// Measure notes how long the files are that a guest told of itself, while all guests of its job are suspended. Those
// that cannot be found are left out.
func (c *Cut) Measure(folders []Folder) {
	var found []File
	for _, f := range c.Files {
		bytes, err := f.length(folders)
		if err != nil {
			c.Amiss = append(c.Amiss, fmt.Sprintf("%s%s may keep what is written to it after the checkpoint: %v", f.At, f.Name, err))
			continue
		}
		f.Bytes, f.Grew = bytes, max(0, bytes-f.Bytes)
		found = append(found, f)
	}
	c.Files = found
}

// length asks the file system how long the file is, if it is still the same.
func (f File) length(folders []Folder) (int64, error) {
	file, err := f.reach(folders, unix.O_PATH)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	var st unix.Statx_t
	if err := unix.Statx(int(file.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS, &st); err != nil {
		return 0, fmt.Errorf("look at %s%s: %w", f.At, f.Name, err)
	}
	if st.Ino != f.Inode {
		return 0, errors.New("its name leads to another file here")
	}
	return int64(st.Size), nil
}

// Owner is the user whose files a job's directories are.
type Owner struct {
	UID, GID uint32
	Groups   []uint32
}

// reachToCut opens such a file for writing, if the job's user may write it: its name was told by
// the host that made the checkpoint, whose owner may have chosen it. A file of the user's own may
// be read-only by now. A network file system judges by itself.
func (f File) reachToCut(folders []Folder, user Owner) (*os.File, error) {
	if slices.ContainsFunc(folders, func(mine Folder) bool { return mine.At == f.At && mine.ReadOnly }) {
		return nil, fmt.Errorf("%s%s: the job may not write there", f.At, f.Name)
	}
	if slices.ContainsFunc(folders, func(mine Folder) bool { return mine.At == f.At && mine.Remote }) {
		return f.reach(folders, unix.O_RDWR)
	}
	folders, done := handles(folders)
	defer done()
	var found *os.File
	err := thread.As(user.UID, user.GID, user.Groups, func() (err error) {
		if found, err = f.reach(folders, unix.O_PATH); err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(found.Fd()), &st); err != nil || st.Uid == user.UID {
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

// handles gives the directories of this host by descriptors that the agent has opened, until done is called: here the
// folders above one may be closed to the job's user.
func handles(folders []Folder) (opened []Folder, done func()) {
	opened = slices.Clone(folders)
	var all []*os.File
	for i, f := range opened {
		if f.Remote { // which nobody reaches as that user
			continue
		}
		dir, err := os.OpenFile(f.From, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			continue // who needs it meets the error
		}
		all = append(all, dir)
		opened[i].From = fmt.Sprintf("/proc/self/fd/%d", dir.Fd())
	}
	return opened, func() {
		for _, dir := range all {
			dir.Close()
		}
	}
}

// reach opens such a file on this host. Neither it nor a folder above it may be a link, which a
// job's user could have made.
func (f File) reach(folders []Folder, flags uint64) (*os.File, error) {
	at := slices.IndexFunc(folders, func(mine Folder) bool { return mine.At == f.At })
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

// Sync writes the files of this host to their disk that a guest had open for writing: a
// checkpoint is useless without what they had at the cut.
func (c Cut) Sync(folders []Folder) error {
	for _, w := range c.Files {
		if slices.ContainsFunc(folders, func(f Folder) bool { return f.At == w.At && f.Remote }) {
			continue // its client has done it, or does
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

// Back makes the files as they were at the cut if they have clones, and else as long as they were: one that is shorter
// cannot be made so. It returns for people which clones are not there any more. After an error because of what one of
// the files is now, none is changed.
func (c Cut) Back(folders []Folder, user Owner) (gone []string, err error) {
	var all []returning
	defer func() {
		for _, r := range all {
			r.close()
		}
	}()
	for _, w := range c.Files { // all are examined before one is changed
		f, err := w.reachToCut(folders, user)
		if err != nil {
			return nil, fmt.Errorf("make the job's files as they were: %w", err)
		}
		all = append(all, returning{file: f, bytes: w.Bytes})
		r := &all[len(all)-1]
		if err := r.findClone(w, folders, user); errors.Is(err, fs.ErrNotExist) {
			gone = append(gone, fmt.Sprintf("%s%s stays as it is before its end: its copy of the checkpoint was removed from %s", w.At, w.Name, path.Join(w.At, ClonesFolder)))
		} else if err != nil {
			return nil, fmt.Errorf("make the job's files as they were: open the copy of %s%s: %w", w.At, w.Name, err)
		}
		st, err := status(f)
		if err != nil {
			return nil, fmt.Errorf("make the job's files as they were: %s%s: %w", w.At, w.Name, err)
		}
		switch {
		case st.Ino != w.Inode:
			return nil, fmt.Errorf("%s%s is another file than at the checkpoint: somebody replaced it", w.At, w.Name)
		case r.clone == nil && st.Size < w.Bytes-w.Grew: // another guest may have cut off what it wrote
			return nil, fmt.Errorf("%s%s has %d bytes and had %d at the checkpoint: what is missing cannot be had", w.At, w.Name, st.Size, w.Bytes-w.Grew)
		}
	}
	for _, r := range all {
		if err := r.put(); err != nil {
			return nil, err
		}
	}
	return gone, nil
}

// returning is a file that is made as it was.
type returning struct {
	file, clone *os.File // clone may be nil
	bytes       int64
}

func (r returning) close() {
	r.file.Close()
	if r.clone != nil {
		r.clone.Close()
	}
}

// findClone opens the file's clone, if it had one.
func (r *returning) findClone(w File, folders []Folder, user Owner) error {
	if w.Clone == "" {
		return nil
	}
	folders, done := handles(folders)
	defer done()
	return Clones{User: user}.asUser(func() (err error) {
		r.clone, err = w.openClone(folders)
		return err
	})
}

// put makes it as it was.
func (r returning) put() error {
	if r.clone != nil {
		if err := cloneBack(r.file, r.clone); err != nil {
			return fmt.Errorf("put a file back as it was at the checkpoint: %w", err)
		}
		return nil
	}
	if info, err := r.file.Stat(); err == nil && info.Size() <= r.bytes {
		return nil
	}
	if err := r.file.Truncate(r.bytes); err != nil {
		return fmt.Errorf("cut off what was written after the checkpoint: %w", err)
	}
	return nil
}
