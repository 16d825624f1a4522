package criu

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Obstacles returns, for people to read, what prevents a container from being moved,
// given its first process: everything that CRIU would certainly refuse to dump, each with
// a remedy. It only reads files of /proc, which takes a few milliseconds and stops no
// process. It misses what only a dump can find, so an empty list is no guarantee.
// ghostBytes is the limit of the planned DumpSpec. shared are the folders in the container
// that Leave will be given.
func Obstacles(pid int, ghostBytes int64, shared ...JobFolder) []string {
	all, err := Processes(pid)
	if err != nil {
		return nil // the process is gone: there is nothing to move
	}
	found := queues(pid)
	first := spaces(pid)
	mounts := mountsOf(pid)
	same, _ := placesOf(pid, shared) // if a folder is gone, so is the container
	for _, p := range all {
		s := readSubject(p)
		if s.mounts = mounts; !sameMounts(p, pid) {
			s.mounts = mountsOf(p)
		}
		s.ghost, s.same = cmp.Or(ghostBytes, GhostBytes), same
		found = append(found, s.obstacles()...)
		for kind, id := range spaces(p) {
			if first[kind] != id {
				found = append(found, nested(s.name, kind))
			}
		}
	}
	if says := segmented(all, mostSegments()); says != "" {
		found = append(found, says)
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// subject is one process that is examined.
type subject struct {
	pid    int
	name   string // for people, with its PID in the container
	tracer int
	mounts map[string]bool // identifiers of the mounts in its namespace, also outside a root of its own
	ghost  int64           // limit of open deleted files that are moved, in bytes
	same   jobs            // files that the target has, too
}

func readSubject(pid int) subject {
	s := subject{pid: pid, name: NameOf(pid)}
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)); err == nil {
		s.tracer, _ = strconv.Atoi(field(text, "TracerPid:"))
	}
	return s
}

// single holds the kinds of namespace that all processes of a container share.
var single = map[string]string{"pid": "process numbers", "ipc": "shared memory", "uts": "host names", "user": "users"}

// spaces returns the namespaces of a process that has not ended.
func spaces(pid int) map[string]string {
	of := map[string]string{}
	for kind := range single {
		if id, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind)); err == nil {
			of[kind] = id
		}
	}
	return of
}

// nested says that a process made a container of its own.
func nested(who, kind string) string {
	if of := single[kind]; of != "" {
		kind = of
	}
	return fmt.Sprintf("%s is in a namespace of %s of its own, and only the container as a whole can have one: run it without a sandbox (unshare, bubblewrap, a browser)", who, kind)
}

// NameOf names a process as its user knows it: by its program and its PID in the
// container.
func NameOf(pid int) string {
	folder := fmt.Sprintf("/proc/%d/", pid)
	comm, _ := os.ReadFile(folder + "comm")
	status, _ := os.ReadFile(folder + "status")
	inside := strconv.Itoa(pid)
	if all := strings.Fields(field(status, "NSpid:")); len(all) > 0 {
		inside = all[len(all)-1]
	}
	name := strings.TrimSpace(string(comm))
	if name == "" {
		name = "a program"
	}
	return fmt.Sprintf("%s (process %s in the container)", printable(name), inside)
}

// field returns what follows a word at the beginning of a line.
func field(text []byte, word string) string {
	for line := range bytes.Lines(text) {
		if rest, ok := bytes.CutPrefix(line, []byte(word)); ok {
			return string(bytes.TrimSpace(rest))
		}
	}
	return ""
}

func (s subject) obstacles() []string {
	var found []string
	if s.tracer != 0 && !ours(s.tracer) {
		found = append(found, fmt.Sprintf("%s is being debugged: end the debugger, %s", s.name, NameOf(s.tracer)))
	}
	return slices.Concat(found, s.kinds(), s.mappings(), s.files(), s.timers())
}

// mappings examines the memory of the process. Memory that belongs to a device cannot
// move.
func (s subject) mappings() []string {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", s.pid))
	if err != nil {
		return nil
	}
	defer f.Close()
	var found []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		m, ok := parseMapping(lines.Text())
		switch {
		case !ok:
		case m.strange(), m.foreign() && s.device(m):
			found = append(found, foreign(s.name, m.path))
		case strings.HasPrefix(m.path, "/SYSV") && sharesOurs(s.pid):
			found = append(found, segment(s.name))
		}
	}
	return found
}

// sharesOurs reports whether a process uses the host's System V memory. A container's own
// moves with the container.
func sharesOurs(pid int) bool {
	own, err1 := os.Readlink("/proc/self/ns/ipc")
	its, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/ipc", pid))
	return err1 == nil && err2 == nil && own == its
}

// segment says that a process shares memory with processes outside the container.
func segment(who string) string {
	return who + " shares System V memory with processes outside the container: the container has to have a namespace for that of its own (ipc)"
}

// device reports whether a mapping that looks like a device's is one. It may be a regular
// file.
func (s subject) device(m mapping) bool {
	var st unix.Stat_t
	err := unix.Stat(fmt.Sprintf("/proc/%d/map_files/%x-%x", s.pid, m.start, m.end), &st)
	return err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG
}

// mapping is a line of /proc/PID/maps.
type mapping struct {
	start, end uint64
	path       string // or its kind, such as "anon_inode:[perf_event]"
}

func parseMapping(line string) (mapping, bool) {
	words := strings.Fields(line)
	if len(words) < 5 {
		return mapping{}, false
	}
	first, last, _ := strings.Cut(words[0], "-")
	start, err1 := strconv.ParseUint(first, 16, 64)
	end, err2 := strconv.ParseUint(last, 16, 64)
	if err1 != nil || err2 != nil || end <= start {
		return mapping{}, false
	}
	m := mapping{start: start, end: end}
	for range 5 { // the rest may contain spaces
		_, line, _ = strings.Cut(strings.TrimLeft(line, " "), " ")
	}
	m.path = strings.TrimSpace(line)
	return m, true
}

// inMemory lists the folders of /dev that hold files, not devices.
var inMemory = []string{"/dev/shm/", "/dev/zero", "/dev/hugepages/", "/dev/mqueue/"}

// foreign reports whether memory belongs to a device or another part of the kernel.
func (m mapping) foreign() bool {
	if strings.HasPrefix(m.path, "anon_inode:") {
		return true
	}
	return strings.HasPrefix(m.path, "/dev/") &&
		!slices.ContainsFunc(inMemory, func(p string) bool { return strings.HasPrefix(m.path, p) })
}

// cures says what to do about devices and the like that cannot move.
var cures = []struct {
	in   []string // substrings of its name
	cure string
}{
	{[]string{"infiniband", "InfiniBand", "uverbs", "rdma", "hfi1", "umad", "/ipath"},
		"let MPI use TCP and shared memory in place of InfiniBand: `mpirun --mca pml ob1 --mca btl ^openib`, and for UCX `UCX_TLS=tcp,sm` in the environment"},
	{[]string{"knem", "xpmem"},
		"let MPI share memory without it: `mpirun --mca btl_vader_single_copy_mechanism none --mca btl_sm_single_copy_mechanism none`, and for UCX `UCX_TLS=tcp,posix,sysv`"},
	{[]string{"nvidia", "kfd", "/dri/", "gdrdrv"}, "a program that uses a GPU cannot move: run it in a job that stays"},
	{[]string{"[io_uring]"}, "the program has to do its input and output without io_uring"},
	{[]string{"[perf_event]"}, "end the profiler, which counts events of this processor"},
	{[]string{"[userfaultfd]"}, "the program handles its own page faults, which cannot move"},
	{[]string{"multipath"}, "a Go program does without it with `GODEBUG=multipathtcp=0` in its environment"},
	{[]string{"bpf"}, "the program has BPF programs in this kernel, which cannot move"},
}

// foreign says that a process has something that cannot move.
func foreign(who, what string) string {
	cure := "the program has to close it, or do without it"
	for _, c := range cures {
		if slices.ContainsFunc(c.in, func(part string) bool { return strings.Contains(what, part) }) {
			cure = c.cure
			break
		}
	}
	return fmt.Sprintf("%s uses %s, which belongs to this machine and cannot move: %s", who, printable(what), cure)
}

// files examines what the process has open.
func (s subject) files() []string {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.pid))
	if err != nil {
		return nil
	}
	handle, err := unix.PidfdOpen(s.pid, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(handle)
	var found []string
	for _, e := range entries {
		what, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", s.pid, e.Name()))
		if err != nil {
			continue
		}
		switch {
		case strings.HasPrefix(what, "socket:"):
			if kind := unmovable(handle, e.Name()); kind != "" {
				found = append(found, foreign(s.name, kind))
			}
		case what == "anon_inode:[eventfd]":
			if says := counted(s.name, s.pid, e.Name()); says != "" {
				found = append(found, says)
			}
		case strings.HasPrefix(what, "/"):
			if says := s.file(e.Name(), what); says != "" {
				found = append(found, says)
			}
		default:
			if says := s.odd(e.Name(), what); says != "" {
				found = append(found, says)
			}
		}
	}
	return found
}

// anonymous lists the files without a name that CRIU can dump.
var anonymous = []string{
	"anon_inode:[eventfd]", "anon_inode:[eventpoll]", "anon_inode:inotify", "anon_inode:[fanotify]",
	"anon_inode:[signalfd]", "anon_inode:[timerfd]", "anon_inode:[pidfd]",
}

// nameless lists the beginnings of file names that the kernel made up.
var nameless = []string{"/memfd:", "/SYSV", "/[aio]", "/anon_hugepage", "/dev/zero"}

// Major numbers of devices.
const (
	memoryMajor  = 1
	consoleMajor = 4
	ttyMajor     = 5
	firstTTY     = 136
	lastTTY      = 143
	miscMajor    = 10
	tunMinor     = 200
)

// file examines an open file with a name. It returns "" if the file can move.
func (s subject) file(number, what string) string {
	if slices.ContainsFunc(nameless, func(p string) bool { return strings.HasPrefix(what, p) }) {
		return ""
	}
	var st unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/fd/%s", s.pid, number), &st); err != nil {
		return ""
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFBLK:
		return foreign(s.name, what)
	case unix.S_IFCHR:
		major, minor := unix.Major(st.Rdev), unix.Minor(st.Rdev)
		if major != memoryMajor && major != consoleMajor && major != ttyMajor && (major < firstTTY || major > lastTTY) &&
			(major != miscMajor || minor != tunMinor) {
			return foreign(s.name, what)
		}
	}
	path := fmt.Sprintf("/proc/%d/fd/%s", s.pid, number)
	if says := s.pipeOfJob(path, what); says != "" {
		return says
	}
	if _, job := s.same.nameless(s.pid, path, what); job != nil {
		if job.Crosses {
			return crossing(s.name, strings.TrimSuffix(what, deleted))
		}
		if _, _, err := unix.NameToHandleAt(unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW); err != nil || job.Remote && st.Nlink == 0 {
			if _, err := os.Lstat(path); err != nil {
				return "" // the process has ended, or has closed it
			}
			return stuck(s.name, strings.TrimSuffix(what, deleted))
		}
		return ""
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", s.pid, number))
	if id := field(text, "mnt_id:"); err == nil && id != "" && !s.mounts[id] {
		return cmp.Or(s.queue(number, what), outside(s.name, what, number))
	}
	name, gone := strings.CutSuffix(what, " (deleted)")
	switch {
	case !gone || st.Mode&unix.S_IFMT != unix.S_IFREG:
	case st.Nlink > 0:
		return renamed(s.name, name)
	case st.Blocks*512 > s.ghost:
		return ghost(s.name, name, st.Blocks*512)
	}
	return ""
}

// renamed says that a file was opened by a name that is gone while the file has another
// name. CRIU gives it a name during the dump, after all files were sent, so the target
// lacks it.
func renamed(who, what string) string {
	return fmt.Sprintf("%s has %s open, a name that was removed while the file has another one: let it close the file, or open it by that", who, printable(what))
}

// outside says that a file was opened before the process was in the container.
func outside(who, what, number string) string {
	return fmt.Sprintf("%s has %s open, as descriptor %s, which lies outside the container: start it so that it opens its files inside", who, printable(what), number)
}

// ghost says that a deleted file is too large.
func ghost(who, what string, size int64) string {
	return fmt.Sprintf("%s has deleted %s, but has it open, and its %d MiB are more than can be moved of such a file: let it close the file, or keep its name", who, printable(what), size>>20)
}

// Names of the socket families and protocols that CRIU cannot dump.
var families = map[int]string{
	unix.AF_VSOCK: "a socket to a virtual machine's host (vsock)", unix.AF_RDS: "an RDS socket", unix.AF_ALG: "a socket to the kernel's ciphers (AF_ALG)",
	unix.AF_XDP: "an XDP socket", unix.AF_BLUETOOTH: "a Bluetooth socket", unix.AF_CAN: "a CAN socket", unix.AF_TIPC: "a TIPC socket",
	unix.AF_SMC: "an SMC socket", unix.AF_KCM: "a KCM socket", unix.AF_IB: "an InfiniBand socket",
}

var protocols = map[int]string{unix.IPPROTO_SCTP: "an SCTP socket", unix.IPPROTO_MPTCP: "a multipath TCP socket", unix.IPPROTO_DCCP: "a DCCP socket"}

// unmovable returns what kind of socket CRIU cannot dump, or "" if it may be able to.
func unmovable(process int, name string) string {
	number, err := strconv.Atoi(name)
	if err != nil {
		return ""
	}
	fd, err := unix.PidfdGetfd(process, number, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	family, err1 := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	protocol, err2 := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err1 != nil || err2 != nil {
		return ""
	}
	switch family {
	case unix.AF_UNIX, unix.AF_NETLINK, unix.AF_PACKET:
		return ""
	case unix.AF_INET, unix.AF_INET6:
		return protocols[protocol]
	}
	if says := families[family]; says != "" {
		return says
	}
	return fmt.Sprintf("a socket of family %d", family)
}

// printable makes the name of a program or file harmless on a terminal, and short.
func printable(name string) string {
	const most = 200
	name = strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return '?'
		}
		return r
	}, name)
	if len(name) > most {
		name = strings.ToValidUTF8(name[:most], "") + "..."
	}
	return name
}
