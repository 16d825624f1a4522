// Package lean gives back memory that a program has and does not need.
//
// It must not know what the program is for. Its tests look at how much of their own program is in memory.
package lean

import (
	"bufio"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Shed releases memory that this program needed only before, for example at its start:
// the free part of its heap, and its own code and tables, which the kernel reads again
// from the file when used. If the program has no more than beyond bytes in memory, it does nothing: to look for what is free in the heap takes
// back all of it from the swap space. If the heap was enough, the program keeps its code: a kernel that lacks memory
// frees first what is mapped nowhere, and then has to read it from the disk. It takes some milliseconds, and may be called at any
// time.
func Shed(beyond int64) error {
	if now, err := resident(); err != nil || now <= beyond {
		return err
	}
	debug.FreeOSMemory()
	if now, err := resident(); err != nil || now <= beyond {
		return err
	}
	own, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("give memory back: %w", err)
	}
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return fmt.Errorf("give memory back: %w", err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		from, to, ok := unwritten(lines.Text(), own)
		if !ok {
			continue
		}
		// Unwritten pages have only the file's content.
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, uintptr(from), uintptr(to-from), unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("give memory back: %w", errno)
		}
	}
	return nil
}

// resident is how much memory this program has, in bytes.
func resident() (int64, error) {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, fmt.Errorf("give memory back: %w", err)
	}
	var all, pages int64
	if _, err := fmt.Sscan(string(text), &all, &pages); err != nil {
		return 0, fmt.Errorf("give memory back: %w", err)
	}
	return pages * int64(os.Getpagesize()), nil
}

// unwritten parses a line of /proc/self/maps that describes a read-only part of a file.
func unwritten(line, file string) (from, to uint64, ok bool) {
	words := strings.Fields(line)
	if len(words) < 6 || !strings.HasPrefix(words[1], "r-") || strings.Join(words[5:], " ") != file {
		return 0, 0, false
	}
	first, last, _ := strings.Cut(words[0], "-")
	from, err1 := strconv.ParseUint(first, 16, 64)
	to, err2 := strconv.ParseUint(last, 16, 64)
	return from, to, err1 == nil && err2 == nil && from < to
}
