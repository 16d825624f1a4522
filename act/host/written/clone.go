package written

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/internal/thread"
)

// ClonesFolder is in each of a job's directories that has clones: a folder for each checkpoint, and in it a clone of each
// file, which shares the file's blocks. It is the job's user's.
const ClonesFolder = ".pagurus-checkpoints"

// Clones are what is cloned at one checkpoint of a job, and for whom.
type Clones struct {
	Of    string // the checkpoint's folder in ClonesFolder
	User  Owner
	Until time.Time // no clone that is complete later counts
}

// The most of one guest.
const mostClones = 256

var (
	errCannot = errors.New("the file system cannot copy files without their blocks")
	errLate   = errors.New("there was no time for it in the stop")
)

// ReadyToClone makes Clone quick, while guests run: what an earlier attempt has left is removed, and what the files have in
// memory only is written to their disk, as cloning would.
func (c Cut) ReadyToClone(folders []Folder, to Clones) error {
	folders, done := handles(folders)
	defer done()
	return to.asUser(func() (err error) {
		for i, f := range folders {
			if f.ReadOnly || f.Served {
				continue
			}
			dir, cannot := openBeneath(f.From, ClonesFolder, unix.O_DIRECTORY)
			if errors.Is(cannot, fs.ErrNotExist) {
				continue
			}
			if cannot == nil {
				cannot = errors.Join(removeClones(dir, to.Of), dir.Close())
			}
			if cannot != nil {
				err = errors.Join(err, fmt.Errorf("remove %s: %w", path.Join(folders[i].At, ClonesFolder, to.Of), cannot))
			}
		}
		for _, w := range c.Files {
			if !w.Inside || slices.ContainsFunc(folders, func(f Folder) bool { return f.At == w.At && f.Served }) {
				continue
			}
			f, cannot := w.reach(folders, unix.O_RDONLY)
			if cannot != nil { // Clone says why
				continue
			}
			_ = errors.Join(unix.Fdatasync(int(f.Fd())), f.Close()) // it writes it then
			if time.Now().After(to.Until) {
				break
			}
		}
		return err
	})
}

// Clone clones the files that may be written before their ends, while all guests of the job are suspended. Where the file
// system cannot do that nothing changes.
func (c *Cut) Clone(folders []Folder, to Clones) {
	cannot := map[string]bool{} // directories of such file systems
	for _, f := range folders {
		cannot[f.At] = f.Served
	}
	folders, done := handles(folders)
	defer done()
	count := 0
	err := to.asUser(func() error {
		for i, f := range c.Files {
			c.Files[i].Clone = ""
			if !f.Inside || cannot[f.At] {
				continue
			}
			err := error(nil)
			if count++; count > mostClones {
				err = fmt.Errorf("a guest has no more than %d", mostClones)
			} else {
				err = c.Files[i].clone(folders, to)
			}
			switch {
			case errors.Is(err, errCannot):
				cannot[f.At] = true
			case err != nil:
				c.uncloned(f, err)
			case f.Odd != "":
				c.Amiss = slices.DeleteFunc(c.Amiss, func(said string) bool { return said == f.Odd })
			}
		}
		return nil
	})
	if err != nil {
		c.Amiss = append(c.Amiss, fmt.Sprintf("the job's files could not be copied as they are at the checkpoint: %v", err))
	}
}

// uncloned says that a file will not be as it was.
func (c *Cut) uncloned(f File, why error) {
	c.Amiss = slices.DeleteFunc(c.Amiss, func(said string) bool { return f.Odd != "" && said == f.Odd })
	c.Amiss = append(c.Amiss, fmt.Sprintf("%s%s: what it has before its end after the checkpoint stays, since no copy of it could be made: %v", f.At, f.Name, why))
}

// HandOver has the host that serves files get what of them only this host has in memory, while a guest is suspended. What it does not
// get in time is not cloned.
func (c *Cut) HandOver(folders []Folder, until time.Time) {
	for _, f := range c.Served(folders) {
		err := errLate
		if time.Now().Before(until) {
			err = f.handOver(folders)
		}
		if err != nil {
			c.withhold(f, err)
		}
	}
}

// handOver writes a file to its server, which need not write it to its disk.
func (f File) handOver(folders []Folder) error {
	file, err := f.reach(folders, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer file.Close()
	return unix.SyncFileRange(int(file.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WAIT_BEFORE|unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER)
}

// Withhold has no file cloned that another host serves.
func (c *Cut) Withhold(folders []Folder, why error) {
	for _, f := range c.Served(folders) {
		c.withhold(f, why)
	}
}

func (c *Cut) withhold(f File, why error) {
	c.Files[slices.IndexFunc(c.Files, f.same)].Inside = false
	c.uncloned(f, fmt.Errorf("what its guest has written did not come to the host that serves it: %w", why))
}

// Served are the files that may be written before their ends, in directories that another host serves.
func (c Cut) Served(folders []Folder) (all []File) {
	for _, f := range c.Files {
		if f.Inside && slices.ContainsFunc(folders, func(mine Folder) bool { return mine.At == f.At && mine.Served }) {
			all = append(all, f)
		}
	}
	return all
}

// TakeClones notes what another host has cloned, and says what it has said of the others.
func (c *Cut) TakeClones(by Cut) {
	for _, f := range by.Files {
		at := slices.IndexFunc(c.Files, f.same)
		if at < 0 || f.Clone == "" || f.Inode != c.Files[at].Inode {
			continue
		}
		is := &c.Files[at]
		is.Clone = f.Clone
		c.Amiss = slices.DeleteFunc(c.Amiss, func(said string) bool { return is.Odd != "" && said == is.Odd })
	}
	c.Amiss = append(c.Amiss, by.Amiss...)
}

// clone makes one clone. If another guest's host has made one of the same file, that counts: it was earlier.
func (f *File) clone(folders []Folder, to Clones) error {
	if time.Now().After(to.Until) {
		return errLate
	}
	from, err := f.reach(folders, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer from.Close()
	if st, err := status(from); err != nil || st.Ino != f.Inode {
		return errors.Join(errors.New("its name leads to another file here"), err)
	}
	at := slices.IndexFunc(folders, func(mine Folder) bool { return mine.At == f.At })
	folder, err := makeFolder(folders[at].From, to.Of)
	if err != nil {
		return fmt.Errorf("make the folder %s: %w", path.Join(f.At, ClonesFolder), err)
	}
	defer folder.Close()
	name := strconv.FormatUint(f.Inode, 10)
	begun := fmt.Sprintf(".%s-%d-%d", name, os.Getpid(), time.Now().UnixNano())
	copied, err := openIn(folder, begun, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY)
	if err != nil {
		return fmt.Errorf("make a file in %s: %w", path.Join(f.At, ClonesFolder), err)
	}
	defer copied.Close()
	defer func() { _ = unix.Unlinkat(int(folder.Fd()), begun, 0) }() // what stays goes with its folder
	switch err := unix.IoctlFileClone(int(copied.Fd()), int(from.Fd())); {
	case cannotClone(err):
		forgetFolder(folders[at].From, to.Of, begun)
		return errCannot
	case err != nil:
		return err
	}
	if time.Now().After(to.Until) { // its guest may run by now
		return errLate
	}
	if err := unix.Linkat(int(folder.Fd()), begun, int(folder.Fd()), name, 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	f.Clone = path.Join(to.Of, name)
	return nil
}

// makeFolder makes the folder of a checkpoint's clones below a job's directory, and opens it.
func makeFolder(dir, of string) (*os.File, error) {
	if !plain(of) {
		return nil, fmt.Errorf("%q is not the name of a folder", of)
	}
	for _, name := range []string{ClonesFolder, path.Join(ClonesFolder, of)} {
		above, err := openBeneath(dir, path.Dir(name), unix.O_DIRECTORY)
		if err != nil {
			return nil, err
		}
		err = unix.Mkdirat(int(above.Fd()), path.Base(name), 0o700)
		if above.Close(); err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, err
		}
	}
	return openBeneath(dir, path.Join(ClonesFolder, of), unix.O_DIRECTORY)
}

// forgetFolder removes what makeFolder has made, as far as it is empty but for one file.
func forgetFolder(dir, of, file string) {
	clones, err := openBeneath(dir, ClonesFolder, unix.O_DIRECTORY)
	if err != nil {
		return
	}
	defer clones.Close()
	if folder, err := openIn(clones, of, unix.O_DIRECTORY); err == nil {
		_ = unix.Unlinkat(int(folder.Fd()), file, 0)
		folder.Close()
	}
	_ = unix.Unlinkat(int(clones.Fd()), of, unix.AT_REMOVEDIR)
	if above, err := openBeneath(dir, ".", unix.O_DIRECTORY); err == nil {
		_ = unix.Unlinkat(int(above.Fd()), ClonesFolder, unix.AT_REMOVEDIR)
		above.Close()
	}
}

// plain reports whether a name is one of a file in a folder.
func plain(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.Contains(name, "/")
}

// openBeneath opens what is below a directory of the job's, and is not reached by a link.
func openBeneath(dir, name string, flags int) (*os.File, error) {
	at, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer at.Close()
	return openIn(at, name, flags)
}

func openIn(dir *os.File, name string, flags int) (*os.File, error) {
	how := unix.OpenHow{Flags: uint64(flags) | unix.O_CLOEXEC | unix.O_NONBLOCK, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV}
	if flags&unix.O_CREAT != 0 {
		how.Mode = 0o600
	}
	fd, err := unix.Openat2(int(dir.Fd()), name, &how)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

func status(f *os.File) (st unix.Stat_t, err error) {
	err = unix.Fstat(int(f.Fd()), &st)
	return st, err
}

// SyncClones writes clones to their disk.
func (c Cut) SyncClones(folders []Folder, user Owner) error {
	folders, done := handles(folders)
	defer done()
	return Clones{User: user}.asUser(func() error {
		synced := map[string]bool{}
		for _, f := range c.Files {
			if f.Clone == "" {
				continue
			}
			clone, err := f.openClone(folders)
			if errors.Is(err, fs.ErrNotExist) { // its user has removed it, and Back says so
				continue
			}
			if err == nil {
				err = errors.Join(clone.Sync(), clone.Close())
			}
			if above := path.Join(f.At, path.Dir(f.Clone)); err == nil && !synced[above] { // its name, too
				synced[above] = true
				err = syncFolders(folders, f)
			}
			if err != nil {
				return fmt.Errorf("write the copy of %s%s: %w", f.At, f.Name, err)
			}
		}
		return nil
	})
}

// syncFolders writes the folders above a clone.
func syncFolders(folders []Folder, f File) error {
	at := slices.IndexFunc(folders, func(mine Folder) bool { return mine.At == f.At })
	for name := path.Join(ClonesFolder, path.Dir(f.Clone)); ; name = path.Dir(name) {
		dir, err := openBeneath(folders[at].From, name, unix.O_DIRECTORY)
		if err == nil {
			err = errors.Join(dir.Sync(), dir.Close())
		}
		if name == "." && errors.Is(err, unix.EACCES) { // its user may not list it
			return nil
		}
		if err != nil || name == "." {
			return err
		}
	}
}

// openClone opens a file's clone for reading.
func (f File) openClone(folders []Folder) (*os.File, error) {
	of, name, two := strings.Cut(f.Clone, "/")
	if !two || !plain(of) || !plain(name) {
		return nil, fmt.Errorf("%q is not the name of a copy", f.Clone)
	}
	clone := f
	clone.Name = path.Join("/", ClonesFolder, f.Clone)
	return clone.reach(folders, unix.O_RDONLY)
}

// cloneBack gives a file, which is open for writing, the content of its clone. A crash leaves a file that has the same
// length, or is still longer, and the clone.
func cloneBack(file, clone *os.File) error {
	st, err := status(clone)
	if err != nil {
		return err
	}
	was, err := status(file)
	if err == nil && was.Size > st.Size {
		err = file.Truncate(st.Size)
	}
	if err == nil && st.Size > 0 {
		err = unix.IoctlFileClone(int(file.Fd()), int(clone.Fd()))
	}
	if cannotClone(err) { // it is reached by another way than where it was cloned
		if _, err = file.Seek(0, io.SeekStart); err == nil {
			_, err = io.Copy(file, clone)
		}
		err = errors.Join(err, file.Sync())
	}
	return err
}

// cannotClone reports whether it is the file system that cannot.
func cannotClone(err error) bool {
	return slices.ContainsFunc([]error{unix.EOPNOTSUPP, unix.ENOTTY, unix.EXDEV, unix.ENOSYS}, func(is error) bool { return errors.Is(err, is) })
}

// KeepClones removes all clones of a job's checkpoints but those for which keep is true, and the folder if nothing is in it.
func KeepClones(dir string, user Owner, keep func(of string) bool) error {
	err := Clones{User: user}.asUser(func() error {
		clones, err := openBeneath(dir, ClonesFolder, unix.O_DIRECTORY)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		defer clones.Close()
		names, err := clones.Readdirnames(-1)
		for _, name := range names {
			if !keep(name) {
				err = errors.Join(err, removeClones(clones, name))
			}
		}
		if above, cannot := openBeneath(dir, ".", unix.O_DIRECTORY); cannot == nil {
			_ = unix.Unlinkat(int(above.Fd()), ClonesFolder, unix.AT_REMOVEDIR) // if it is empty
			above.Close()
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("remove what is not needed in %s: %w", path.Join(dir, ClonesFolder), err)
	}
	return nil
}

// removeClones removes the clones of one checkpoint. There need not be any.
func removeClones(clones *os.File, of string) error {
	folder, err := openIn(clones, of, unix.O_DIRECTORY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer folder.Close()
	names, err := folder.Readdirnames(-1)
	for _, name := range names {
		err = errors.Join(err, unix.Unlinkat(int(folder.Fd()), name, 0))
	}
	if err == nil {
		err = unix.Unlinkat(int(clones.Fd()), of, unix.AT_REMOVEDIR)
	}
	return err
}

// CanClone reports whether the file system of a directory can clone files, if its user may write there.
func CanClone(dir string) bool {
	var fds [2]int
	for i := range fds {
		fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return false
		}
		defer unix.Close(fd)
		fds[i] = fd
	}
	_, err := unix.Write(fds[0], []byte("x"))
	return err == nil && unix.IoctlFileClone(fds[1], fds[0]) == nil
}

// asUser calls f as the job's user, who has no more than a user's room on disks.
func (c Clones) asUser(f func() error) error {
	return thread.As(c.User.UID, c.User.GID, c.User.Groups, func() error {
		if c.User.UID != 0 {
			if err := thread.Powerless(); err != nil {
				return err
			}
		}
		return f()
	})
}
