package handle

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel's structures of seccomp_unotify(2).
type (
	call struct {
		id     uint64
		thread uint32
		flags  uint32
		nr     int32
		arch   uint32
		at     uint64
		args   [6]uint64
	}
	result struct {
		id    uint64
		value int64
		error int32
		flags uint32
	}
	given struct {
		id      uint64
		flags   uint32
		file    uint32
		asFile  uint32
		ofFlags uint32
	}
)

const (
	// handleHead is the length of struct file_handle before its bytes: their number and their kind.
	handleHead = 8
	// mostHandle is the longest handle of the kernel.
	mostHandle = 128
	// reopened are the flags of an open that make sense for a file that is there.
	reopened = unix.O_ACCMODE | unix.O_APPEND | unix.O_DIRECT | unix.O_DIRECTORY | unix.O_DSYNC | unix.O_LARGEFILE | unix.O_NOATIME | unix.O_NONBLOCK | unix.O_SYNC | unix.O_TRUNC
)

// answerer makes the server's calls for handles. Each thread that answers has its own copy.
type answerer struct {
	key      []byte
	unsigned bool // handles without a signature count, too: they are from before there were any
	own      held
	server   int // its PID
	pidfd    int
	listener int
	places   places
	stands   *standIns
}

func (a *answerer) ioctl(request uint, arg unsafe.Pointer) (int, error) {
	for {
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(a.listener), uintptr(request), uintptr(arg))
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return 0, errno
		}
		return int(n), nil
	}
}

// answerAll answers calls until there can be no more.
func (a *answerer) answerAll() error {
	runtime.LockOSThread()
	if err := a.own.use(); err != nil {
		return err
	}
	for {
		var c call
		if _, err := a.ioctl(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&c)); errors.Is(err, unix.ENOENT) {
			continue // who called has ended meanwhile
		} else if err != nil {
			return fmt.Errorf("wait for the server's calls: %w", err)
		}
		r := result{id: c.id}
		value, err := a.answer(c)
		if errors.Is(err, errOwn) {
			r.flags, err = unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE, nil
		}
		if errno := unix.Errno(0); errors.As(err, &errno) {
			r.error = -int32(errno)
		} else if err != nil {
			r.error = -int32(unix.ESTALE)
		}
		r.value = int64(value)
		if r.error != 0 {
			r.value = 0
		}
		if _, err := a.ioctl(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r)); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("answer the server's call: %w", err)
		}
	}
}

func (a *answerer) answer(c call) (int, error) {
	if a.own.roots {
		by, err := callerOf(c.thread)
		if err != nil {
			return 0, err
		}
		defer a.own.back()
		if err := a.own.as(by); err != nil {
			return 0, err
		}
	}
	switch c.nr {
	case unix.SYS_NAME_TO_HANDLE_AT:
		return 0, a.name(c)
	case unix.SYS_OPEN_BY_HANDLE_AT:
		return a.open(c)
	case unix.SYS_EXECVE:
		if a.became() {
			return 0, unix.EPERM
		}
		return 0, errOwn
	case unix.SYS_LINKAT:
		return 0, a.link(c)
	case unix.SYS_NEWFSTATAT, unix.SYS_READLINKAT, unix.SYS_FCHOWNAT:
		return a.about(c)
	}
	return 0, unix.ENOSYS
}

// became reports whether the process has become the server: before, it runs the guard's own program. The kernel may bring its call
// more than once, because signals interrupt it.
func (a *answerer) became() bool {
	own, err := os.Stat("/proc/self/exe")
	if err != nil {
		return true
	}
	its, err := os.Stat(fmt.Sprintf("/proc/%d/exe", a.server))
	return err != nil || !os.SameFile(own, its)
}

// name gives out a file's handle, with its signature.
func (a *answerer) name(c call) error {
	path, err := a.text(c.args[1])
	if err != nil {
		return err
	}
	dir, err := a.file(c.args[0])
	if err != nil {
		return err
	}
	defer closeFile(dir)
	fd := dir
	if path != "" || c.args[4]&unix.AT_EMPTY_PATH == 0 {
		how := unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW
		if c.args[4]&unix.AT_SYMLINK_FOLLOW != 0 {
			how &^= unix.O_NOFOLLOW
		}
		if fd, err = unix.Openat(dir, path, how, 0); err != nil {
			return err
		}
		defer unix.Close(fd)
	}
	// Handle and place are of one open file: the name may come to mean another.
	h, mount, err := unix.NameToHandleAt(fd, "", unix.AT_EMPTY_PATH)
	if err != nil {
		return err
	}
	at, err := a.places.of(fd)
	if err != nil {
		return err
	}
	signed := sign(a.key, at.name, h)
	head, err := a.bytes(c.args[2], handleHead)
	if err != nil {
		return err
	}
	room := binary.NativeEndian.Uint32(head)
	binary.NativeEndian.PutUint32(head, uint32(len(signed)))
	binary.NativeEndian.PutUint32(head[4:], uint32(h.Type()))
	if int(room) < len(signed) {
		return errors.Join(a.put(c.args[2], head[:4]), unix.EOVERFLOW)
	}
	return errors.Join(a.put(c.args[2], append(head, signed...)), a.put(c.args[3], binary.NativeEndian.AppendUint32(nil, uint32(mount))))
}

// open opens the file of a handle that was given out, and gives it to the server.
func (a *answerer) open(c call) (int, error) {
	head, err := a.bytes(c.args[1], handleHead)
	if err != nil {
		return 0, err
	}
	length := binary.NativeEndian.Uint32(head)
	if length == 0 || length > mostHandle+signatureBytes {
		return 0, unix.EINVAL
	}
	bytes, err := a.bytes(c.args[1]+handleHead, int(length))
	if err != nil {
		return 0, err
	}
	at, h, err := a.foundBy(c, int32(binary.NativeEndian.Uint32(head[4:])), bytes)
	if err != nil {
		return 0, err
	}
	fd, err := a.openAs(at.mount, h, int(c.args[2]))
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return a.give(c, fd)
}

// foundBy is what a handle names. One without a signature is of the place that the server says.
func (a *answerer) foundBy(c call, kind int32, bytes []byte) (place, unix.FileHandle, error) {
	at, h, err := a.places.signer(a.key, kind, bytes)
	if err == nil {
		return at, h, nil
	}
	if !a.unsigned || len(bytes) > mostHandle {
		return place{}, h, unix.ESTALE
	}
	dir, err := a.file(c.args[0])
	if err != nil {
		return place{}, h, err
	}
	defer closeFile(dir)
	at, err = a.places.of(dir)
	return at, unix.NewFileHandle(kind, bytes), err
}

// give gives the server a descriptor, and returns its number there.
func (a *answerer) give(c call, fd int) (int, error) {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return 0, err
	}
	if flags&unix.O_PATH != 0 { // the kernel gives no such descriptors
		return a.stands.make(fd, func(standIn int) (int, error) { return a.inject(c, standIn) })
	}
	return a.inject(c, fd)
}

func (a *answerer) inject(c call, fd int) (int, error) {
	give := given{id: c.id, file: uint32(fd), ofFlags: uint32(c.args[2]) & unix.O_CLOEXEC}
	return a.ioctl(unix.SECCOMP_IOCTL_NOTIF_ADDFD, unsafe.Pointer(&give))
}

// openAs opens the file of a handle with the rights of the job's user: only to find it takes more. The user's own
// files open whatever their modes are, as those that a program has open do.
func (a *answerer) openAs(dir int, h unix.FileHandle, flags int) (fd int, err error) {
	found := -1
	err = a.own.with(func() (err error) {
		found, err = unix.OpenByHandleAt(dir, h, unix.O_PATH|unix.O_CLOEXEC|unix.O_NOFOLLOW)
		return err
	}, unix.CAP_DAC_READ_SEARCH)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(found, &st); err != nil {
		unix.Close(found)
		return -1, err
	}
	kind := st.Mode & unix.S_IFMT
	if flags&unix.O_PATH != 0 && kind != unix.S_IFDIR {
		return found, nil
	}
	defer unix.Close(found)
	if kind != unix.S_IFREG && kind != unix.S_IFDIR {
		return -1, unix.ELOOP // what a link names, a device or a pipe is not opened for anybody
	}
	if flags&unix.O_PATH != 0 { // to look up names in it, for which it need not be readable
		return a.lookIn(found, st)
	}
	again := func() (err error) {
		fd, err = unix.Open(fmt.Sprintf("/proc/thread-self/fd/%d", found), flags&reopened|unix.O_CLOEXEC, 0)
		return err
	}
	if err = again(); errors.Is(err, unix.EACCES) && a.owns(st) {
		err = a.own.with(again, unix.CAP_DAC_OVERRIDE)
	}
	return fd, err
}

// owns reports whether a file is the job's user's. Root needs nothing of its own: it has the rights of the server's thread.
func (a *answerer) owns(st unix.Stat_t) bool { return !a.own.roots && st.Uid == uint32(os.Getuid()) }

// lookIn opens a directory in which names are looked up, which the user must be able to do. The descriptor also lists
// it, so the user must be able to do that, too; in a directory of its own, the user could.
func (a *answerer) lookIn(found int, st unix.Stat_t) (fd int, err error) {
	again := func() (err error) {
		fd, err = unix.Open(fmt.Sprintf("/proc/thread-self/fd/%d", found), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		return err
	}
	if a.owns(st) {
		err = a.own.with(again, unix.CAP_DAC_READ_SEARCH)
		return fd, err
	}
	if err := unix.Faccessat(found, "", unix.X_OK, unix.AT_EMPTY_PATH|unix.AT_EACCESS); err != nil {
		return -1, err
	}
	err = again()
	return fd, err
}

// file is the server's descriptor, here.
func (a *answerer) file(fd uint64) (int, error) {
	if int32(fd) == unix.AT_FDCWD {
		return unix.AT_FDCWD, nil
	}
	return unix.PidfdGetfd(a.pidfd, int(int32(fd)), 0)
}

func closeFile(fd int) {
	if fd >= 0 {
		unix.Close(fd)
	}
}

// text reads a path of the server's.
func (a *answerer) text(at uint64) (string, error) {
	for length := 256; ; length *= 2 {
		b, err := a.bytes(at, length)
		if b == nil && err != nil {
			return "", err
		}
		if i := slices.Index(b, 0); i >= 0 {
			return string(b[:i]), nil
		}
		if length > unix.PathMax {
			return "", unix.ENAMETOOLONG
		}
		if err != nil {
			return "", err
		}
	}
}

// bytes reads the server's memory. With an error there may be less.
func (a *answerer) bytes(at uint64, length int) ([]byte, error) {
	b := make([]byte, length)
	got := 0
	for got < length { // page by page: the next one may not be there
		part := min(length-got, os.Getpagesize()-int((at+uint64(got))%uint64(os.Getpagesize())))
		local := []unix.Iovec{{Base: &b[got], Len: uint64(part)}}
		n, err := unix.ProcessVMReadv(a.server, local, []unix.RemoteIovec{{Base: uintptr(at) + uintptr(got), Len: part}}, 0)
		if err != nil || n != part {
			return b[:got], unix.EFAULT
		}
		got += part
	}
	return b, nil
}

// put writes into the server's memory.
func (a *answerer) put(at uint64, b []byte) error {
	local := []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}}
	n, err := unix.ProcessVMWritev(a.server, local, []unix.RemoteIovec{{Base: uintptr(at), Len: len(b)}}, 0)
	if err != nil || n != len(b) {
		return unix.EFAULT
	}
	return nil
}
