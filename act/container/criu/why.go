package criu

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// rule explains lines of CRIU's log.
type rule struct {
	line string                  // a regular expression
	say  func(m []string) string // from the regular expression's groups
	// rough: the line is about a process's state, and Obstacles may know more.
	rough bool
}

// says returns a function that always returns the same sentence.
func says(sentence string) func([]string) string {
	return func([]string) string { return sentence }
}

// quoting returns a function that formats the matched groups.
func quoting(format string) func([]string) string {
	return func(m []string) string {
		var args []any
		for _, part := range m[1:] {
			args = append(args, printable(part))
		}
		return fmt.Sprintf(format, args...)
	}
}

// rules are tried on each error of a log, in the log's order: the first error is the
// cause of the others. The lines are those of CRIU's source, criu/*.c, from version 3.19
// on.
var rules = []rule{
	{`No space left on device|Disk quota exceeded`,
		says("there is no room for its images: make room where they are kept, or let fewer containers move at once"), false},
	{`Cannot allocate memory`, says("there is no memory for it: free some, or let fewer containers move at once"), false},

	// Obstacles in processes.
	{`Can't handle non-regular mapping on \d+'s map ([0-9a-f]+)|Unsupported mapping found ([0-9a-f]+)-`, func(m []string) string {
		return foreign("a program", "memory of a device at "+m[1]+m[2])
	}, true},
	{`Can't dump file \d+ of that type \[\d+\] \((\S+) (.*)\)`, func(m []string) string {
		return foreign("a program", device(m[1], m[2]))
	}, true},
	{`Can't lookup mount=\S+ for fd=(-?\d+) path=(.*)`, func(m []string) string { return outside("a program", m[2], m[1]) }, true},
	{`Can't dump ghost file (.*) of (\d+) size`, func(m []string) string {
		size, _ := strconv.ParseInt(m[2], 10, 64)
		return ghost("a program", m[1], size)
	}, true},
	{`Can't dump nested (\S+) namespace`, func(m []string) string { return nested("a program", m[1]) }, true},
	{`Unsupported proto (\d+) for socket`, func(m []string) string { return foreign("a program", named(protocols, "a socket of protocol ", m[1])) }, true},
	{`(?:Unsupported socket family:?|Unknown socket collected \(family|Unknown pair family) (\d+)`, func(m []string) string {
		return foreign("a program", named(families, "a socket of family ", m[1]))
	}, true},
	{`Task \d+ with SysVIPC shmem map`, says(segment("a program")), true},
	{`External socket is used|Can't dump half of stream unix connection|with unreachable peer`,
		says("a program is connected to one outside the container by a Unix socket: it has to close it, or to be connected by the network"), true},
	{`Found dangling tty`, says("a program's terminal belongs to a process outside the container: start it through a terminal made inside"), true},
	{`The root task has another root than mntns`, says("the container's first process has changed its root: only the container as a whole can have one"), true},
	{`Open files on overmounted mounts.*path=(.*)`, quoting("a program has %s open, on which something has been mounted since: let it close the file, or unmount that"), true},
	{`Unseizable non-zombie (\d+) found|SEIZE (\d+): can't wait`, says("a program is held by another, as a debugger does: end that"), true},

	// Transient obstacles.
	{`In-flight connection`, says("a connection is just being made, and cannot move before it is accepted: try again"), false},
	{`Non-empty write queue on an in-flight socket|Found a closed in-flight socket`,
		says("a Unix connection with data in it waits to be accepted: let the program accept it"), false},
	{`Control messages in queue, not supported`,
		says("a control message (credentials) waits to be read on a Unix socket: let the program read it"), false},
	{`The netlink socket \S+ is bound to groups but not to portid`,
		says("a netlink socket has joined groups and has no address: let the program bind it"), true},
	{`Can't dump corked dgram socket`, says("a message is just being sent, and cannot move before it is: try again"), false},
	{`unsupported stop signal (\d+)`, quoting("a process is stopped by signal %s (SIGTTIN or SIGTTOU: it used its terminal from the background): continue it, or stop it by SIGSTOP"), false},
	{`Timeout reached|Unable to freeze`, says("its processes cannot be frozen: one may be waiting for a disk or a file server; try again"), false},

	// Differences at the target.
	{`Can't (?:connect|bind) inet socket.*(?:Cannot assign requested address|Network is unreachable|No such device)`,
		says("a socket's address is not there: the container's network has to be made, with its addresses and routes, before its processes, and nothing may be left in it of processes that ended"), false},
	{`(?:Can't open file|Can't open mapped|Can't stat) (.*) on restore: (.*)`, quoting("its file %s cannot be opened here: %s; the container's files have to be the same on both hosts"), false},
	{`File (\S+) has bad (?:size|mode|build-ID)`, quoting("its file %s has changed: the container's files have to be the same on both hosts"), false},
	{`\d+:\.?(/\S*) doesn't have a proper root mount|No mapping for \d+:\.?(/\S*) mountpoint`, func(m []string) string {
		return printable(m[1]+m[2]) + " is mounted in it from outside, and CRIU was not told"
	}, false},
	{`Unable to mount (\S+) .*: No such file or directory`, quoting("%s, which is mounted in it, does not exist here"), false},
	{`CPU (?:instruction )?capabilities do not match|FPU feature required by image|CPU xfeatures has unsupported|CPU xsave (?:max )?size mismatch|missing support fxsave`,
		says("this host's processor lacks something that its programs use: move it to a host with the same model or a newer one"), false},
	{`Can't restore \S+ mapping with (?:0x)?ffffffffffffffea|MADV_GUARD_INSTALL\) failed`,
		says("a program has memory of a kind that this host's kernel does not know: move it to a host with a newer one"), false},
	{`Cannot apply seals on memfd.*Invalid argument`,
		says("a program has a memfd with a seal that this host's kernel does not know (F_SEAL_EXEC): move it to a host with a newer one"), false},
	{`Unexpected EOF on|Can't open (?:inventory|image)|Magic doesn't match|Images corrupted|No .* image`, says("its images are not whole: they have to be dumped and sent again"), false},
	{`tee: \d+: Operation not permitted`, says("memory cannot be sent through a pipe: `sysctl fs.pipe-max-size=4194304` as the machine's root fixes it"), false},
	{`lazy-pages.*connect|Can't connect to lazy-pages`, says("its lazy pager does not run"), false},
	{`(?:tar|gzip).*(?:No such file|exited)|Can't (?:dump|restore) tmpfs content`, says("the files it keeps in memory could not be stored: is the program tar there?"), false},
}

// lines are the compiled regular expressions of the rules.
var lines = func() []*regexp.Regexp {
	var all []*regexp.Regexp
	for _, r := range rules {
		all = append(all, regexp.MustCompile(r.line))
	}
	return all
}()

// preamble matches the beginning of a log line: the time, the part of CRIU that works inside the
// process, the process of the restore, and the place in CRIU.
var preamble = regexp.MustCompile(`^(\([0-9. ]+\)\s*)?(pie:\s*)?(\d+:\s*)?(Error|BUG)\b( at)? ?(\([^)]*\))?:?\s*`)

// harmless matches errors after which CRIU continues.
var harmless = regexp.MustCompile(`^rlimit: |^Pre-resume script|^Post-resume script|^Can't check shutdown state`)

// explain returns a sentence that says why CRIU failed. It uses CRIU's log, which may
// contain anything, and CRIU's first error, which has no preamble. rough says that
// Obstacles may know more.
func explain(log []byte, first string) (sentence string, rough bool) {
	var errors []string
	for line := range bytes.Lines(log) {
		text := strings.TrimSpace(string(line))
		if rest := preamble.ReplaceAllString(text, ""); rest != text && rest != "" && !harmless.MatchString(rest) {
			errors = append(errors, rest)
		}
	}
	first = preamble.ReplaceAllString(strings.TrimSpace(first), "")
	if first != "" && !harmless.MatchString(first) {
		errors = append(errors, first) // the log may be cut off
	}
	for _, line := range errors {
		for i, r := range rules {
			if m := lines[i].FindStringSubmatch(line); m != nil {
				return printable(r.say(m)), r.rough // a program may have made the names in it
			}
		}
	}
	if len(errors) > 0 {
		return "criu says: " + printable(errors[0]), true
	}
	if text, _, _ := strings.Cut(strings.TrimSpace(string(log)), "\n"); text != "" {
		return "criu says: " + printable(text), true
	}
	return "criu does not say why", true
}

// named returns the name of a number.
func named(names map[int]string, otherwise, number string) string {
	n, err := strconv.Atoi(number)
	if name := names[n]; err == nil && name != "" {
		return name
	}
	return otherwise + number
}

// device names a file for which CRIU logs only device numbers.
func device(kind, what string) string {
	if kind == "chr" {
		return "the device with the numbers " + what
	}
	return what
}

// ErrTransient is wrapped by the error of a Dump that a transient obstacle prevented. Let
// the programs run for a moment and try again.
var ErrTransient = errors.New("it may pass by itself, and has not yet")

// passes are CRIU's lines about a connection that was not accepted yet and about a
// message that is written in parts.
var passes = []string{"In-flight connection", "Can't dump corked dgram socket", "on an in-flight socket", "closed in-flight socket"}

// explained makes an error from a sentence. It wraps ErrTransient if the log shows a
// transient obstacle.
func explained(log []byte, sentence string) error {
	if slices.ContainsFunc(passes, func(line string) bool { return bytes.Contains(log, []byte(line)) }) {
		return fmt.Errorf("%s: %w", sentence, ErrTransient)
	}
	return errors.New(sentence)
}
