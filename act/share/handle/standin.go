package handle

import (
	"errors"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel gives no process a descriptor of another's that only names a file (O_PATH), and a symbolic link has no
// other. In its place the server gets a stand-in, an empty file in memory, and its calls about that come here.

// mostStandIns is how many are remembered. A server closes each within the request that needs it.
const mostStandIns = 512

// standIns are the files that stand-ins stand for.
type standIns struct {
	mu      sync.Mutex
	files   map[uint64]int // descriptors here, by the stand-ins' inodes
	order   []uint64       // oldest first
	numbers map[int]bool   // the server's descriptors that were stand-ins once
}

// errOwn says that the server may make the call itself, with what it has.
var errOwn = errors.New("the call is the server's own")

// make makes a stand-in for a file, and has it given to the server.
func (s *standIns) make(fd int, give func(standIn int) (int, error)) (int, error) {
	standIn, err := unix.MemfdCreate("pagurus-file", unix.MFD_CLOEXEC)
	if err != nil {
		return 0, err
	}
	defer unix.Close(standIn)
	var st unix.Stat_t
	if err := unix.Fstat(standIn, &st); err != nil {
		return 0, err
	}
	kept, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	number, err := give(standIn)
	if err != nil {
		return 0, errors.Join(err, unix.Close(kept))
	}
	if s.files == nil {
		s.files, s.numbers = map[uint64]int{}, map[int]bool{}
	}
	if len(s.order) >= mostStandIns {
		_ = unix.Close(s.files[s.order[0]]) // what is closed without an error was only a name
		delete(s.files, s.order[0])
		s.order = s.order[1:]
	}
	s.files[st.Ino], s.numbers[number] = kept, true
	s.order = append(s.order, st.Ino)
	return number, nil
}

// maybe reports whether a descriptor of the server's may be a stand-in.
func (s *standIns) maybe(number int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.numbers[number]
}

// file is a descriptor of the file that one stands for; false: it is no stand-in.
func (s *standIns) file(standIn int) (int, bool) {
	var st unix.Stat_t
	if unix.Fstat(standIn, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 0 {
		return 0, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	kept, known := s.files[st.Ino]
	if !known {
		return 0, false
	}
	fd, err := unix.FcntlInt(uintptr(kept), unix.F_DUPFD_CLOEXEC, 0)
	return fd, err == nil
}

// meant is what the server means by one of its descriptors: the file itself, or what a stand-in stands for.
func (a *answerer) meant(number uint64) (fd int, standIn bool, err error) {
	if fd, err = a.file(number); err != nil || !a.stands.maybe(int(int32(number))) {
		return fd, false, err
	}
	if real, is := a.stands.file(fd); is {
		closeFile(fd)
		return real, true, nil
	}
	return fd, false, nil
}

// about makes a call about a stand-in. About all else the server makes its own.
func (a *answerer) about(c call) (int, error) {
	if !a.stands.maybe(int(int32(c.args[0]))) {
		return 0, errOwn
	}
	if path, err := a.text(c.args[1]); err != nil || path != "" {
		return 0, errOwn
	}
	fd, is, err := a.meant(c.args[0])
	if err != nil {
		return 0, err
	}
	defer closeFile(fd)
	if !is {
		return 0, errOwn
	}
	switch c.nr {
	case unix.SYS_NEWFSTATAT:
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return 0, err
		}
		return 0, a.put(c.args[2], unsafe.Slice((*byte)(unsafe.Pointer(&st)), unsafe.Sizeof(st)))
	case unix.SYS_FCHOWNAT:
		return 0, unix.Fchownat(fd, "", int(int32(c.args[2])), int(int32(c.args[3])), unix.AT_EMPTY_PATH)
	}
	text := make([]byte, min(int(c.args[3]), unix.PathMax))
	if len(text) == 0 {
		return 0, unix.EINVAL
	}
	n, err := unix.Readlinkat(fd, "", text)
	if err != nil {
		return 0, err
	}
	return n, a.put(c.args[2], text[:n])
}

// link gives a file that the server has open another name, which takes a right that only the guard has.
func (a *answerer) link(c call) error {
	name, err := a.text(c.args[3])
	if err != nil {
		return err
	}
	if strings.Contains(name, "/") {
		return unix.EACCES // a server names files in directories that it has open
	}
	from, _, err := a.meant(c.args[0])
	if err != nil {
		return err
	}
	defer closeFile(from)
	to, err := a.file(c.args[2])
	if err != nil {
		return err
	}
	defer closeFile(to)
	return a.own.with(func() error { return unix.Linkat(from, "", to, name, unix.AT_EMPTY_PATH) }, unix.CAP_DAC_READ_SEARCH)
}
