package sampler

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"pagurus/act/host"
)

const (
	pageBytes = 4096
	batch     = 32 // pages that are read at once
	// mostRegions is how many one scan gives.
	mostRegions = 512
)

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
	area    int
	address uint64
	there   bool // as of the last census
	host.Sampled
}

// isBefore reports whether a page comes before an address of an area.
func (q page) isBefore(area int, address uint64) bool {
	return q.area < area || q.area == area && q.address < address
}

// marking finds which pages of a sample exist. Regions are passed to it in the order in which
// the sample was taken.
type marking struct{ left []page }

func (m *marking) mark(area int, r host.PageRegion) {
	m.absent(area, r.Start)
	m.until(area, r.End, true)
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
	reader    *host.PageReader
	found     []host.PageRegion
}

func open(s Subject) (*sampler, error) {
	l := &sampler{subject: s, reader: host.NewPageReader(batch), found: make([]host.PageRegion, mostRegions)}
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
	err := l.each(func(area int, r host.PageRegion) {
		m.mark(area, r)
		if n := int64(r.End-r.Start) / pageBytes; l.areas[area].files {
			c.mapped += n
		} else {
			c.own += n
		}
	})
	m.absent(len(l.areas), 0)
	return c, err
}

// each gives all memory that is there, in a fixed order.
func (l *sampler) each(give func(area int, r host.PageRegion)) error {
	for i, a := range l.areas {
		p := l.processes[a.process]
		s := host.PageScan{Start: a.start, End: a.end, Mask: host.PagePresent, Give: host.PagePresent}
		if !a.shared { // what a file holds is read again from that
			s.Mask, s.Inverted = host.PagePresent|host.PageOfFile|host.PageZero, host.PageOfFile|host.PageZero
		}
		for s.Start < s.End {
			found, err := s.Run(p.pagemap.Fd(), l.found)
			if gone(err) {
				break
			}
			if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EINVAL) {
				return errors.New("the kernel does not tell which pages there are; Linux 6.7 and later do")
			}
			if err != nil {
				return fmt.Errorf("sample the memory of process %d: %w", p.pid, err)
			}
			for _, r := range found {
				give(i, r)
			}
			if s.WalkEnd <= s.Start {
				break
			}
			s.Start = s.WalkEnd
		}
	}
	return nil
}

// read reads every page of the sample that is there.
func (l *sampler) read() error {
	for i := range l.sample {
		q := &l.sample[i]
		q.Now = host.PageUnknown
		// Reading what is not there, or in the swap space, makes the kernel put
		// something there, as it does with the few that go after the census.
		if !q.there {
			continue
		}
		pid := l.processes[l.areas[q.area].process].pid
		if err := l.reader.Add(pid, q.address, &q.Sampled); err != nil && !gone(err) {
			return err
		}
	}
	if err := l.reader.Flush(); !gone(err) {
		return err
	}
	return nil
}
