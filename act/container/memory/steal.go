package memory

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"pagurus/act/container/interrupted"
)

// stopLimit is how long a thread may take to stop. One that runs, or waits in a
// system call, stops in some 0.1 ms; one that hangs in the kernel is left alone.
const stopLimit = 250 * time.Millisecond

// What x/sys does not name (include/uapi/linux/ptrace.h, pidfd.h, rseq.h).
const (
	syscallStop   = unix.SIGTRAP | 0x80
	rseqCritical  = 8    // of the pointer, in struct rseq
	codeSegment64 = 0x33 // of a thread that runs 64-bit code
)

// errBusy says that a thread did not stop.
var errBusy = errors.New("it hangs in a system call")

// thread is the one thread of a process, its first, that is made to open a
// userfaultfd.
//
// It is stopped, made to do two system calls, and goes on as if nothing had been:
// with its registers, its signal mask, and, if it was in a system call, with that
// one, which the kernel begins again, or the thread itself where the kernel would not.
// No code is written into the process, which its other threads might meet: the
// calls are made at a system call instruction that is there, in the vDSO.
type thread struct {
	pid         int
	instruction uint64 // where a system call instruction is
	registers   unix.PtraceRegs
	signals     uint64 // its mask
	critical    uint64 // where it keeps the pointer to its restartable sequence
	sequence    uint64 // that pointer
	changed     bool   // its registers are not its own
}

// steal makes a process open a userfaultfd and takes it away. Afterwards the process has
// none, even after an error. stopped is how long the process's thread was stopped.
//
// The caller's thread must be locked and end soon: a thread that would not stop is
// released only then.
func steal(pid int) (uffd int, stopped time.Duration, err error) {
	at, err := findInstruction(pid)
	if err != nil {
		return -1, 0, err
	}
	t := &thread{pid: pid, instruction: at}
	begun := time.Now()
	if err := t.stop(); err != nil {
		return -1, time.Since(begun), err
	}
	uffd, err = t.takeUffd()
	if e := t.letGo(); e != nil {
		err = errors.Join(err, e)
	}
	if err != nil && uffd >= 0 {
		_ = unix.Close(uffd)
		uffd = -1
	}
	return uffd, time.Since(begun), err
}

// findInstruction finds a system call instruction in the vDSO.
func findInstruction(pid int) (uint64, error) {
	file, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, ended(err)
	}
	defer func() { _ = file.Close() }()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		line := lines.Text()
		if !strings.HasSuffix(line, "[vdso]") {
			continue
		}
		var from, to uint64
		if _, err := fmt.Sscanf(line, "%x-%x ", &from, &to); err != nil || to-from > 1<<20 {
			break
		}
		code := make([]byte, to-from)
		n, err := unix.ProcessVMReadv(pid, []unix.Iovec{iovec(code)}, []unix.RemoteIovec{{Base: uintptr(from), Len: len(code)}}, 0)
		if err != nil {
			return 0, ended(err)
		}
		if i := bytes.Index(code[:n], []byte{0x0f, 0x05}); i >= 0 {
			return from + uint64(i), nil
		}
	}
	return 0, errors.New("it has no vDSO with a system call in it")
}

func (t *thread) ptrace(request int, address, value uintptr) error {
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, uintptr(request), uintptr(t.pid), address, value, 0, 0)
	if errno != 0 {
		return ended(errno)
	}
	return nil
}

// stop stops the thread and notes how it was.
func (t *thread) stop() error {
	if err := t.interrupt(); err != nil {
		return err
	}
	return t.halt()
}

// interrupt has the thread stop as soon as it may, which halt waits for.
func (t *thread) interrupt() error {
	if err := t.seize(); err != nil {
		return fmt.Errorf("trace it: %w", err)
	}
	if err := t.ptrace(unix.PTRACE_INTERRUPT, 0, 0); err != nil {
		return fmt.Errorf("stop it: %w", err)
	}
	return nil
}

// halt waits until the thread has stopped, and notes how it was.
func (t *thread) halt() error {
	for {
		s, err := t.wait(stopLimit)
		if err != nil {
			return err
		}
		if s.event == unix.PTRACE_EVENT_STOP {
			break
		}
		// A signal came first. It gets it, and stops then.
		if err := t.ptrace(unix.PTRACE_CONT, 0, uintptr(s.signal)); err != nil {
			return err
		}
	}
	err := unix.PtraceGetRegs(t.pid, &t.registers)
	if err == nil {
		err = t.ptrace(unix.PTRACE_GETSIGMASK, unsafe.Sizeof(t.signals), uintptr(unsafe.Pointer(&t.signals)))
	}
	if err == nil && t.registers.Cs != codeSegment64 {
		err = errors.New("it runs 32-bit code")
	}
	if err == nil {
		err = t.noteSequence()
	}
	if err != nil {
		return errors.Join(err, t.letGo())
	}
	interrupted.Resume(t.pid, &t.registers)
	return nil
}

// seize begins to trace. System call filters of the process must not meet calls
// that it does not make of its own will: some kill.
func (t *thread) seize() error {
	options := uintptr(unix.PTRACE_O_TRACESYSGOOD)
	f, err := openFolder(t.pid)
	if err != nil {
		return err
	}
	defer f.close()
	filter, err := f.status("Seccomp")
	if err != nil {
		return err
	}
	if len(filter) > 0 && filter[0] != "0" {
		options |= unix.PTRACE_O_SUSPEND_SECCOMP
	}
	return t.ptrace(unix.PTRACE_SEIZE, 0, options)
}

// noteSequence remembers the restartable sequence the thread may be in: the
// kernel forgets it as soon as the thread is seen elsewhere, and it would go on
// in the middle of it, interrupted without knowing.
func (t *thread) noteSequence() error {
	var conf struct {
		pointer                    uint64
		size, signature, flags, __ uint32
	}
	err := t.ptrace(unix.PTRACE_GET_RSEQ_CONFIGURATION, unsafe.Sizeof(conf), uintptr(unsafe.Pointer(&conf)))
	if errors.Is(err, unix.EIO) || errors.Is(err, unix.EINVAL) || err == nil && conf.pointer == 0 {
		return nil // a kernel, or a thread, without
	}
	if err != nil {
		return err
	}
	t.critical = conf.pointer + rseqCritical
	return t.ptrace(unix.PTRACE_PEEKDATA, uintptr(t.critical), uintptr(unsafe.Pointer(&t.sequence)))
}

// takeUffd makes the stopped thread open a userfaultfd, and takes it.
func (t *thread) takeUffd() (int, error) {
	theirs, err := t.call(unix.SYS_USERFAULTFD, uffdFlags)
	if err != nil {
		return -1, fmt.Errorf("make it open a userfaultfd: %w", err)
	}
	ours, err := t.fetch(theirs)
	if err != nil {
		err = fmt.Errorf("take its userfaultfd: %w", err)
	}
	if _, e := t.call(unix.SYS_CLOSE, uint64(theirs)); e != nil {
		err = errors.Join(err, fmt.Errorf("make it close its userfaultfd: %w", e))
	}
	return ours, err
}

func (t *thread) fetch(theirs int) (int, error) {
	pidfd, err := unix.PidfdOpen(t.pid, 0)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(pidfd) }()
	return unix.PidfdGetfd(pidfd, theirs, 0)
}

// call makes the stopped thread do a system call. Arguments that are not given are 0.
func (t *thread) call(number uint64, arguments ...uint64) (int, error) {
	r := t.registers
	r.Rip, r.Rax, r.Orig_rax = t.instruction, number, ^uint64(0)
	var a [6]uint64
	copy(a[:], arguments)
	r.Rdi, r.Rsi, r.Rdx, r.R10, r.R8, r.R9 = a[0], a[1], a[2], a[3], a[4], a[5]
	if !t.changed {
		t.changed = true
		// No handler of the program's is to run on these registers.
		all := ^uint64(0)
		if err := t.ptrace(unix.PTRACE_SETSIGMASK, unsafe.Sizeof(all), uintptr(unsafe.Pointer(&all))); err != nil {
			return -1, err
		}
	}
	if err := ended(unix.PtraceSetRegs(t.pid, &r)); err != nil {
		return -1, err
	}
	for range 2 { // its beginning and its end
		if err := t.run(unix.PTRACE_SYSCALL, func(s stopped) bool { return s.signal == syscallStop }); err != nil {
			return -1, err
		}
	}
	if err := ended(unix.PtraceGetRegs(t.pid, &r)); err != nil {
		return -1, err
	}
	if result := int64(r.Rax); result < 0 {
		return -1, unix.Errno(-result)
	}
	return int(r.Rax), nil
}

// letGo makes the stopped thread what it was and lets it run.
//
// Its registers are put back while it is stopped where stop found it, on its way
// out of the kernel before signals are looked at, and not at the end of a call:
// only there does the kernel care for a system call that was interrupted.
func (t *thread) letGo() error {
	if t.changed {
		if err := t.ptrace(unix.PTRACE_INTERRUPT, 0, 0); err != nil {
			return err
		}
		if err := t.run(unix.PTRACE_CONT, func(s stopped) bool { return s.event == unix.PTRACE_EVENT_STOP }); err != nil {
			return err
		}
		var errs []error
		if t.sequence != 0 {
			errs = append(errs, t.ptrace(unix.PTRACE_POKEDATA, uintptr(t.critical), uintptr(t.sequence)))
		}
		errs = append(errs, ended(unix.PtraceSetRegs(t.pid, &t.registers)),
			t.ptrace(unix.PTRACE_SETSIGMASK, unsafe.Sizeof(t.signals), uintptr(unsafe.Pointer(&t.signals))))
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	return t.ptrace(unix.PTRACE_DETACH, 0, 0)
}

// run lets the thread run until a stop of the kind wanted. It waits for as long
// as that takes, since the thread cannot be let go before.
func (t *thread) run(request int, wanted func(stopped) bool) error {
	signal := unix.Signal(0)
	for {
		if err := t.ptrace(request, 0, uintptr(signal)); err != nil {
			return err
		}
		s, err := t.wait(0)
		if err != nil {
			return err
		}
		if wanted(s) {
			return nil
		}
		signal = 0
		if s.event == 0 && s.signal != syscallStop {
			signal = s.signal // of those that cannot be blocked: the kernel's
		}
	}
}

// stopped is why a thread has stopped.
type stopped struct {
	signal unix.Signal
	event  int
}

// wait waits for the thread to stop. No limit is 0.
func (t *thread) wait(limit time.Duration) (stopped, error) {
	// A stop comes within microseconds of its cause, if the thread has a
	// processor: waiting longer than that at a time would be what it stands
	// suspended for.
	const yields, nap = 50, 30 * time.Microsecond
	for n, begun := 0, time.Now(); ; n++ {
		var status unix.WaitStatus
		got, err := unix.Wait4(t.pid, &status, unix.WNOHANG|unix.WALL, nil)
		switch {
		case errors.Is(err, unix.ECHILD), got == t.pid && !status.Stopped():
			return stopped{}, errEnded
		case err != nil && !errors.Is(err, unix.EINTR):
			return stopped{}, fmt.Errorf("wait for it: %w", err)
		case got == t.pid:
			return stopped{signal: unix.Signal(status >> 8 & 0xff), event: int(status >> 16)}, nil
		case limit > 0 && time.Since(begun) > limit:
			return stopped{}, errBusy
		case n < yields:
			_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		default:
			nap := unix.NsecToTimespec(int64(nap))
			_ = unix.Nanosleep(&nap, nil)
		}
	}
}
