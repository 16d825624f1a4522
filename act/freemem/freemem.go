// Package freemem empties free memory of the machine it runs on, a guest: what was in it is zeroes then, and a copy of the guest sends none
// of it. A program takes the memory as anyone does, in pages of 2 MiB where the kernel has them, and ends. That costs a guest less than a
// balloon, which gives each page of 4 KiB to the host: on KVM without hardware virtualization 280 MiB take 0.03 to 0.2 s, with a balloon 50.
//
// It must not know why.
package freemem

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	hugeBytes = 2 << 20
	stepBytes = 16 << 20 // how much is taken at a time
	reserve   = 8        // an eighth of all memory stays free, so that programs can go on
)

// Zero fills up to bytes of free memory with zeroes, and keeps them until this process ends or unmaps them by release. It returns how many it
// filled by its end. A machine with less free memory gives less. The caller is to be the first that the kernel ends when memory is short
// (oom_score_adj in proc_pid_oom_score_adj(5)).
func Zero(bytes int64, end time.Time) (filled int64, release func(), err error) {
	bytes = bytes / hugeBytes * hugeBytes
	if bytes <= 0 {
		return 0, func() {}, nil
	}
	area, err := unix.Mmap(-1, 0, int(bytes)+hugeBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return 0, nil, fmt.Errorf("map %d bytes: %w", bytes, err)
	}
	release = func() { _ = unix.Munmap(area) }
	first := (hugeBytes - int64(uintptr(unsafe.Pointer(&area[0]))%hugeBytes)) % hugeBytes
	aligned := area[first : first+bytes]
	_ = unix.Madvise(aligned, unix.MADV_HUGEPAGE) // a kernel without huge pages has others
	for filled < bytes && time.Now().Before(end) {
		step := aligned[filled:min(filled+stepBytes, bytes)]
		if is, err := spare(); err != nil || is < int64(len(step)) {
			return filled, release, err
		}
		if err := fillPages(step); err != nil {
			return filled, release, fmt.Errorf("take free memory: %w", err)
		}
		filled += int64(len(step))
	}
	return filled, release, nil
}

// fillPages has the kernel put pages of zeroes there. It collapses those of 4 KiB to huge ones also where programs get none by themselves
// (MADV_COLLAPSE, madvise(2), since Linux 6.1), and otherwise takes small ones.
func fillPages(step []byte) error {
	for at := 0; at < len(step); at += hugeBytes {
		step[at] = 0
	}
	if unix.Madvise(step, unix.MADV_COLLAPSE) == nil {
		return nil
	}
	err := unix.Madvise(step, unix.MADV_POPULATE_WRITE)
	if errors.Is(err, unix.EINVAL) { // before Linux 5.14
		for at := 0; at < len(step); at += 4 << 10 {
			step[at] = 0
		}
		return nil
	}
	return err
}

// spare is how much memory is free beside the reserve.
var spare = func() (int64, error) {
	var is unix.Sysinfo_t
	if err := unix.Sysinfo(&is); err != nil {
		return 0, fmt.Errorf("ask for the free memory: %w", err)
	}
	return (int64(is.Freeram) - int64(is.Totalram)/reserve) * int64(is.Unit), nil
}
