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
// from the file when used. If the program has no more than beyond bytes without that, it keeps its code: a kernel that lacks memory
// frees first what is mapped nowhere, and then has to read it from the disk. It takes some milliseconds, and may be called at any
// time.
func Shed(beyond int64) error {
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

// Room is how much memory, in bytes, programs can still get: what is free, what the kernel can free at once, and the swap space
// that is not used.
func Room() (int64, error) {
	const file = "/proc/meminfo"
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, fmt.Errorf("ask for the free memory: %w", err)
	}
	room, ok := room(string(text))
	if !ok {
		return 0, fmt.Errorf("ask for the free memory: %s is not as expected", file)
	}
	return room, nil
}

// room parses /proc/meminfo.
func room(meminfo string) (bytes int64, ok bool) {
	kib := map[string]int64{}
	for l := range strings.Lines(meminfo) {
		if words := strings.Fields(l); len(words) == 3 && words[2] == "kB" {
			if n, err := strconv.ParseInt(words[1], 10, 64); err == nil {
				kib[words[0]] = n
			}
		}
	}
	available, ok := kib["MemAvailable:"]
	return (available + kib["SwapFree:"]) << 10, ok // a kernel without swap space does not name it
}
