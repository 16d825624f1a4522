package agent

import (
	"regexp"
	"strings"
)

// What is in errors and means nothing to the people who read reports: the agent's log has them whole.
var (
	refusedByCRIU = regexp.MustCompile(`criu says: [^\n]*`)
	kernelFile    = regexp.MustCompile(begins + `/proc/(?:\d+|self)(?:/[^\s:;,)"']*)?`)
	controlGroup  = regexp.MustCompile(begins + `/sys/fs/cgroup(?:/[^\s:;,)"']*)?`)
	ownFile       = regexp.MustCompile(begins + `(?:/run|/var/run|/var/lib)/pagurus[^\s:;,)"'/]*/[^\s:;,)"']+`)
	// number is that of a process or thread; those in the container are known there.
	number = regexp.MustCompile(`\b(process|thread|task|pid|PID) -?\d+\b( in the container)?`)
)

// begins is what is before a path that is not a part of another.
const begins = `(^|[\s"'(=:,;])`

// plain is an error's text for people, without words of CRIU, files of the agent and of the kernel, and numbers of the host's processes.
func plain(text string) string {
	text = refusedByCRIU.ReplaceAllString(text, "CRIU cannot carry something in it, which the log of this host's agent names")
	text = kernelFile.ReplaceAllString(text, "${1}the kernel's file of a process")
	text = controlGroup.ReplaceAllString(text, "${1}its control group")
	text = ownFile.ReplaceAllString(text, "${1}a file of the agent")
	return number.ReplaceAllStringFunc(text, func(s string) string {
		switch {
		case strings.HasSuffix(s, " in the container"):
			return s
		case strings.HasPrefix(s, "thread"):
			return "a thread"
		}
		return "a process"
	})
}
