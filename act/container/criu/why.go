package criu

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// rule says what a line of CRIU's log means.
type rule struct {
	line *regexp.Regexp
	say  func(m []string) string // of what matched
}

// says is a rule's sentence that is always the same.
func says(sentence string) func([]string) string {
	return func([]string) string { return sentence }
}

// noRoom is said of a full disk, whatever could not be written to it.
var noRoom = rule{regexp.MustCompile(`No space left on device|Disk quota exceeded`),
	says("there is no room left for its images: make room where they are kept, or let fewer containers move at once")}

// rules are tried on each error of a log, in the order in which they happened: the
// first is the cause, those after it what followed. The names in them are from
// CRIU's source, criu/*.c, of versions 3.17 to 4.2.
var rules = []rule{
	{regexp.MustCompile(`Can't handle non-regular mapping on (\d+)'s map ([0-9a-f]+)`), func(m []string) string {
		return mapped(m[2])
	}},
	{regexp.MustCompile(`Unsupported mapping found ([0-9a-f]+)-`), func(m []string) string { return mapped(m[1]) }},
	{regexp.MustCompile(`Can't dump file \d+ of that type \[\d+\] \((\w+) (.*)\)`), func(m []string) string {
		return foreign("a program", device(m[1], m[2]))
	}},
	{regexp.MustCompile(`Can't lookup mount=\S+ for fd=(-?\d+) path=(.*)`), func(m []string) string { return outside("a program", m[2], m[1]) }},
	{regexp.MustCompile(`Can't dump ghost file (.*) of (\d+) size`), func(m []string) string {
		size, _ := strconv.ParseInt(m[2], 10, 64)
		return ghost("a program", m[1], size)
	}},
	{regexp.MustCompile(`In-flight connection`), says("a connection is just being made, which cannot be dumped before it is accepted: try again")},
	{regexp.MustCompile(`Unsupported proto (\d+) for socket`), func(m []string) string {
		n, _ := strconv.Atoi(m[1])
		kind := protocols[n]
		if kind == "" {
			kind = fmt.Sprintf("a socket of protocol %d", n)
		}
		return foreign("a program", kind)
	}},
	{regexp.MustCompile(`(?i)unsupported socket family:? (\d+)|unknown socket.*family (\d+)`), func(m []string) string {
		n, _ := strconv.Atoi(m[1] + m[2])
		kind := families[n]
		if kind == "" {
			kind = fmt.Sprintf("a socket of family %d", n)
		}
		return foreign("a program", kind)
	}},
	noRoom,
}

// number of a line's time, file and kind, as "(00.012345) 17: Error (criu/mem.c:12): ".
var preamble = regexp.MustCompile(`^(\([0-9. ]+\)\s*)?(\d+:\s*)?(Error|BUG)( at)? ?(\([^)]*\))?:?\s*`)

// harmless are errors after which CRIU goes on.
var harmless = regexp.MustCompile(`^rlimit: |^Pre-resume script|^Post-resume script`)

// explain says in a sentence why CRIU failed, given its log and the first error
// it kept beside that. It takes anything for a log.
func explain(log []byte, first string) string {
	var errors []string
	for line := range bytes.Lines(log) {
		text := strings.TrimSpace(string(line))
		if rest := preamble.ReplaceAllString(text, ""); rest != text && !harmless.MatchString(rest) {
			errors = append(errors, rest)
		}
	}
	if len(errors) == 0 {
		if first = strings.TrimSpace(first); first == "" {
			line, _, _ := strings.Cut(strings.TrimSpace(string(log)), "\n")
			first = line
		}
		errors = append(errors, preamble.ReplaceAllString(first, ""))
	}
	for _, line := range errors {
		for _, r := range rules {
			if m := r.line.FindStringSubmatch(line); m != nil {
				return r.say(m)
			}
		}
	}
	if errors[0] == "" {
		return "criu does not say why"
	}
	return "criu says: " + printable(errors[0])
}

// device names what CRIU only gives the numbers of.
func device(kind, what string) string {
	if kind == "chr" {
		return "the device with the numbers " + what
	}
	return what
}

// mapped says that memory cannot be dumped.
func mapped(start string) string { return foreign("a program", "memory at "+start) }
