package memory

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// area is a part of a process's address space with private memory that belongs to no
// file.
type area struct{ start, end uint64 }

// in reports whether the area overlaps one in the list.
func (a area) in(list []area) bool {
	return slices.ContainsFunc(list, func(b area) bool { return a.start < b.end && b.start < a.end })
}

// folder is an open /proc/PID. It never refers to another process, even if the PID is
// reused. It is empty after its process has ended.
type folder struct{ fd int }

// errEnded says that the process has ended.
var errEnded = errors.New("the process has ended")

func openFolder(pid int) (folder, error) {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return folder{fd}, ended(err)
}

// ended turns every kernel error that means an ended process into errEnded.
func ended(err error) error {
	if errors.Is(err, unix.ESRCH) || errors.Is(err, fs.ErrNotExist) {
		return errEnded
	}
	return err
}

func (f folder) close() { _ = unix.Close(f.fd) }

func (f folder) open(name string) (*os.File, error) {
	fd, err := unix.Openat(f.fd, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, ended(err)
	}
	return os.NewFile(uintptr(fd), "/proc/PID/"+name), nil
}

// read calls take with each line of a file.
func (f folder) read(name string, take func(line []byte)) error {
	file, err := f.open(name)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	for lines := bufio.NewReaderSize(file, 1<<16); ; {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return ended(err)
		}
		take(line)
	}
}

// status returns the words of a line in /proc/PID/status, or none if the line is missing.
func (f folder) status(name string) (words []string, err error) {
	err = f.read("status", func(line []byte) {
		if rest, ok := bytes.CutPrefix(line, []byte(name+":")); ok {
			words = strings.Fields(string(rest))
		}
	})
	return words, err
}

// areas lists the process's private memory as CRIU defines it: private and anonymous
// mappings. The list is empty if the process has ended. Each row holds areas with no
// other mapping between them. Areas are in order and do not overlap: the kernel does not
// read the list at once, so mappings that are joined meanwhile are listed again as parts of a
// larger one.
func (f folder) areas() (rows [][]area, err error) {
	apart, done := true, uint64(0)
	err = f.read("maps", func(line []byte) {
		a, ok := parseArea(line)
		a.start = max(a.start, done)
		done = max(done, a.end)
		switch {
		case ok && a.start >= a.end:
			return
		case !ok:
		case apart:
			rows = append(rows, []area{a})
		default:
			last := &rows[len(rows)-1]
			*last = append(*last, a)
		}
		apart = !ok
	})
	return rows, err
}

// around returns the range from a row's first area to its last, with the gaps between
// them.
func around(row []area) area { return area{row[0].start, row[len(row)-1].end} }

// parseArea reads a line of /proc/PID/maps: the range, rights, offset, device,
// inode and, after spaces, a name (proc_pid_maps(5)).
func parseArea(line []byte) (a area, ok bool) {
	from, rest, _ := bytes.Cut(line, []byte("-"))
	to, rest, _ := bytes.Cut(rest, []byte(" "))
	rights, rest, _ := bytes.Cut(rest, []byte(" "))
	_, rest, _ = bytes.Cut(rest, []byte(" ")) // offset
	_, rest, _ = bytes.Cut(rest, []byte(" ")) // device
	inode, name, _ := bytes.Cut(rest, []byte(" "))
	if len(rights) != 4 || rights[3] != 'p' || !ownMemory(string(bytes.TrimSpace(inode)), string(bytes.TrimSpace(name))) {
		return area{}, false
	}
	var errs [2]error
	a.start, errs[0] = strconv.ParseUint(string(from), 16, 64)
	a.end, errs[1] = strconv.ParseUint(string(to), 16, 64)
	return a, errors.Join(errs[:]...) == nil && a.start < a.end && a.end <= spaceEnd
}

// ownMemory distinguishes memory from files and from the kernel's own mappings ([vdso]
// and similar), which belong to the host.
func ownMemory(inode, name string) bool {
	if name == "/dev/zero" { // a private mapping of it is ordinary memory
		return true
	}
	return inode == "0" && (name == "" || name == "[heap]" || name == "[stack]" || strings.HasPrefix(name, "[anon:"))
}

// without returns the parts of before that are not in now. Both are in order.
func without(before, now []area) (gone []area) {
	for _, a := range before {
		for len(now) > 0 && now[0].end <= a.start {
			now = now[1:]
		}
		for _, b := range now {
			if b.start >= a.end {
				break
			}
			if b.start > a.start {
				gone = append(gone, area{a.start, b.start})
			}
			a.start = min(max(a.start, b.end), a.end)
		}
		if a.start < a.end {
			gone = append(gone, a)
		}
	}
	return gone
}
