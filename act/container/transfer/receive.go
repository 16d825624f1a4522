package transfer

import (
	"errors"
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// Target holds the folders at the receiving side.
type Target struct {
	root *os.File
	file *os.File // the file to which received blocks belong; nil: none
	in   *os.File // its folder
	base string   // its name in that folder
	a    about    // its final properties
}

// NewTarget receives files into a folder, which must be empty before the first message.
// The caller must call Close.
func NewTarget(root string) (*Target, error) {
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", root, err)
	}
	return &Target{root: os.NewFile(uintptr(fd), root)}, nil
}

// Close closes the folder.
func (t *Target) Close() error {
	t.drop()
	return t.root.Close()
}

// drop closes the file to which received blocks belong.
func (t *Target) drop() {
	if t.file != nil {
		t.file.Close()
		t.in.Close()
		t.file, t.in = nil, nil
	}
}

// Apply carries out one message. After an error the received files cannot be used.
func (t *Target) Apply(m []byte) error {
	if len(m) == 0 {
		return errShort
	}
	r := &reader{rest: m[1:]}
	switch op := m[0]; op {
	case opFile, opFolder, opLink, opNode, opSame, opRemove, opStamp:
		name := r.name()
		if r.err != nil {
			return r.err
		}
		if err := t.place(op, name, r); err != nil {
			return fmt.Errorf("make %s of the guest: %w", name, err)
		}
		return nil
	case opBlock, opHole, opClose:
		r.word() // their name is empty
		return t.content(op, r)
	}
	return fmt.Errorf("a message about files is of the unknown kind %q", m[0])
}

// place creates, changes or removes a path.
func (t *Target) place(op byte, name string, r *reader) error {
	dir, base := path.Split(name)
	fd, err := open(int(t.root.Fd()), path.Clean("./"+dir), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	switch op {
	case opRemove:
		return remove(fd, base)
	case opSame:
		first := r.name()
		if r.err != nil {
			return r.err
		}
		from, done, err := handle(int(t.root.Fd()), first)
		if err != nil {
			return err
		}
		defer done()
		return unix.Linkat(unix.AT_FDCWD, from, fd, base, 0)
	case opStamp:
		times := r.times()
		if r.err != nil {
			return r.err
		}
		return unix.UtimesNanoAt(fd, base, times[:], unix.AT_SYMLINK_NOFOLLOW)
	}
	to := ""
	if op == opLink {
		to = r.word()
	}
	a := r.about()
	if r.err != nil {
		return r.err
	}
	switch op {
	case opFolder:
		if err := unix.Mkdirat(fd, base, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	case opLink:
		if err := unix.Symlinkat(to, fd, base); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	case opNode:
		if kind := a.mode & unix.S_IFMT; kind != unix.S_IFIFO && (kind != unix.S_IFCHR || a.device != 0) {
			return errors.New("a guest cannot have made such a device")
		}
		if err := unix.Mknodat(fd, base, a.mode&^0o7777, int(a.device)); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	case opFile:
		return t.openFile(fd, base, a)
	}
	return dress(fd, base, a, op == opLink)
}

// openFile opens the file to which the next blocks belong. Its mode is set when the file is
// complete, because a write clears some mode bits.
func (t *Target) openFile(fd int, base string, a about) error {
	if t.file != nil {
		return errors.New("a file begins before the last one has ended")
	}
	f, err := unix.Openat(fd, base, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	again, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		unix.Close(f)
		return err
	}
	t.file, t.in, t.base, t.a = os.NewFile(uintptr(f), base), os.NewFile(uintptr(again), base), base, a
	var st unix.Stat_t
	if err := unix.Fstat(f, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return errors.Join(err, errors.New("it is not a file"))
	}
	return t.file.Truncate(int64(a.size))
}

// dress sets a path's owner, attributes and mode. It sets the times last, because all
// other changes modify them.
func dress(fd int, base string, a about, link bool) error {
	if err := unix.Fchownat(fd, base, int(a.uid), int(a.gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	at := fmt.Sprintf("/proc/self/fd/%d/%s", fd, base)
	if err := dressMore(at, a.more); err != nil {
		return err
	}
	if !link {
		if err := unix.Fchmodat(fd, base, a.mode&0o7777, 0); err != nil {
			return err
		}
	}
	return unix.UtimesNanoAt(fd, base, a.times[:], unix.AT_SYMLINK_NOFOLLOW)
}

// dressMore makes a path's extended attributes exactly those wanted.
func dressMore(at string, want []attribute) error {
	keep := map[string]bool{}
	for _, x := range want {
		keep[x.name] = true
		if err := unix.Lsetxattr(at, x.name, []byte(x.value), 0); err != nil {
			return fmt.Errorf("extended attribute %s: %w", x.name, err)
		}
	}
	size, err := unix.Llistxattr(at, nil)
	if err != nil || size == 0 {
		return none(err)
	}
	list := make([]byte, size)
	if size, err = unix.Llistxattr(at, list); err != nil {
		return none(err)
	}
	for begin := 0; begin < size; {
		end := begin
		for end < size && list[end] != 0 {
			end++
		}
		if name := string(list[begin:end]); name != "" && !keep[name] {
			if err := unix.Lremovexattr(at, name); err != nil {
				return fmt.Errorf("extended attribute %s: %w", name, err)
			}
		}
		begin = end + 1
	}
	return nil
}

// remove removes a path and everything below it.
func remove(folder int, base string) error {
	err := unix.Unlinkat(folder, base, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	fd, err := unix.Openat(folder, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), base)
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := remove(fd, n); err != nil {
			return err
		}
	}
	return unix.Unlinkat(folder, base, unix.AT_REMOVEDIR)
}

// mostFile is the highest offset of a block.
const mostFile = 1 << 50

// content writes to the current file, or ends it.
func (t *Target) content(op byte, r *reader) error {
	if t.file == nil {
		return errors.New("a block belongs to no file")
	}
	if op == opClose {
		t.a.times = r.times()
		err := r.err
		if err == nil {
			err = dress(int(t.in.Fd()), t.base, t.a, false)
		}
		t.drop()
		return err
	}
	at := r.uint64()
	if op == opHole {
		n := r.uint64()
		if r.err != nil || at > mostFile || n > mostFile || n == 0 {
			return errors.Join(r.err, errors.New("a hole lies nowhere"))
		}
		return unix.Fallocate(int(t.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(at), int64(n))
	}
	if r.err != nil || at > mostFile {
		return errors.Join(r.err, errors.New("a block lies nowhere"))
	}
	_, err := t.file.WriteAt(r.rest, int64(at))
	return err
}
