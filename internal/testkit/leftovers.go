package testkit

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"
)

const (
	// markVariable is in the environment of every process that a test starts, to tell them
	// from concurrent tests' processes.
	markVariable = "PAGURUS_TEST"
	// aloneVariable says that no other test runs on the machine, so that everything new
	// belongs to this one.
	aloneVariable = "PAGURUS_TEST_ALONE"
	// leftoverLimit is the time for the kernel and ending programs to clean up after a test.
	leftoverLimit = 15 * time.Second
)

var (
	ourProgram = regexp.MustCompile(`^(qemu-|ganesha|pagurus)`)
	ourLink    = regexp.MustCompile(`^pg([bxtsnch][0-9a-f]{6}(\.\d+)?|w[0-9a-f]{8}|lab\d+)$`) // jobs', WireGuard's and the lab's
	ourCgroup  = regexp.MustCompile(`^pagurus`)
	ourFiles   = []string{
		"/run/pagurus/*", "/tmp/pagurus*", "/var/tmp/pagurus*", "/dev/shm/pagurus*",
		"/var/lib/pagurus/lab", imageStore + "/building/*", "/tmp/mmdebstrap*", "/tmp/pga-*",
		"/run/wireguard/pgw*",
	}
)

// Leftovers fails the test if, after it and all its other clean-ups, something of ours
// exists that was not there before: a process, namespace, link, mount, cgroup or file. Call
// it first. Things that may belong to another test count only with PAGURUS_TEST_ALONE=1 in
// the environment, which make test sets for packages that it tests one at a time.
func Leftovers(t *testing.T) {
	t.Helper()
	Root(t)
	mark := token(t)
	t.Setenv(markVariable, mark)
	folder := t.TempDir()
	own := leftoverScope{mark: markVariable + "=" + mark, folder: filepath.Dir(folder), alone: os.Getenv(aloneVariable) == "1"}
	before := own.things()
	t.Cleanup(func() {
		var left []string
		for end := time.Now().Add(leftoverLimit); ; time.Sleep(50 * time.Millisecond) {
			left = left[:0]
			for thing := range own.things() {
				if !before[thing] {
					left = append(left, thing)
				}
			}
			if len(left) == 0 {
				return
			}
			if time.Now().After(end) {
				break
			}
		}
		sort.Strings(left)
		t.Errorf("the test left behind:\n\t%s", strings.Join(left, "\n\t"))
	})
}

// Ours lists everything of Pagurus on this machine, sorted.
func Ours() []string {
	return slices.Sorted(maps.Keys(leftoverScope{alone: true}.things()))
}

// leftoverScope says what counts as one test's own.
type leftoverScope struct {
	mark   string // in a process's environment; empty: none has it
	folder string // of the test's temporary files; empty: there are none
	alone  bool   // everything of ours counts
}

func (s leftoverScope) things() map[string]bool {
	things := map[string]bool{}
	for _, pid := range processes() {
		if what, ok := s.process(pid); ok {
			things[what] = true
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		if s.folder != "" && strings.HasPrefix(f[4], s.folder+"/") || s.alone && strings.Contains(f[4], "/pagurus") {
			things["mount "+f[4]] = true
		}
	}
	if !s.alone {
		return things
	}
	for _, name := range names(namespaceFolder) {
		if strings.HasPrefix(name, namespacePrefix) || strings.HasPrefix(name, "pagurus") || strings.HasPrefix(name, "pg-") {
			things["namespace "+name] = true
		}
	}
	for _, link := range links() {
		if ourLink.MatchString(link) {
			things["link "+link] = true
		}
	}
	filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && ourCgroup.MatchString(d.Name()) {
			things["cgroup "+path] = true
		}
		return nil
	})
	for _, pattern := range ourFiles {
		found, _ := filepath.Glob(pattern)
		for _, path := range found {
			things["file "+path] = true
		}
	}
	return things
}

// process describes a process of the test other than the test itself. A process that has
// ended without the test waiting for it counts, too. An orphan is left to init, which may
// take its time.
func (s leftoverScope) process(pid int) (what string, ok bool) {
	if pid == os.Getpid() || endedOrphan(pid) {
		return "", false
	}
	folder := fmt.Sprintf("/proc/%d/", pid)
	name, _ := os.ReadFile(folder + "comm")
	environment, _ := os.ReadFile(folder + "environ")
	line, _ := os.ReadFile(folder + "cmdline")
	args := strings.TrimSpace(string(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
	ok = s.mark != "" && bytes.Contains(append(environment, 0), []byte(s.mark+"\x00")) ||
		s.folder != "" && strings.Contains(args, s.folder+"/") ||
		s.alone && ourProgram.Match(name)
	return fmt.Sprintf("process %d %s: %s", pid, bytes.TrimSpace(name), args), ok
}

// endedOrphan reports whether a process is a zombie that is not this test's child (proc(5):
// state and parent follow the name in parentheses).
func endedOrphan(pid int) bool {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	words := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	return len(words) > 1 && words[0] == "Z" && words[1] != fmt.Sprint(os.Getpid())
}

func names(folder string) []string {
	entries, _ := os.ReadDir(folder)
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// links lists the links of the test's namespace.
func links() []string {
	ctx, cancel := context.WithTimeout(context.Background(), programLimit)
	defer cancel()
	out, _ := exec.CommandContext(ctx, "ip", "-br", "link", "show").Output()
	var found []string
	for line := range strings.Lines(string(out)) {
		name, _, _ := strings.Cut(line, " ")
		name, _, _ = strings.Cut(name, "@")
		found = append(found, name)
	}
	return found
}
