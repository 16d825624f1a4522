package measuring

import (
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kinds of guests.
const (
	spins        = "spins"          // it wants all it can get
	sleeps       = "sleeps"         // it wants a little again and again, at once
	spinsAndNaps = "spins-and-naps" // it wants all it can get, and beside that hardly anything, on any core
)

// What a process does.
const (
	spinning = iota
	sleeping
	napping
)

const (
	// warm is how long processes work before anything counts: who begins first is
	// then forgotten.
	warm = 200 * time.Millisecond
	// table is what the work walks about in: more than the nearest caches hold,
	// so that a turn of the other one costs what it would cost a real program.
	table = 1 << 18 // of 4 bytes each
	// steps are done between two looks at the clock.
	steps = 4096
	// nap and burst are what a process that sleeps does.
	nap   = 5 * time.Millisecond
	burst = 10 * steps
	// doze is what one does that hardly wants anything.
	doze = 10 * time.Millisecond
)

// desk is where a process finds when it has to work and leaves what it has done.
type desk struct {
	startNs, lasts int64 // ns
	work           int64 // steps
	used           int64 // ns of CPU
	wakes          int64
	late           [8192]float64 // of each wake, s
}

// newField is what work walks about in.
func newField() *[table]uint32 {
	t := new([table]uint32)
	for i := range t {
		t[i] = uint32(i) * 0x85ebca6b
	}
	return t
}

// A guest's process is a fork of the worker and has no thread but one: what others
// of its group do on other cores, if only to sleep, moves shares about, and that is
// to be measured where it is wanted and not elsewhere. There is no scheduler of the
// language in it any more, and no memory to be had. So none of what follows may grow
// its stack, call what does, or ask the kernel otherwise than directly.

// kept keeps work from being left out by the compiler.
var kept uint32

// fork starts a process that waits until it can read a byte from gate, works, and
// ends.
//
//go:nosplit
//go:norace
func fork(d *desk, t *[table]uint32, gate uintptr, what int) (pid int, e syscall.Errno) {
	r, _, e := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if e != 0 || r != 0 {
		return int(r), e
	}
	code := uintptr(0)
	_, _, e = syscall.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0)
	var b byte
	if n, _, _ := syscall.RawSyscall(unix.SYS_READ, gate, uintptr(unsafe.Pointer(&b)), 1); n != 1 || e != 0 {
		code = 1
	} else {
		do(d, t, what)
	}
	for {
		_, _, _ = syscall.RawSyscall(unix.SYS_EXIT_GROUP, code, 0, 0)
	}
}

//go:nosplit
//go:norace
func do(d *desk, t *[table]uint32, what int) {
	switch what {
	case spinning:
		spin(d, t)
	case sleeping:
		sleep(d, t)
	case napping:
		for now() < d.startNs+d.lasts {
			until(now() + int64(doze))
		}
	}
}

// spin works all the time. What it did before it had to begin does not count.
//
//go:nosplit
//go:norace
func spin(d *desk, t *[table]uint32) {
	until(d.startNs - int64(warm))
	for now() < d.startNs {
		kept = walk(t, kept, steps)
	}
	used := clock(unix.CLOCK_THREAD_CPUTIME_ID)
	n := int64(0)
	for now() < d.startNs+d.lasts {
		kept = walk(t, kept, steps)
		n += steps
	}
	d.work, d.used = n, clock(unix.CLOCK_THREAD_CPUTIME_ID)-used
}

// sleep wakes up again and again, at times that have nothing to do with the kernel's
// ticks, and works a little. It notes how late it was.
//
//go:nosplit
//go:norace
func sleep(d *desk, t *[table]uint32) {
	source := uint32(d.startNs) | 1
	used := clock(unix.CLOCK_THREAD_CPUTIME_ID)
	n := int64(0)
	for at := d.startNs; at < d.startNs+d.lasts && n < int64(len(d.late)); n++ {
		until(at)
		woke := now()
		d.late[n] = float64(woke-at+1) / 1e9
		kept = walk(t, kept, burst)
		source ^= source << 13
		source ^= source >> 17
		source ^= source << 5
		at = now() + int64(nap)/2 + int64(source)%int64(nap)
	}
	d.wakes, d.work, d.used = n, n*burst, clock(unix.CLOCK_THREAD_CPUTIME_ID)-used
}

// walk does some steps, each of which depends on the one before.
//
//go:nosplit
//go:norace
func walk(t *[table]uint32, at uint32, n int) uint32 {
	for range n {
		at = (t[at&(table-1)] ^ at) * 0x9e3779b1
		at ^= at >> 15
	}
	return at
}

//go:nosplit
//go:norace
func now() int64 { return clock(unix.CLOCK_MONOTONIC) }

//go:nosplit
//go:norace
func clock(which uintptr) int64 {
	var t unix.Timespec
	_, _, _ = syscall.RawSyscall(unix.SYS_CLOCK_GETTIME, which, uintptr(unsafe.Pointer(&t)), 0)
	return t.Sec*1e9 + t.Nsec
}

// until sleeps until the monotonic clock shows at.
//
//go:nosplit
//go:norace
func until(at int64) {
	t := unix.Timespec{Sec: at / 1e9, Nsec: at % 1e9}
	for {
		_, _, e := syscall.RawSyscall6(unix.SYS_CLOCK_NANOSLEEP, unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, uintptr(unsafe.Pointer(&t)), 0, 0, 0)
		if e != unix.EINTR {
			return
		}
	}
}
