package placement

import (
	"fmt"
	"strings"

	"pagurus/fleet"
)

// Way is how a job's directory reaches a guest whose host shows it the files.
type Way string

// The ways.
const (
	InPlace Way = "in place" // the host is the machine that has the directory
	Shared  Way = "shared"   // the host shares the directory with that machine anyway
	Mounted Way = "mounted"  // the host's kernel mounts it from the job's file server
	NoWay   Way = ""
)

// Reach is the way a directory reaches a host, and why there is none, for people. machine
// has the directory.
func Reach(d fleet.Directory, machine string, f fleet.Facts) (Way, string) {
	_, able := f.Shown()
	switch {
	case f.Machine == machine:
		return InPlace, ""
	case sharesDirectory(f.Shared, d):
		return Shared, ""
	case able.Files:
		return Mounted, ""
	case able.NoFiles != "":
		return NoWay, fmt.Sprintf("has no way to %s, which is on another machine: %s", d.Path, able.NoFiles)
	}
	return NoWay, fmt.Sprintf("has no way to %s, which is on another machine", d.Path)
}

// sharesDirectory reports whether one of a host's shared directories has d. Below one
// without a source, file systems are mounted when they are used; the agent compares then.
func sharesDirectory(shared []fleet.Directory, d fleet.Directory) bool {
	if d.Source == "" {
		return false
	}
	for _, s := range shared {
		rest, below := strings.CutPrefix(d.Path, strings.TrimSuffix(s.Path, "/"))
		if !below || rest != "" && rest[0] != '/' {
			continue
		}
		if s.Source == "" && rest != "" || s.Source != "" && strings.TrimSuffix(s.Source, "/")+rest == strings.TrimSuffix(d.Source, "/") {
			return true
		}
	}
	return false
}

// unreached says why a job's directories do not reach a host; empty: they do.
func unreached(h *fleet.Host, a Ask) string {
	if a.Kind.Traits().MountsFiles || a.Files == h.Facts.Machine {
		return ""
	}
	for _, d := range a.Directories {
		if way, why := Reach(d, a.Files, h.Facts); way == NoWay {
			return why
		}
	}
	return ""
}
