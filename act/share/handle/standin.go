package handle

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel gives no process a descriptor of another's that only names a file (O_PATH), and a symbolic link has no
// other. In its place the server gets a stand-in, an empty file in memory, and its calls about that come here.

const (
	// mostStandIns is how many are remembered. A server closes each within the request that needs it.
	mostStandIns = 512
	// standInLimit is how long one is: what is remembered keeps its room on the disk after it was removed.
	standInLimit = time.Second
)

// standIns are the files that stand-ins stand for.
type standIns struct {
	mu      sync.Mutex
	device  uint64         // of all stand-ins; files of others have the same inodes
	files   map[uint64]int // descriptors here, by the stand-ins' inodes
	order   []uint64       // oldest first
	numbers map[int]bool   // the server's descriptors that were stand-ins once
}

// forget closes the oldest ones, until this one is the oldest; 0: until one fewer is remembered.
func (s *standIns) forget(until uint64) {
	for len(s.order) > 0 {
		inode := s.order[0]
		s.order = s.order[1:]
		_ = unix.Close(s.files[inode]) // what is closed without an error was only a name
		delete(s.files, inode)
		if until == 0 || inode == until {
			return
		}
	}
}

// expire forgets one whose time is over, and those before it.
func (s *standIns) expire(inode uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.files[inode]; known {
		s.forget(inode)
	}
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
		s.forget(0)
	}
	s.files[st.Ino], s.numbers[number], s.device = kept, true, st.Dev
	s.order = append(s.order, st.Ino)
	time.AfterFunc(standInLimit, func() { s.expire(st.Ino) })
	return number, nil
}

// maybe reports whether a descriptor of the server's may be a stand-in.
func (s *standIns) maybe(number int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.numbers[number]
}

// errForgotten makes a server ask its client to try again.
var errForgotten = fmt.Errorf("the stand-in is too old: %w", unix.EAGAIN)

// file is a descriptor of the file that one stands for, or errOwn: it is no stand-in.
func (s *standIns) file(standIn int) (int, error) {
	var st unix.Stat_t
	if err := unix.Fstat(standIn, &st); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.Dev != s.device || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 0 {
		return 0, errOwn
	}
	kept, known := s.files[st.Ino]
	if !known {
		return 0, errForgotten
	}
	return unix.FcntlInt(uintptr(kept), unix.F_DUPFD_CLOEXEC, 0)
}

// meant is what the server means by one of its descriptors: the file itself, or what a stand-in stands for.
func (a *answerer) meant(number uint64) (fd int, standIn bool, err error) {
	if fd, err = a.file(number); err != nil || !a.stands.maybe(int(int32(number))) {
		return fd, false, err
	}
	real, err := a.stands.file(fd)
	if errors.Is(err, errOwn) {
		return fd, false, nil
	}
	closeFile(fd)
	return real, true, err
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
