package transfer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// message begins a message: its kind and strings.
func message(op byte, words ...string) []byte {
	m := []byte{op}
	for _, w := range words {
		m = binary.BigEndian.AppendUint16(m, uint16(len(w)))
		m = append(m, w...)
	}
	return m
}

// about holds a file's properties besides its content.
type about struct {
	mode, uid, gid uint32
	device, size   uint64
	times          [2]unix.Timespec // last access, last modification
	more           []attribute
}

// attribute is an extended attribute.
type attribute struct{ name, value string }

func appendStat(m []byte, s *unix.Stat_t) []byte {
	m = binary.BigEndian.AppendUint32(m, s.Mode)
	m = binary.BigEndian.AppendUint32(m, s.Uid)
	m = binary.BigEndian.AppendUint32(m, s.Gid)
	m = binary.BigEndian.AppendUint64(m, s.Rdev)
	m = binary.BigEndian.AppendUint64(m, uint64(s.Size))
	return appendTimes(m, s)
}

func appendTimes(m []byte, s *unix.Stat_t) []byte {
	for _, t := range []unix.Timespec{s.Atim, s.Mtim} {
		m = binary.BigEndian.AppendUint64(m, uint64(t.Sec))
		m = binary.BigEndian.AppendUint32(m, uint32(t.Nsec))
	}
	return m
}

// reader parses a message. After an error it returns only zero values.
type reader struct {
	rest []byte
	err  error
}

var errShort = errors.New("a message about files ends early")

func (r *reader) next(n int) []byte {
	if r.err != nil || n < 0 || n > len(r.rest) {
		r.err = errShort
		return make([]byte, min(max(n, 0), 8))
	}
	out := r.rest[:n]
	r.rest = r.rest[n:]
	return out
}

func (r *reader) uint16() uint16 { return binary.BigEndian.Uint16(r.next(2)) }
func (r *reader) uint32() uint32 { return binary.BigEndian.Uint32(r.next(4)) }
func (r *reader) uint64() uint64 { return binary.BigEndian.Uint64(r.next(8)) }

func (r *reader) word() string {
	n := int(r.uint16())
	if r.err != nil {
		return ""
	}
	out := r.next(n)
	if r.err != nil {
		return ""
	}
	return string(out)
}

// name reads a path, which must not lead out of the root.
func (r *reader) name() string {
	w := r.word()
	if r.err == nil && (w == "" || w == "." || path.IsAbs(w) || path.Clean(w) != w || w == ".." || strings.HasPrefix(w, "../") || strings.ContainsRune(w, 0)) {
		r.err = fmt.Errorf("%q is not the name of a guest's file", w)
	}
	return w
}

func (r *reader) times() (out [2]unix.Timespec) {
	for i := range out {
		out[i].Sec = int64(r.uint64())
		out[i].Nsec = int64(r.uint32())
	}
	return out
}

func (r *reader) about() (a about) {
	a.mode, a.uid, a.gid = r.uint32(), r.uint32(), r.uint32()
	a.device, a.size = r.uint64(), r.uint64()
	a.times = r.times()
	for r.err == nil && len(r.rest) > 0 {
		a.more = append(a.more, attribute{r.word(), r.word()})
	}
	return a
}

// attributes returns all extended attributes of a file, encoded.
func attributes(root int, name string) ([]byte, error) {
	at, done, err := handle(root, name)
	if err != nil {
		return nil, err
	}
	defer done()
	size, err := unix.Llistxattr(at, nil)
	if err != nil || size == 0 {
		return nil, none(err)
	}
	list := make([]byte, size)
	if size, err = unix.Llistxattr(at, list); err != nil {
		return nil, none(err)
	}
	names := strings.Split(strings.TrimRight(string(list[:size]), "\x00"), "\x00")
	slices.Sort(names)
	var out []byte
	for _, n := range names {
		size, err := unix.Lgetxattr(at, n, nil)
		if err != nil || size > math.MaxUint16 {
			continue // gone meanwhile, or too long to be meaningful
		}
		value := make([]byte, size)
		if size, err = unix.Lgetxattr(at, n, value); err != nil {
			continue
		}
		out = append(out, message(0, n, string(value[:size]))[1:]...)
	}
	return out, nil
}

func none(err error) error {
	if errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	return err
}

// open opens a file below root without following any link.
func open(root int, name string, flags uint64) (int, error) {
	return unix.Openat2(root, name, &unix.OpenHow{
		Flags:   flags | unix.O_CLOEXEC | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// handle returns a path to the file itself, whatever its type. It is valid until done is called.
func handle(root int, name string) (at string, done func(), err error) {
	dir, base := path.Split(name)
	fd, err := open(root, path.Clean("./"+dir), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", fd, base), func() { unix.Close(fd) }, nil
}
