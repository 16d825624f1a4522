package qemu

import (
	"strings"

	"golang.org/x/sys/unix"
)

// What a suspension of a guest waits for is done by threads of QEMU that have little to do and had the least say until
// then: its first one, which takes orders, and the one that copies. While the guest's CPUs and other guests want the
// host's CPUs, each of their turns takes up to 40 ms.

// Values as for sched_setattr(2).
const (
	hurryNice    = -19
	hurrySlice   = 100_000 // ns, the least that Linux takes
	policyNormal = 0
)

// hurry lets QEMU's threads run before others at a switch and at a checkpoint's cut: all but those of the guest's CPUs. It is best effort: a slow
// switch is no failure. What ends it is relax, or QEMU's end.
func hurry(pid int) { setUrgency(pid, hurryNice, hurrySlice) }

// relax ends hurry: the threads are as urgent as the guest's CPUs.
func relax(pid int) {
	for _, cpu := range floatersOf(pid) {
		if is, err := unix.SchedGetAttr(cpu.threads[0], 0); err == nil {
			setUrgency(pid, is.Nice, 0)
			return
		}
	}
}

// setUrgency leaves threads of other classes, as an administrator may have put them there.
func setUrgency(pid int, nice int32, slice uint64) {
	threads, _ := threadsOf(pid)
	for _, id := range threads {
		is, err := unix.SchedGetAttr(id, 0)
		if err != nil || is.Policy != policyNormal || strings.HasPrefix(threadName(pid, id), cpuThread) {
			continue
		}
		_ = unix.SchedSetAttr(id, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Nice: nice, Runtime: slice}, 0)
	}
}
