package sampler

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	pageBytes = 4096
	// batch is how many pages are read at once. It limits the memory used here, and how long a
	// process's own changes to its address space wait.
	batch = 32
	// mostRegions is how many one scan gives.
	mostRegions = 512
)

// Values in place of a page's hash.
const (
	empty   = 0 // only zeros
	unknown = 1 // no longer there, or not to be read because that would cost the process something
)

// The kernel's PAGEMAP_SCAN (include/uapi/linux/fs.h), which walks over what is
// there and not over all addresses: some programs have terabytes of those.
const (
	pagemapScan = 0xc0606610
	isFile      = 1 << 2
	isPresent   = 1 << 3
	isZero      = 1 << 5
)

// region is what a scan gives: pages in a row.
type region struct{ start, end, categories uint64 }

// scan is the kernel's struct pm_scan_arg.
type scan struct {
	size, flags, start, end, walkEnd, vec, vecLen, maxPages uint64
	inverted, mask, anyOf, give                             uint64
}

// area is a part of a process's address space.
type area struct {
	process    int // in looker.processes
	start, end uint64
	shared     bool // memory that other processes may have mapped, too
	files      bool // of a file below Subject.Files
}

// process is a process whose memory is sampled.
type process struct {
	pid     int
	pagemap *os.File
}

// page is a page of the sample with the hashes of its content.
type page struct {
	area               int
	address            uint64
	there              bool // as of the last census
	first, before, now uint64
}

// isBefore reports whether a page comes before an address of an area.
func (q page) isBefore(area int, address uint64) bool {
	return q.area < area || q.area == area && q.address < address
}

// marking finds which pages of a sample exist. Regions are passed to it in the order in which
// the sample was taken.
type marking struct{ left []page }

func (m *marking) mark(area int, r region) {
	m.absent(area, r.start)
	m.until(area, r.end, true)
}

// absent records that no more pages exist before an address of an area.
func (m *marking) absent(area int, address uint64) { m.until(area, address, false) }

func (m *marking) until(area int, address uint64, there bool) {
	for len(m.left) > 0 && m.left[0].isBefore(area, address) {
		m.left[0].there, m.left = there, m.left[1:]
	}
}

// sampler is one measurement.
type sampler struct {
	subject   Subject
	device    string // of the files, as /proc/PID/maps has it
	processes []process
	areas     []area
	mappings  int // also those whose pages are not sampled
	segments  int // of shared memory without a file
	sample    []page
	seed      maphash.Seed
	zeros     []byte
	buffer    []byte
	asked     []int // pages of the batch being read
	found     []region
}

func open(s Subject) (*sampler, error) {
	l := &sampler{subject: s, seed: maphash.MakeSeed(), zeros: make([]byte, pageBytes), buffer: make([]byte, batch*pageBytes), found: make([]region, mostRegions)}
	if s.Files != "" {
		var st unix.Stat_t
		if err := unix.Stat(s.Files, &st); err != nil {
			return nil, fmt.Errorf("check %s: %w", s.Files, err)
		}
		l.device = fmt.Sprintf("%02x:%02x", unix.Major(st.Dev), unix.Minor(st.Dev))
	}
	seen := map[string]bool{}
	for _, pid := range s.Processes {
		f, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", pid))
		if gone(err) {
			continue
		}
		if err != nil {
			l.close()
			return nil, fmt.Errorf("sample the memory of process %d: %w", pid, err)
		}
		l.processes = append(l.processes, process{pid, f})
		if err := l.noteProcess(len(l.processes)-1, seen); err != nil {
			l.close()
			return nil, fmt.Errorf("sample the memory of process %d: %w", pid, err)
		}
	}
	if len(l.processes) == 0 {
		return nil, errors.New("it has no process any more")
	}
	return l, nil
}

func (l *sampler) close() {
	for _, p := range l.processes {
		p.pagemap.Close()
	}
}

// gone reports whether a process has ended.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// noteProcess records a process's memory. seen holds the shared parts that another process has
// mapped, too.
func (l *sampler) noteProcess(at int, seen map[string]bool) error {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", l.processes[at].pid))
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		l.mappings++
		a, key, ok := parse(lines.Text(), l.device)
		if !ok || key != "" && seen[key] {
			continue
		}
		seen[key] = true
		if a.shared && !a.files {
			l.segments++
		}
		a.process = at
		l.areas = append(l.areas, a)
	}
	return nil
}

// shareable lists the beginnings of the names of shared memory without a file.
var shareable = []string{"/dev/zero (deleted)", "/memfd:", "/SYSV"}

// parse reads a line of /proc/PID/maps: the range, rights, offset, device, inode and, after
// spaces, a name (proc_pid_maps(5)). ok reports that a move sends this memory: the process's
// own, and shared memory except files from elsewhere. key identifies shared memory.
func parse(line, device string) (a area, key string, ok bool) {
	words := strings.Fields(line)
	if len(words) < 5 || len(words[1]) != 4 {
		return a, "", false
	}
	from, to, _ := strings.Cut(words[0], "-")
	var err1, err2 error
	a.start, err1 = strconv.ParseUint(from, 16, 64)
	a.end, err2 = strconv.ParseUint(to, 16, 64)
	if err1 != nil || err2 != nil || a.start >= a.end || a.end > 1<<56 {
		return a, "", false
	}
	name := strings.Join(words[5:], " ")
	if words[1][3] == 'p' {
		switch name {
		case "[vvar]", "[vvar_vclock]", "[vdso]", "[vsyscall]":
			return a, "", false // the kernel's own
		}
		return a, "", true
	}
	a.shared, a.files = true, words[3] == device
	for _, s := range shareable {
		if strings.HasPrefix(name, s) {
			return a, strings.Join(words[2:5], " "), true
		}
	}
	return a, strings.Join(words[2:5], " "), a.files
}

// census counts the memory now, and finds which pages of the sample exist.
func (l *sampler) census() (counted, error) {
	var c counted
	if l.subject.Files != "" {
		var st unix.Statfs_t
		if err := unix.Statfs(l.subject.Files, &st); err != nil {
			return c, fmt.Errorf("check %s: %w", l.subject.Files, err)
		}
		if st.Type == unix.TMPFS_MAGIC {
			c.files = int64(st.Blocks-st.Bfree) * st.Bsize
		}
	}
	m := marking{left: l.sample}
	err := l.each(func(area int, r region) {
		m.mark(area, r)
		if n := int64(r.end-r.start) / pageBytes; l.areas[area].files {
			c.mapped += n
		} else {
			c.own += n
		}
	})
	m.absent(len(l.areas), 0)
	return c, err
}

// each passes all existing memory to give, in a fixed order.
func (l *sampler) each(give func(area int, r region)) error {
	for i, a := range l.areas {
		p := l.processes[a.process]
		s := scan{start: a.start, end: a.end, mask: isPresent, give: isPresent}
		if !a.shared { // a file's content is read again from the file
			s.mask, s.inverted = isPresent|isFile|isZero, isFile|isZero
		}
		for s.start < s.end {
			n, err := s.run(int(p.pagemap.Fd()), l.found)
			if gone(err) {
				break
			}
			if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EINVAL) {
				return errors.New("the kernel does not tell which pages there are; Linux 6.7 and later do")
			}
			if err != nil {
				return fmt.Errorf("sample the memory of process %d: %w", p.pid, err)
			}
			for _, r := range l.found[:n] {
				give(i, r)
			}
			if s.walkEnd <= s.start {
				break
			}
			s.start = s.walkEnd
		}
	}
	return nil
}

// run looks at pages from start on. walkEnd says how far it came.
func (s *scan) run(pagemap int, found []region) (int, error) {
	s.size, s.vec, s.vecLen, s.walkEnd = uint64(unsafe.Sizeof(*s)), uint64(uintptr(unsafe.Pointer(&found[0]))), uint64(len(found)), 0
	for {
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(pagemap), pagemapScan, uintptr(unsafe.Pointer(s)))
		runtime.KeepAlive(found)
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR, unix.EAGAIN: // the runtime's own signals; nothing is lost
		default:
			return 0, errno
		}
	}
}

// read reads every page of the sample that is there.
func (l *sampler) read() error {
	l.asked = l.asked[:0]
	for i := range l.sample {
		q := &l.sample[i]
		if len(l.asked) > 0 && l.areas[l.sample[l.asked[0]].area].process != l.areas[q.area].process || len(l.asked) == batch {
			if err := l.fetch(); err != nil {
				return err
			}
		}
		q.now = unknown
		// Reading a page that does not exist, or is in the swap space, makes the kernel create
		// one. That can still happen to the few pages that disappear after the census.
		if q.there {
			l.asked = append(l.asked, i)
		}
	}
	return l.fetch()
}

// fetch reads the queued pages, all of one process, and records their hashes.
func (l *sampler) fetch() error {
	slot := func(k int) []byte { return l.buffer[k*pageBytes : (k+1)*pageBytes] }
	for len(l.asked) > 0 {
		var local []unix.Iovec
		var remote []unix.RemoteIovec
		for k, i := range l.asked {
			v := unix.Iovec{Base: unsafe.SliceData(slot(k))}
			v.SetLen(pageBytes)
			local = append(local, v)
			remote = append(remote, unix.RemoteIovec{Base: uintptr(l.sample[i].address), Len: pageBytes})
		}
		pid := l.processes[l.areas[l.sample[l.asked[0]].area].process].pid
		n, err := unix.ProcessVMReadv(pid, local, remote, 0)
		if gone(err) {
			break
		}
		if err != nil && !errors.Is(err, unix.EFAULT) {
			return fmt.Errorf("read the memory of process %d: %w", pid, err)
		}
		whole := max(n, 0) / pageBytes
		for k, i := range l.asked[:whole] {
			l.sample[i].now = l.hash(slot(k))
		}
		l.asked = l.asked[min(whole+1, len(l.asked)):] // the page at which it stopped has just disappeared
	}
	l.asked = l.asked[:0]
	return nil
}

// hash returns the hash of a page's content.
func (l *sampler) hash(b []byte) uint64 {
	if bytes.Equal(b, l.zeros) {
		return empty
	}
	return max(maphash.Bytes(l.seed, b), unknown+1)
}
