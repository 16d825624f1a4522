// This file says what is wrong with requests, whatever the cluster's state. The controller
// refuses them with these words, and the command line says the same before it asks.
//
// It must not know hosts or their free room. Its tests are the planner's and the command
// line's.

package fleet

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
)

// Limits of a job; Kinds has the minimum memory of a guest. With more than 255 CPUs QEMU
// needs more memory than it is given.
const (
	MostCPUsPerGuest = 255
	MostRanks        = 1 << 16
	MostRestarts     = 1000
	MostTime         = 365 * 24 * time.Hour // that a limit gives a job
)

// Limits of a job's description. It is stored again with each change of the job, and is
// sent to guests in messages of 64 KiB, which must also hold 250 peers, groups and a
// path.
const (
	ProgramBytes = 48 << 10 // arguments, environment and directory, as JSON
	MostGroups   = 1024     // of the user
	PathBytes    = 4095     // Linux's limit
)

// Refused says what is wrong with a job by itself and how to fix it; empty: nothing.
func (s JobSpec) Refused() string {
	for _, check := range []func(JobSpec) string{invalidSize, invalidPath, invalidFiles, invalidLinks, invalidLength, refusedDevice} {
		if reason := check(s); reason != "" {
			return reason
		}
	}
	switch {
	case len(s.Args) == 0 || s.Args[0] == "":
		return "there is no program to run; name it after --"
	case s.Args[0][0] == '-': // launchers would take it for a flag of their own
		return fmt.Sprintf("%q is no program: flags of `pagurus run` stand before --, and those of mpirun are not taken; for a program of this name write ./%[1]s", s.Args[0])
	case slices.ContainsFunc(slices.Concat(s.Args, s.Env), func(a string) bool { return strings.ContainsRune(a, 0) }):
		return "an argument or variable holds a zero byte, which no program can be given; leave it out"
	case slices.ContainsFunc(s.Env, func(e string) bool { return strings.IndexByte(e, '=') < 1 }):
		return "a variable of the environment is not of the form NAME=value; correct it"
	case !s.Kind.Known() && s.Kind != Auto:
		return fmt.Sprintf("there is no kind of guest %q; use %s", s.Kind, Enumerate(append([]string{string(Auto)}, KindNames()...), "or"))
	case s.Net.Refused() != "":
		return s.Net.Refused()
	case s.Time < 0 || s.Time > MostTime:
		return fmt.Sprintf("--"+TimeFlag+" %s is no limit: give one from 1s to %s, or none", ShortDuration(s.Time), ShortDuration(MostTime))
	case s.Checkpoint != nil && s.Checkpoint.Refused() != "":
		return "--" + CheckpointFlag + ": " + s.Checkpoint.Refused()
	case s.Restarts < 0 || s.Restarts > MostRestarts:
		return fmt.Sprintf("--"+RestartsFlag+" %d: a job may begin again up to %d times", s.Restarts, MostRestarts)
	case !s.Class.Known():
		return fmt.Sprintf("there is no class %q; use %s, %s or %s", s.Class, Gold, Normal, Bronze)
	case !(s.Cap >= 0 && s.Cap <= 1): // also refuses NaN
		return "a guest's share of its CPUs must be more than 0 and at most 100%; give one with --" + CapFlag
	}
	return ""
}

// invalidPath refuses directories that a guest cannot mount, or a file server cannot
// export.
func invalidPath(s JobSpec) string {
	odd := func(r rune) bool { return r == '"' || unicode.IsControl(r) }
	switch {
	case !path.IsAbs(s.Dir) || path.Clean(s.Dir) != s.Dir:
		return fmt.Sprintf("the working directory %q is not an absolute path; give one that begins with / and has no .. in it", s.Dir)
	case !path.IsAbs(s.Export) || path.Clean(s.Export) != s.Export:
		return fmt.Sprintf("the shared directory %q is not an absolute path; give one that begins with / and has no .. in it", s.Export)
	case s.Export == "/":
		return "the whole file system cannot be shared with guests, they have their own; name a directory with --" + ExportFlag
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
func invalidFiles(s JobSpec) string {
	if len(s.Files) > MostDirectories {
		return fmt.Sprintf("%d directories are more than the %d that a job may have beside its own; name one above several of them with --"+FilesFlag, len(s.Files), MostDirectories)
	}
	odd := func(r rune) bool { return r == '"' || unicode.IsControl(r) }
	bytes := 0
	for i, d := range s.Directories() {
		bytes += len(d.Path)
		switch {
		case !path.IsAbs(d.Path) || path.Clean(d.Path) != d.Path || d.Path == "/":
			return fmt.Sprintf("the directory %q cannot be shared with guests; name an absolute path that is not / and has no .. in it with --"+FilesFlag, d.Path)
		case strings.ContainsFunc(d.Path, odd):
			return fmt.Sprintf("the directory %q cannot be shared with guests, because its name has a quotation mark or a control character; rename it", d.Path)
		}
		for _, other := range s.Directories()[:i] {
			if d.Path == other.Path || strings.HasPrefix(d.Path, other.Path+"/") || strings.HasPrefix(other.Path, d.Path+"/") {
				return fmt.Sprintf("of the directories %s and %s one is inside the other; leave out --"+FilesFlag+" %s, or share what is above both with --"+ExportFlag, other.Path, d.Path, d.Path)
			}
		}
	}
	if bytes > PathBytes {
		return fmt.Sprintf("the directories' paths have %d bytes together; name directories whose paths have %d or fewer", bytes, PathBytes)
	}
	return ""
}

// invalidLinks refuses links that no guest could make.
func invalidLinks(s JobSpec) string {
	if len(s.Links) > MostLinks*(1+MostDirectories) {
		return fmt.Sprintf("the names of the directories go by %d symbolic links, which are too many; name the directories themselves", len(s.Links))
	}
	bytes := 0
	for _, l := range s.Links {
		bytes += len(l.Path) + len(l.To)
		for _, p := range []string{l.Path, l.To} {
			if !path.IsAbs(p) || path.Clean(p) != p || strings.ContainsFunc(p, unicode.IsControl) {
				return fmt.Sprintf("the symbolic link %q to %q cannot be made in guests; name the directory itself", l.Path, l.To)
			}
		}
	}
	if bytes > 2*PathBytes {
		return fmt.Sprintf("the symbolic links in the directories' names have %d bytes; name the directories themselves", bytes)
	}
	return ""
}

// invalidLength refuses descriptions too long to send to a guest, measured as JSON.
func invalidLength(s JobSpec) string {
	if len(s.Groups) > MostGroups {
		return fmt.Sprintf("you are in %d groups, and a job's user can be in at most %d; submit it as another user", len(s.Groups), MostGroups)
	}
	program, err := json.Marshal(Program{Args: s.Args, Env: s.Env, Dir: s.Dir})
	if err != nil || len(program) > ProgramBytes {
		return fmt.Sprintf("the arguments, the environment and the working directory take %d KiB, and a guest accepts %d; put some of them into a file", (len(program)+1023)>>10, ProgramBytes>>10)
	}
	return ""
}

func invalidSize(s JobSpec) string {
	switch {
	case s.Ranks < 1:
		return fmt.Sprintf("a job cannot have %d ranks; ask for one or more with -n", s.Ranks)
	case s.Ranks > MostRanks:
		return fmt.Sprintf("%d ranks are more than the %d that a job may have; ask for fewer with -n", s.Ranks, MostRanks)
	case s.Guests < 1:
		return fmt.Sprintf("a job cannot have %d guests; ask for one or more with --"+GuestsFlag, s.Guests)
	case s.Guests > s.Ranks:
		return fmt.Sprintf("%d guests are too many for %d %s; ask for no more guests than ranks", s.Guests, s.Ranks, ranks(s.Ranks))
	case s.Guests > MaxGuestsPerJob:
		return fmt.Sprintf("%d guests are more than the %d that a job may have; give each more ranks with --"+GuestsFlag+" %d", s.Guests, MaxGuestsPerJob, MaxGuestsPerJob)
	case s.Grow < 0 || s.Grow > MaxGuestsPerJob-s.Guests: // a sum could overflow
		return fmt.Sprintf("a job of %d guests cannot grow by %d: it may have %d in all; give another number with --"+GrowFlag, s.Guests, s.Grow, MaxGuestsPerJob)
	case s.Need.MemoryBytes < s.Kind.Traits().LeastMemoryBytes:
		return fmt.Sprintf("%s of memory cannot hold a guest; give it %d MiB or more with --"+MemFlag, amount(s.Need.MemoryBytes), s.Kind.Traits().LeastMemoryBytes>>20)
	case s.Need.CPUs < 1 || s.Need.CPUs > MostCPUsPerGuest:
		return fmt.Sprintf("a guest cannot have %d CPUs; ask for 1 to %d, or for more guests with --"+GuestsFlag, s.Need.CPUs, MostCPUsPerGuest)
	}
	return ""
}

func ranks(n int) string {
	if n == 1 {
		return "rank"
	}
	return "ranks"
}

// amount is a number of bytes that may be far too small: who types 5 may mean 5 GiB.
func amount(n int64) string {
	switch {
	case n == 1:
		return "1 byte"
	case n < 1<<20:
		return fmt.Sprintf("%d bytes", n)
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

// Limits of what a host's owner may agree to. The kernel keeps 15 bytes of a program's
// name.
const (
	longestIdle    = 30 * 24 * time.Hour
	mostExclusive  = 64
	longestProgram = 15
	day            = 24 * time.Hour
)

// Presets are the thresholds and times for the sensors that an OwnerPolicy may name.
// Package presence has them.
var Presets = []string{"boinc", "condor"}

// Refused says what is wrong with a policy and how to fix it; empty: nothing.
func (p OwnerPolicy) Refused() string {
	bad := func(t time.Duration) bool { return t < 0 || t > day }
	switch {
	case p.Vacate != "" && p.Vacate != Evacuate && p.Vacate != Suspend && p.Vacate != Stay:
		return fmt.Sprintf("unknown action %q for guests when the owner stays; use --"+VacateFlag+" %s, %s or %s", p.Vacate, Evacuate, Suspend, Stay)
	case p.Nowhere != "" && (p.Nowhere != Suspend && p.Nowhere != Stay || p.Vacate != "" && p.Vacate != Evacuate):
		return fmt.Sprintf("guests that %s cannot %q where they find no room; use --"+VacateFlag+" %s,%s or %s,%s", cmp.Or(p.Vacate, "follow the cluster's policy"), p.Nowhere,
			Evacuate, Suspend, Evacuate, Stay)
	case p.IdleAfter < 0 || p.IdleAfter > longestIdle:
		return fmt.Sprintf("an owner cannot count as gone after %s; give --"+IdleAfterFlag+" something from 1s to %s", ShortDuration(p.IdleAfter), ShortDuration(longestIdle))
	case bad(p.Hours.From) || bad(p.Hours.To):
		return "hours are times of one day; give --" + HoursFlag + " something like 19:00-07:00"
	case p.Cap < 0 || p.Cap > 1:
		return fmt.Sprintf("guests cannot have %g %% of the CPUs; give --"+CapFlag+" something from 1%% to 100%%", 100*p.Cap)
	case p.Preset != "" && !slices.Contains(Presets, p.Preset):
		return fmt.Sprintf("there is no preset %q; use %s", p.Preset, strings.Join(Presets, " or "))
	case len(p.Exclusive) > mostExclusive:
		return fmt.Sprintf("%d programs are more than the %d that can be watched; name fewer", len(p.Exclusive), mostExclusive)
	}
	for _, name := range p.Exclusive {
		if name == "" || len(name) > longestProgram || strings.ContainsAny(name, "/\x00\n") {
			return fmt.Sprintf("%q cannot be the name of a running program; give the name that `ps -o comm` shows, at most %d characters", name, longestProgram)
		}
	}
	return ""
}

// Refused says what is wrong with a cluster's rules; empty: nothing.
func (r Rules) Refused() string {
	var names, placements []string
	for _, p := range VacatePolicies {
		names = append(names, string(p.Name))
		placements = append(placements, p.Placement)
	}
	switch {
	case r.Vacate != "" && !slices.Contains(names, string(r.Vacate)):
		return fmt.Sprintf("there is no policy %q; `pagurus policy ls` lists them", r.Vacate)
	case r.Placement != "" && !slices.Contains(placements, r.Placement):
		return fmt.Sprintf("unknown placement %q; use %s", r.Placement, Enumerate(Placements(), "or"))
	case r.CPU != "" && !slices.Contains(ChosenCPUs, r.CPU):
		return fmt.Sprintf("virtual machines cannot have the CPU %.80q in a whole cluster; use %s", r.CPU, Enumerate(ChosenCPUs, "or"))
	}
	return ""
}

// Placements are the placement policies that Rules may name.
func Placements() (names []string) {
	for _, p := range VacatePolicies {
		if !slices.Contains(names, p.Placement) {
			names = append(names, p.Placement)
		}
	}
	return names
}

// validName matches names of hosts and users: usable as a DNS label, a file name and a
// table column.
var validName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)

// Refused says why a host cannot have this name; empty: it can.
func (id HostID) Refused() string {
	if !validName.MatchString(string(id)) {
		return fmt.Sprintf("%q cannot be the name of a host; give one of letters, digits, dots and hyphens with --%s", id, HostFlag)
	}
	return ""
}

// RefusedAddress says why a host cannot have an address of its own; empty: it can. An address has
// one spelling, so that two of the same are seen to be.
func RefusedAddress(address string) string {
	a, err := netip.ParseAddr(address)
	switch {
	case err != nil:
		return fmt.Sprintf("%q is not an IP address; join without --address, or with one like 192.0.2.7", address)
	case a.IsUnspecified() || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fmt.Sprintf("%s is not the address of one host; join without --address, or with this machine's own", address)
	case a.Unmap().String() != address:
		return fmt.Sprintf("write the address %s as %s", address, a.Unmap())
	}
	return ""
}

// NoID is what the kernel takes for no user or no group: a program that is to run as it stays
// what it was, which is root.
const NoID uint32 = math.MaxUint32

// Refused says what is wrong with a user by itself; empty: nothing.
func (u User) Refused() string {
	switch {
	case !validName.MatchString(string(u.ID)):
		return fmt.Sprintf("%q cannot be the name of a user; a user needs a name of at most 63 letters, digits, dots and hyphens", u.ID)
	case u.Role != UserRole && u.Role != AdminRole:
		return fmt.Sprintf("%q is not the role of a user; give %s or %s", u.Role, UserRole, AdminRole)
	case u.UID == NoID:
		return fmt.Sprintf("no account can have the uid %d; give one from 0 to %d with --uid", u.UID, NoID-1)
	case u.GID == NoID || slices.Contains(u.Groups, NoID):
		return fmt.Sprintf("no group can have the gid %d; give one from 0 to %d with --gid", NoID, NoID-1)
	case slices.Contains(u.Groups, 0):
		return fmt.Sprintf("%s would be in root's group 0; `pagurus user add %s` leaves it out", u.ID, u.ID)
	case len(u.Groups) > MostGroups:
		return fmt.Sprintf("%s is in %d groups, and a job's user can be in at most %d; take the account out of some", u.ID, len(u.Groups), MostGroups)
	}
	return ""
}

// machine reports whether what joins with a role is a machine, and not a user.
func (r Role) machine() bool { return r == HostRole || r == ControllerRole }

// longestSite keeps tables readable.
const longestSite = 32

// RefusedSite says what is wrong with a site's name; empty: nothing, as for none.
func RefusedSite(name string) string {
	if len(name) <= longestSite && !strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) && strings.TrimSpace(name) == name {
		return ""
	}
	return fmt.Sprintf("%q cannot be the name of a site: it has at most %d printable characters, and no space at its ends", name, longestSite)
}

// RefusedAccelerator says what is wrong with what virtual machines are to run with; empty: nothing, as for none.
func RefusedAccelerator(name string) string {
	if slices.Contains([]string{"", AnyAccelerator, KVM, EmulationWord, TCG}, name) {
		return ""
	}
	return fmt.Sprintf("there is no %q: write %s, %s or %s", name, AnyAccelerator, KVM, EmulationWord)
}

// Limits of a join token.
const (
	mostTokenUses = 10_000
	mostTokenLife = 365 * day
)

// Refused says what is wrong, at a time, with a join token by itself; empty: nothing.
func (t JoinToken) Refused(at time.Time) string {
	switch {
	case t.Role != HostRole && t.Role != UserRole && t.Role != AdminRole && t.Role != ControllerRole:
		return fmt.Sprintf("%q is not a role; give --role %s, %s, %s or %s", t.Role, HostRole, UserRole, AdminRole, ControllerRole)
	case t.Role == ControllerRole && t.User != "":
		return "a token for a controller is not a user's login; leave out --user, or give --role user"
	case t.Role == HostRole && t.User != "":
		return "a token for hosts is not a user's login; leave out --user, or give --role user"
	case !t.Role.machine() && t.User == "":
		return "a token for a login needs a user of the cluster; give --user NAME, and `pagurus user add NAME` before if there is none"
	case t.Role != HostRole && t.Site != "":
		return "only hosts are at a site; leave out --" + SiteFlag + ", or give --role host"
	case RefusedSite(t.Site) != "":
		return "--" + SiteFlag + ": " + RefusedSite(t.Site)
	case t.Access && t.Role != UserRole && t.Role != AdminRole:
		return "a token for programs acts as a user; give --role user or --role admin, and --user"
	case t.Access && t.Uses != 0:
		return "a token for programs is valid until its end, however often it is used; leave out --uses"
	case t.Access && t.SameID:
		return "no host joins by a token for programs; leave out --same-machine"
	case !t.Access && t.Uses < 1 || t.Uses > mostTokenUses:
		return fmt.Sprintf("a token cannot have %d uses; give --uses from 1 to %d", t.Uses, mostTokenUses)
	case !t.Expires.After(at) || t.Expires.After(at.Add(mostTokenLife)):
		return fmt.Sprintf("a token cannot live for %s; give --ttl from 1m to %dd", ShortDuration(t.Expires.Sub(at).Round(time.Second)), mostTokenLife/day)
	}
	return ""
}

// ShortDuration writes a time span without the parts that are zero: 30m, not 30m0s; and 30d,
// not 720h.
func ShortDuration(d time.Duration) string {
	if d > day && d%day == 0 {
		return fmt.Sprintf("%dd", d/day)
	}
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = strings.TrimSuffix(text, zero[1:])
		}
	}
	return text
}

// RefusedGrace says why a cancelled job's program cannot have so long to end; empty: it can.
func RefusedGrace(grace time.Duration) string {
	if grace < 0 || grace > MostGrace {
		return fmt.Sprintf("a job's program cannot have %s to end; give it from 0s to %s", ShortDuration(grace), ShortDuration(MostGrace))
	}
	return ""
}
