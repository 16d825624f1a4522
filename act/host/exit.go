package host

import (
	"fmt"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Exit is how a process ended. The zero Exit is unknown.
type Exit struct {
	Known  bool
	Status int            // if no signal ended it
	Signal syscall.Signal // 0: none
}

// String continues the sentence "the process …".
func (e Exit) String() string {
	switch {
	case !e.Known:
		return "ended, and its exit status is not known"
	case e.Signal != 0:
		return "was killed by " + unix.SignalName(e.Signal)
	}
	return fmt.Sprintf("ended with exit status %d", e.Status)
}

// exitOf decodes a status as wait(2) has it.
func exitOf(status int32) Exit {
	w := syscall.WaitStatus(status)
	if w.Signaled() {
		return Exit{Known: true, Signal: w.Signal()}
	}
	return Exit{Known: true, Status: w.ExitStatus()}
}

// waitedChild is the part of a siginfo that waitid(2) fills in, on 64-bit machines.
type waitedChild struct {
	_           int32
	_           int32
	code        int32
	_, pid, uid int32
	status      int32
}

// What waitedChild.code says of a child that has ended.
const cldExited = 1

// reap reaps a child and says how it ended. A process that an earlier agent started is no
// child of this one, and a second watcher comes too late: then the kernel is asked, which
// remembers it from Linux 6.15 on.
func reap(fd int) Exit {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PIDFD, fd, &info, unix.WEXITED|unix.WNOHANG, nil)
	if got := (*waitedChild)(unsafe.Pointer(&info)); err == nil && got.pid != 0 {
		if got.code == cldExited {
			return Exit{Known: true, Status: int(got.status)}
		}
		return Exit{Known: true, Signal: syscall.Signal(got.status)}
	}
	for try := 0; ; try++ { // its parent may not have reaped it yet
		if e := remembered(fd); e.Known || try == exitTries {
			return e
		}
		time.Sleep(exitPause)
	}
}

const (
	exitTries = 5
	exitPause = time.Millisecond
)

// pidfdAnswer is what PIDFD_GET_INFO gives (linux/pidfd.h).
type pidfdAnswer struct {
	mask   uint64
	_      uint64
	_      [11]uint32
	status int32
}

const (
	pidfdAsk  = 0xc040ff0b // _IOWR(0xff, 11, struct pidfd_info)
	pidfdExit = 1 << 3
)

// remembered asks the kernel how a process ended that somebody has reaped.
func remembered(fd int) Exit {
	info := pidfdAnswer{mask: pidfdExit}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), pidfdAsk, uintptr(unsafe.Pointer(&info))); errno != 0 || info.mask&pidfdExit == 0 {
		return Exit{}
	}
	return exitOf(info.status)
}
