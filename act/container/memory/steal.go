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

// Constants that x/sys lacks (include/uapi/linux/ptrace.h, pidfd.h, rseq.h).
const (
	syscallStop   = unix.SIGTRAP | 0x80
	rseqCritical  = 8    // offset of the pointer, in struct rseq
	codeSegment64 = 0x33 // of a thread that runs 64-bit code
)

// errBusy says that a thread did not stop.
var errBusy = errors.New("it hangs in a system call")

// thread is the first thread of a process, which is made to open a userfaultfd.
//
// The thread is stopped, made to execute two system calls, and continues as before, with
// its registers and signal mask. An interrupted system call is restarted by the kernel,
// or by the thread itself where the kernel would not. No code is written into the
// process, because its other threads could execute it. The calls use a system call
// instruction that the vDSO already has.
type thread struct {
	pid         int
	instruction uint64 // address of a system call instruction
	registers   unix.PtraceRegs
	signals     uint64 // its signal mask
	critical    uint64 // address of the pointer to its restartable sequence
	sequence    uint64 // that pointer
	changed     bool   // its registers are not its own now
}

// steal makes a process open a userfaultfd and takes it. The process keeps none, even
// after an error. stopped is how long the process's thread was stopped.
//
// The caller's thread must be locked and end soon: only then is a thread released that
// did not stop.
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

// stop stops the thread and saves its state.
func (t *thread) stop() error {
	if err := t.interrupt(); err != nil {
		return err
	}
	return t.halt()
}

// holdLimit is how long to wait for a thread that is still traced by an earlier try, whose
// tracer is about to end. On a busy machine that takes longer than a thread takes to stop.
const (
	holdLimit = 500 * time.Millisecond
	holdAgain = time.Millisecond
)

// interrupt asks the thread to stop. halt waits until it has.
func (t *thread) interrupt() error {
	var err error
	for end := time.Now().Add(holdLimit); ; time.Sleep(holdAgain) {
		if err = t.seize(); !errors.Is(err, unix.EPERM) || time.Now().After(end) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("trace it: %w", err)
	}
	if err := t.ptrace(unix.PTRACE_INTERRUPT, 0, 0); err != nil {
		return fmt.Errorf("stop it: %w", err)
	}
	return nil
}

// halt waits until the thread has stopped, and saves its state.
func (t *thread) halt() error {
	for {
		s, err := t.wait(interrupted.NewStopping(t.pid))
		if err != nil {
			return err
		}
		if s.event == unix.PTRACE_EVENT_STOP {
			break
		}
		// A signal came first. The thread receives it and stops afterwards.
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

// seize starts tracing. The process's system call filters are suspended, because some
// kill a process for the calls that it is made to execute. The kernel's error for a thread
// that has ended and was not waited for is the one for a thread that is traced already.
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
	err = t.ptrace(unix.PTRACE_SEIZE, 0, options)
	if errors.Is(err, unix.EPERM) {
		if !(&process{folder: f}).alive() {
			return errEnded
		}
	}
	return err
}

// noteSequence saves the restartable sequence that the thread may be in. The kernel
// clears it when the thread executes code elsewhere. Then the thread would continue in
// the middle of the sequence without noticing the interruption.
func (t *thread) noteSequence() error {
	var conf struct {
		pointer                    uint64
		size, signature, flags, __ uint32
	}
	err := t.ptrace(unix.PTRACE_GET_RSEQ_CONFIGURATION, unsafe.Sizeof(conf), uintptr(unsafe.Pointer(&conf)))
	if errors.Is(err, unix.EIO) || errors.Is(err, unix.EINVAL) || err == nil && conf.pointer == 0 {
		return nil // the kernel, or the thread, has no restartable sequences
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

// call makes the stopped thread execute a system call. Missing arguments are 0.
func (t *thread) call(number uint64, arguments ...uint64) (int, error) {
	r := t.registers
	r.Rip, r.Rax, r.Orig_rax = t.instruction, number, ^uint64(0)
	var a [6]uint64
	copy(a[:], arguments)
	r.Rdi, r.Rsi, r.Rdx, r.R10, r.R8, r.R9 = a[0], a[1], a[2], a[3], a[4], a[5]
	if !t.changed {
		t.changed = true
		// The program's signal handlers must not run with these registers.
		all := ^uint64(0)
		if err := t.ptrace(unix.PTRACE_SETSIGMASK, unsafe.Sizeof(all), uintptr(unsafe.Pointer(&all))); err != nil {
			return -1, err
		}
	}
	if err := ended(unix.PtraceSetRegs(t.pid, &r)); err != nil {
		return -1, err
	}
	for range 2 { // its entry and its exit
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

// letGo restores the stopped thread's state and lets it run.
//
// The registers are set when the thread has stopped as in halt: on its way out of the
// kernel before signal handling, not at the end of a call. Only there does the kernel
// restart an interrupted system call.
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

// run lets the thread run until a wanted stop. It waits without limit, because the thread
// cannot be released before.
func (t *thread) run(request int, wanted func(stopped) bool) error {
	signal := unix.Signal(0)
	for {
		if err := t.ptrace(request, 0, uintptr(signal)); err != nil {
			return err
		}
		s, err := t.wait(nil)
		if err != nil {
			return err
		}
		if wanted(s) {
			return nil
		}
		signal = 0
		if s.event == 0 && s.signal != syscallStop {
			signal = s.signal // a signal of the kernel that cannot be blocked
		}
	}
}

// stopped says why a thread has stopped.
type stopped struct {
	signal unix.Signal
	event  int
}

// wait waits for the thread to stop, until it hangs. Without stopping it waits without limit.
func (t *thread) wait(stopping *interrupted.Stopping) (stopped, error) {
	// A stop follows its cause within microseconds if the thread has a processor. A
	// longer nap would prolong the time for which the thread is stopped.
	const yields, nap = 50, 30 * time.Microsecond
	for n := 0; ; n++ {
		var status unix.WaitStatus
		got, err := unix.Wait4(t.pid, &status, unix.WNOHANG|unix.WALL, nil)
		switch {
		case errors.Is(err, unix.ECHILD), got == t.pid && !status.Stopped():
			return stopped{}, errEnded
		case err != nil && !errors.Is(err, unix.EINTR):
			return stopped{}, fmt.Errorf("wait for it: %w", err)
		case got == t.pid:
			return stopped{signal: unix.Signal(status >> 8 & 0xff), event: int(status >> 16)}, nil
		case stopping != nil && stopping.Hangs():
			return stopped{}, errBusy
		case n < yields:
			_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		default:
			nap := unix.NsecToTimespec(int64(nap))
			_ = unix.Nanosleep(&nap, nil)
		}
	}
}
