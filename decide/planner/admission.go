// This file refuses jobs that can never run, whatever the cluster's state, before any
// guest is booted.
//
// It must not know hosts or their free room. The planner's tests cover it: they submit
// accepted and refused jobs.

package planner

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode"

	"pagurus/fleet"
)

// Limits of a job; fleet.Kinds has the minimum memory of a guest. With more than 255 CPUs
// QEMU needs more memory than it is given.
const (
	mostCPUs  = 255
	MostRanks = 1 << 16
)

// Limits of a job's description. It is stored again with each change of the job, and is
// sent to guests in messages of 64 KiB, which must also hold 250 peers, groups and a
// path.
const (
	ProgramBytes = 48 << 10 // arguments, environment and directory, as JSON
	MostGroups   = 1024     // of the user
	PathBytes    = 4095     // Linux's limit
)

// completeJob fills in a job's defaults.
func completeJob(s fleet.JobSpec) fleet.JobSpec {
	if s.Kind == "" {
		s.Kind = fleet.VM
	}
	if s.Export == "" {
		s.Export = s.Dir
	}
	if s.Need.CPUs == 0 && s.Guests > 0 {
		s.Need.CPUs = (s.Ranks + s.Guests - 1) / s.Guests
	}
	return s
}

// invalidJob says what is wrong with a job and how to fix it; empty: nothing. It does not
// check that named hosts exist.
func invalidJob(s fleet.JobSpec, image *fleet.Image) string {
	for _, check := range []func(fleet.JobSpec) string{invalidSize, invalidPath, invalidFiles, invalidLength} {
		if reason := check(s); reason != "" {
			return reason
		}
	}
	switch {
	case len(s.Args) == 0 || s.Args[0] == "":
		return "there is no program to run; name it after --"
	case slices.ContainsFunc(slices.Concat(s.Args, s.Env), func(a string) bool { return strings.ContainsRune(a, 0) }):
		return "an argument or variable holds a zero byte, which no program can be given; leave it out"
	case slices.ContainsFunc(s.Env, func(e string) bool { return strings.IndexByte(e, '=') < 1 }):
		return "a variable of the environment is not of the form NAME=value; correct it"
	case !s.Kind.Known() && s.Kind != fleet.Auto:
		return fmt.Sprintf("there is no kind of guest %q; use %s", s.Kind, fleet.Enumerate(append([]string{string(fleet.Auto)}, fleet.KindNames()...), "or"))
	case !s.Class.Known():
		return fmt.Sprintf("there is no class %q; use %s, %s or %s", s.Class, fleet.Gold, fleet.Normal, fleet.Bronze)
	case !(s.Cap >= 0 && s.Cap <= 1): // also refuses NaN
		return "a guest's share of its CPUs must be more than 0 and at most 100%; give one with --" + fleet.CapFlag
	case image == nil || image.Digest == "":
		return fmt.Sprintf("there is no image %s; `pagurus image ls` lists them, `pagurus image build %s` makes it", quoted(s.Image), s.Image)
	}
	return ""
}

// invalidPath refuses directories that a guest cannot mount, or a file server cannot
// export.
func invalidPath(s fleet.JobSpec) string {
	odd := func(r rune) bool { return r == '"' || unicode.IsControl(r) }
	switch {
	case !path.IsAbs(s.Dir) || path.Clean(s.Dir) != s.Dir:
		return fmt.Sprintf("the working directory %q is not an absolute path; give one that begins with / and has no .. in it", s.Dir)
	case !path.IsAbs(s.Export) || path.Clean(s.Export) != s.Export:
		return fmt.Sprintf("the shared directory %q is not an absolute path; give one that begins with / and has no .. in it", s.Export)
	case s.Export == "/":
		return "the whole file system cannot be shared with guests, they have their own; name a directory with --" + fleet.ExportFlag
	case strings.ContainsFunc(s.Dir, odd) || strings.ContainsFunc(s.Export, odd):
		return fmt.Sprintf("the directory %q cannot be shared with guests, because its name has a quotation mark or a control character; start the job in another one", s.Dir)
	case len(s.Dir) > PathBytes:
		return fmt.Sprintf("the working directory's path has %d bytes; start the job in one whose path has %d or fewer", len(s.Dir), PathBytes)
	case s.Dir != s.Export && !strings.HasPrefix(s.Dir, s.Export+"/"):
		return fmt.Sprintf("the working directory %s is not inside the shared directory %s; start the job inside it", s.Dir, s.Export)
	}
	return ""
}

// invalidFiles refuses more directories that guests cannot mount beside the job's own. One
// inside another would be served twice, with other rights.
func invalidFiles(s fleet.JobSpec) string {
	if len(s.Files) > fleet.MostDirectories {
		return fmt.Sprintf("%d directories are more than the %d that a job may have beside its own; name one above several of them with --"+fleet.FilesFlag, len(s.Files), fleet.MostDirectories)
	}
	odd := func(r rune) bool { return r == '"' || unicode.IsControl(r) }
	bytes := 0
	for i, d := range s.Directories() {
		bytes += len(d.Path)
		switch {
		case !path.IsAbs(d.Path) || path.Clean(d.Path) != d.Path || d.Path == "/":
			return fmt.Sprintf("the directory %q cannot be shared with guests; name an absolute path that is not / and has no .. in it with --"+fleet.FilesFlag, d.Path)
		case strings.ContainsFunc(d.Path, odd):
			return fmt.Sprintf("the directory %q cannot be shared with guests, because its name has a quotation mark or a control character; rename it", d.Path)
		}
		for _, other := range s.Directories()[:i] {
			if d.Path == other.Path || strings.HasPrefix(d.Path, other.Path+"/") || strings.HasPrefix(other.Path, d.Path+"/") {
				return fmt.Sprintf("of the directories %s and %s one is inside the other; leave out --"+fleet.FilesFlag+" %s, or share what is above both with --"+fleet.ExportFlag, other.Path, d.Path, d.Path)
			}
		}
	}
	if bytes > PathBytes {
		return fmt.Sprintf("the directories' paths have %d bytes together; name directories whose paths have %d or fewer", bytes, PathBytes)
	}
	return ""
}

// invalidLength refuses descriptions too long to send to a guest, measured as JSON.
func invalidLength(s fleet.JobSpec) string {
	if len(s.Groups) > MostGroups {
		return fmt.Sprintf("you are in %d groups, and a job's user can be in at most %d; submit it as another user", len(s.Groups), MostGroups)
	}
	program, err := json.Marshal(fleet.Program{Args: s.Args, Env: s.Env, Dir: s.Dir})
	if err != nil || len(program) > ProgramBytes {
		return fmt.Sprintf("the arguments, the environment and the working directory take %d KiB, and a guest accepts %d; put some of them into a file", (len(program)+1023)>>10, ProgramBytes>>10)
	}
	return ""
}

func invalidSize(s fleet.JobSpec) string {
	switch {
	case s.Ranks < 1:
		return fmt.Sprintf("a job cannot have %d ranks; ask for one or more with -n", s.Ranks)
	case s.Ranks > MostRanks:
		return fmt.Sprintf("%d ranks are more than the %d that a job may have; ask for fewer with -n", s.Ranks, MostRanks)
	case s.Guests < 1:
		return fmt.Sprintf("a job cannot have %d guests; ask for one or more with --"+fleet.GuestsFlag, s.Guests)
	case s.Guests > s.Ranks:
		return fmt.Sprintf("%d guests are too many for %d %s; ask for no more guests than ranks", s.Guests, s.Ranks, ranks(s.Ranks))
	case s.Guests > fleet.MaxGuestsPerJob:
		return fmt.Sprintf("%d guests are more than the %d that a job may have; give each more ranks with --"+fleet.GuestsFlag+" %d", s.Guests, fleet.MaxGuestsPerJob, fleet.MaxGuestsPerJob)
	case s.Need.MemoryBytes < s.Kind.Traits().LeastMemoryBytes:
		return fmt.Sprintf("%d MiB of memory are too little to start a guest; give it %d MiB or more with --"+fleet.MemFlag, s.Need.MemoryBytes>>20, s.Kind.Traits().LeastMemoryBytes>>20)
	case s.Need.CPUs < 1 || s.Need.CPUs > mostCPUs:
		return fmt.Sprintf("a guest cannot have %d CPUs; ask for 1 to %d, or for more guests with --"+fleet.GuestsFlag, s.Need.CPUs, mostCPUs)
	}
	return ""
}

func quoted(name string) string {
	if name == "" {
		return `""`
	}
	return name
}

func ranks(n int) string {
	if n == 1 {
		return "rank"
	}
	return "ranks"
}
