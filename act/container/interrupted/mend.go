package interrupted

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"time"

	x86 "github.com/checkpoint-restore/go-criu/v8/crit/images/core-x86"
	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// headBytes is the length of an image's head: two magic numbers and the message's length.
const headBytes = 12

// Mend changes the images of a dump according to the waits that NoteWaits and Again recorded.
// The processes must still be suspended.
func (s *Seen) Mend(images string) error {
	for _, t := range s.threads {
		if t.signals {
			continue
		}
		if err := t.mend(t.core(images)); err != nil {
			return fmt.Errorf("let thread %d go on waiting: %w", t.inside, err)
		}
	}
	return nil
}

func (t *thread) mend(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if len(text) < headBytes {
		return fmt.Errorf("%s is too short", path)
	}
	var core criucore.CoreEntry
	if err := proto.Unmarshal(text[headBytes:], &core); err != nil {
		return err
	}
	r := core.GetThreadInfo().GetGpregs()
	if r == nil || r.GetMode() != x86.UserX86RegsMode_NATIVE || int64(r.GetAx()) != -int64(unix.EINTR) || int64(r.GetOrigAx()) < 0 || r.GetIp() != t.call.at {
		return nil
	}
	code := make([]byte, 2)
	if err := memory(t.pid, r.GetIp()-2, code); err != nil || !bytes.Equal(code, systemCall) {
		return nil
	}
	if t.call.number == unix.SYS_RESTART_SYSCALL {
		return nil
	}
	a := t.again()
	*r.Ip -= 2
	*r.Ax, *r.OrigAx = a.number, math.MaxUint64
	*r.Di, *r.Si, *r.Dx, *r.R10 = a.arguments[0], a.arguments[1], a.arguments[2], a.arguments[3]
	message, err := proto.Marshal(&core)
	if err != nil {
		return err
	}
	text = binary.LittleEndian.AppendUint32(text[:headBytes-4:headBytes-4], uint32(len(message)))
	return os.WriteFile(path, append(text, message...), 0o600)
}

// again returns the call by which a thread continues to wait.
func (t *thread) again() call {
	c := t.call
	switch c.number {
	case unix.SYS_NANOSLEEP:
		return t.sleeping(c.arguments[0], c.arguments[1])
	case unix.SYS_CLOCK_NANOSLEEP:
		clock := c.arguments[0]
		if c.arguments[1]&unix.TIMER_ABSTIME == 0 && (clock == unix.CLOCK_REALTIME || clock == unix.CLOCK_MONOTONIC || clock == unix.CLOCK_BOOTTIME) {
			return t.sleeping(c.arguments[2], c.arguments[3])
		}
	case unix.SYS_POLL:
		c.arguments[2] = rest(c.arguments[2], t.slept)
	case unix.SYS_EPOLL_WAIT, unix.SYS_EPOLL_PWAIT:
		c.arguments[3] = rest(c.arguments[3], t.slept)
	}
	return c
}

// rest returns the remaining milliseconds of a wait. A limit of 0 or less stays as it is.
func rest(limit uint64, slept time.Duration) uint64 {
	ms := int32(limit)
	if ms <= 0 {
		return limit
	}
	return uint64(max(0, int64(ms)-slept.Milliseconds()))
}

// sleeping returns a call for the rest of a sleep. If asked to, the kernel has written the
// remaining time to the program's memory. The time goes into a register, by poll. The program
// may use its own variable for something else, and no other memory is safe.
func (t *thread) sleeping(whole, left uint64) call {
	c := t.call
	var d time.Duration
	if left != 0 {
		d = duration(t.pid, left)
	} else if d = duration(t.pid, whole); t.slept < d {
		d -= t.slept
	} else if d > 0 {
		d = 0
	}
	ms := (d + time.Millisecond - 1).Milliseconds()
	if d < 0 || ms > math.MaxInt32 || t.foreign {
		return c // it sleeps the whole time again
	}
	c.number, c.arguments = unix.SYS_POLL, [6]uint64{0, 0, uint64(ms)}
	return c
}

// duration reads a struct timespec. It returns a negative value if there is none.
func duration(pid int, at uint64) time.Duration {
	text := make([]byte, 16)
	if memory(pid, at, text) != nil {
		return -1
	}
	sec, nsec := int64(binary.LittleEndian.Uint64(text)), int64(binary.LittleEndian.Uint64(text[8:]))
	if sec < 0 || nsec < 0 || nsec >= 1e9 || sec > math.MaxInt32 {
		return -1
	}
	return time.Duration(sec)*time.Second + time.Duration(nsec)
}
