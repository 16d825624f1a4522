package machine

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
// from the file when used. It takes some milliseconds, and may be called at any time.
func Shed() error {
	debug.FreeOSMemory()
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
