package machine

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// The bounds of what Speed costs. A piece fits a core's own cache: a core is compared, not the
// machine's memory, which is seldom what bounds a move.
const (
	speedPiece = 64 << 10 // bytes
	speedTimes = 16       // as often in one go, which is a fraction of a millisecond
	speedFor   = 20 * time.Millisecond
	speedLeast = 3 // goes
)

// Speed measures how fast one core of this machine is with memory and processes, which takes
// less than a tenth of a second, or longer on a machine so slow that moves take minutes. It is the
// fastest go that counts, by processor time: on a busy machine others interrupt. The link is
// that of the interface with the address.
func Speed(address netip.Addr) *fleet.Speed {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	from, to, zeros := make([]byte, speedPiece), make([]byte, speedPiece), make([]byte, os.Getpagesize())
	same := 0
	copied := fastest(ofThread(func() {
		for range speedTimes {
			copy(to, from)
		}
	}))
	scanned := fastest(ofThread(func() {
		for range speedTimes {
			for at := 0; at < speedPiece; at += len(zeros) {
				if bytes.Equal(from[at:at+len(zeros)], zeros) {
					same++
				}
			}
		}
	}))
	return &fleet.Speed{
		CopyBytesPerSecond: speedPiece * speedTimes / copied.Seconds(),
		ScanBytesPerSecond: speedPiece * speedTimes / scanned.Seconds(),
		ProcessStart: fastest(func() time.Duration {
			c := exec.Command("true")
			if c.Run() != nil {
				return 0
			}
			return c.ProcessState.UserTime() + c.ProcessState.SystemTime()
		}),
		LinkBytesPerSecond: linkSpeed(address),
	}
}

// ofThread gives the processor time that something takes on this thread.
func ofThread(do func()) func() time.Duration {
	now := func() time.Duration {
		var t unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // never fails
		return time.Duration(t.Nano())
	}
	return func() time.Duration {
		begun := now()
		do()
		return now() - begun
	}
}

// fastest does something again and again for a while, and gives the least that it took.
func fastest(do func() time.Duration) time.Duration {
	least := time.Duration(0)
	for begun, n := time.Now(), 0; n < speedLeast || time.Since(begun) < speedFor; n++ {
		if took := do(); least == 0 || took < least && took > 0 {
			least = took
		}
	}
	return max(least, time.Nanosecond)
}

// linkSpeed is the bandwidth of the interface with an address, in bytes a second, as its
// driver says; 0: it does not.
func linkSpeed(address netip.Addr) float64 {
	all, err := net.Interfaces()
	if err != nil {
		return 0
	}
	for _, i := range all {
		its, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range its {
			if prefix, err := netip.ParsePrefix(a.String()); err != nil || prefix.Addr() != address {
				continue
			}
			text, err := os.ReadFile(filepath.Join("/sys/class/net", i.Name, "speed"))
			megabits, bad := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
			if err != nil || bad != nil || megabits <= 0 {
				return 0
			}
			return megabits * 1e6 / 8
		}
	}
	return 0
}
