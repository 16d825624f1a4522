package planner

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode"

	"pagurus/decide/atlas"
	"pagurus/decide/placement"
	"pagurus/decide/topology"
	"pagurus/fleet"
)

// The bounds of a job. Below 128 MiB Debian's kernel with a root file system
// in memory does not come up; a container has none, but its guest agent and
// what starts the ranks need some 20. Above 255 CPUs QEMU needs more than it is
// given.
const (
	leastMemory    = 128 << 20
	leastContainer = 32 << 20
	mostCPUs       = 255
	mostRanks      = 1 << 16
)

// The bounds of what a job says. All of it is written to the store again with
// each change of the job, and told to the guests in messages of 64 KiB, in
// which 250 peers have to have room beside groups and path.
const (
	programBytes = 48 << 10 // arguments, environment and directory, as JSON
	mostGroups   = 1024     // of the user
	pathBytes    = 4095     // Linux has no longer ones
	requestBytes = 128      // of a request's ID
)

// submit places a new job's guests, all of them or none.
func (d *draft) submit(r fleet.Request) (fleet.Answer, error) {
	if len(r.ID) > requestBytes {
		return refuse(r, "the request's ID has %d bytes; give it one of %d or fewer", len(r.ID), requestBytes)
	}
	if r.ID != "" {
		for _, j := range d.base.Jobs {
			if j.Request == r.ID {
				return fleet.Answer{Job: j.ID}, nil
			}
		}
	}
	if r.Spec == nil {
		return refuse(r, "the request has no job in it; pagurus and its controller may be of different versions, see pagurus version")
	}
	spec := complete(*r.Spec)
	if reason := d.invalid(spec, r.Image); reason != "" {
		return refuse(r, "%s", reason)
	}
	chosen, err := d.place(r, spec)
	if err != nil {
		return fleet.Answer{}, err
	}
	share, reason := d.shareHost(spec, chosen)
	if reason != "" {
		return refuse(r, "%s", reason)
	}
	subnet, free := d.subnet()
	if !free {
		return refuse(r, "all %d networks are in use by other jobs; wait until one of them ends", int(fleet.MaxSubnet)+1)
	}
	c := d.counters()
	j := fleet.Job{
		ID: fleet.JobID(fmt.Sprintf("j%d", c.NextJob)), Request: r.ID, Spec: spec, State: fleet.JobStarting, Since: d.at,
		Digest: r.Image.Digest, MPI: r.Image.MPI, Subnet: subnet, ShareHost: share, Submitted: d.at,
	}
	c.NextJob++
	c.NextSubnet = (subnet + 1) % (fleet.MaxSubnet + 1)
	d.jobs.put[j.ID] = j
	for i, id := range atlas.GuestIDs(j) {
		d.guests.put[id] = fleet.Guest{
			ID: id, Job: j.ID, Index: i, Kind: chosen[i].Kind, State: fleet.GuestStarting, Home: chosen[i].Host, Gen: 1,
			Since: d.at, Need: spec.Need, Image: j.Digest, Reason: chosen[i].Reason,
			Shape: topology.For(d.base.Hosts, chosen[i].Host, chosen[i].Kind, spec),
		}
	}
	return fleet.Answer{Job: j.ID}, nil
}

// complete fills in what a job may leave open.
func complete(s fleet.JobSpec) fleet.JobSpec {
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

// invalid says what is wrong with a job and how to put it right; empty: nothing.
func (d *draft) invalid(s fleet.JobSpec, image *fleet.Image) string {
	for _, check := range []func(fleet.JobSpec) string{invalidSize, invalidPath, invalidLength} {
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
		return "a variable of the environment is not of the form NAME=value; put that right"
	case s.Kind != fleet.VM && s.Kind != fleet.Container && s.Kind != fleet.Auto:
		return fmt.Sprintf("there is no kind of guest %q; use %s, %s or %s", s.Kind, fleet.Auto, fleet.VM, fleet.Container)
	case image == nil || image.Digest == "":
		return fmt.Sprintf("there is no image %s; pagurus image ls lists them, pagurus image build %s makes it", orNone(s.Image), s.Image)
	}
	if len(s.On) > len(d.base.Hosts) { // the loop below bounds the names
		return fmt.Sprintf("%d hosts to start on are more than the %d there are; name each once", len(s.On), len(d.base.Hosts))
	}
	for _, id := range s.On {
		if _, known := d.hosts.find(id); !known {
			return fmt.Sprintf("there is no host %s; pagurus hosts lists them", id)
		}
	}
	return ""
}

// invalidPath refuses directories that no guest can mount or no file server
// can be told of, before a guest is booted in vain.
func invalidPath(s fleet.JobSpec) string {
	odd := func(r rune) bool { return r == '"' || unicode.IsControl(r) }
	switch {
	case !path.IsAbs(s.Dir) || path.Clean(s.Dir) != s.Dir:
		return fmt.Sprintf("the working directory %q is not a whole path; give one that begins with / and has no .. in it", s.Dir)
	case !path.IsAbs(s.Export) || path.Clean(s.Export) != s.Export:
		return fmt.Sprintf("the shared directory %q is not a whole path; give one that begins with / and has no .. in it", s.Export)
	case s.Export == "/":
		return "the whole file system cannot be shared with guests, they have their own; name a directory with --export"
	case strings.ContainsFunc(s.Dir, odd) || strings.ContainsFunc(s.Export, odd):
		return fmt.Sprintf("the directory %q cannot be shared with guests, because it has a quotation mark or a control character in its name; start from another one", s.Dir)
	case len(s.Dir) > pathBytes:
		return fmt.Sprintf("the working directory has a path of %d bytes; start from one of %d or fewer", len(s.Dir), pathBytes)
	case s.Dir != s.Export && !strings.HasPrefix(s.Dir, s.Export+"/"):
		return fmt.Sprintf("the working directory %s is not inside the shared directory %s; start from within it", s.Dir, s.Export)
	}
	return ""
}

// invalidLength refuses what would not fit the way into a guest. What counts
// is how long it is there, with what JSON makes of it.
func invalidLength(s fleet.JobSpec) string {
	if len(s.Groups) > mostGroups {
		return fmt.Sprintf("you are in %d groups, and a job's user can be in no more than %d; submit as another user", len(s.Groups), mostGroups)
	}
	program, err := json.Marshal(fleet.Program{Args: s.Args, Env: s.Env, Dir: s.Dir})
	if err != nil || len(program) > programBytes {
		return fmt.Sprintf("the arguments, the environment and the working directory take %d KiB on their way into the guest, which has room for %d; put some of them into a file", (len(program)+1023)>>10, programBytes>>10)
	}
	return ""
}

func invalidSize(s fleet.JobSpec) string {
	switch {
	case s.Ranks < 1:
		return fmt.Sprintf("%d ranks are none at all; ask for one or more with -n", s.Ranks)
	case s.Ranks > mostRanks:
		return fmt.Sprintf("%d ranks are more than the %d a job may have; ask for fewer with -n", s.Ranks, mostRanks)
	case s.Guests < 1:
		return fmt.Sprintf("%d guests are none at all; ask for one or more with --guests", s.Guests)
	case s.Guests > s.Ranks:
		return fmt.Sprintf("%d guests are too many for %d %s; ask for no more guests than ranks", s.Guests, s.Ranks, plural(s.Ranks, "rank", "ranks"))
	case s.Guests > fleet.MaxGuestsPerJob:
		return fmt.Sprintf("%d guests are more than the %d a job may have; give each more ranks with --guests %d", s.Guests, fleet.MaxGuestsPerJob, fleet.MaxGuestsPerJob)
	case s.Need.MemoryBytes < least(s.Kind):
		return fmt.Sprintf("%d MiB of memory are too little for a guest to start; give it %d MiB or more with --mem", s.Need.MemoryBytes>>20, least(s.Kind)>>20)
	case s.Need.CPUs < 1 || s.Need.CPUs > mostCPUs:
		return fmt.Sprintf("a guest cannot have %d CPUs; ask for 1 to %d, or for more guests with --guests", s.Need.CPUs, mostCPUs)
	}
	return ""
}

// least is the least memory a guest can have. One whose kind is left open may
// turn out to be a virtual machine.
func least(k fleet.Kind) int64 {
	if k == fleet.Container {
		return leastContainer
	}
	return leastMemory
}

// place chooses a host for every guest of a job, each with regard to those
// before it.
func (d *draft) place(r fleet.Request, s fleet.JobSpec) ([]placement.Choice, error) {
	chosen := make([]placement.Choice, s.Guests)
	a := placement.Ask{Need: s.Need, Kind: s.Kind, Only: s.On, Files: s.Machine}
	for i := range chosen {
		ranked := d.p.policy().Rank(d.room(), a)
		if len(ranked) == 0 {
			what := fmt.Sprintf("there is no room for guest %d of %d (%d MiB each)", i+1, s.Guests, s.Need.MemoryBytes>>20)
			return nil, &Refusal{Request: r, Hosts: placement.Explain(d.room(), a),
				Reason: what + "; ask for fewer guests with --guests, less memory with --mem, or wait until there is room"}
		}
		chosen[i] = ranked[0]
		d.room().Take(ranked[0].Host, s.Need)
	}
	return chosen, nil
}

// shareHost chooses the host that serves the job's files: one on the machine
// where they are, best one that has a guest of the job.
func (d *draft) shareHost(s fleet.JobSpec, chosen []placement.Choice) (fleet.HostID, string) {
	var found fleet.HostID
	for _, h := range d.room().Hosts { // by ID
		if s.Machine == "" || h.Facts.Machine != s.Machine || !placement.Heard(h, d.base.At) {
			continue
		}
		if slices.ContainsFunc(chosen, func(c placement.Choice) bool { return c.Host == h.ID }) {
			return h.ID, ""
		}
		if found == "" {
			found = h.ID
		}
	}
	if found == "" {
		return "", fmt.Sprintf("no host can serve %s to the guests, because no agent is heard from on the machine you submit from; start one there with pagurus agent", s.Export)
	}
	return found, ""
}

// subnet finds a network that no job in the store has, beginning where the
// last search ended, so that a number is used again as late as possible.
func (d *draft) subnet() (fleet.Subnet, bool) {
	used := make(map[fleet.Subnet]bool, len(d.base.Jobs))
	for _, j := range d.base.Jobs {
		if j.State != fleet.JobEnded {
			used[j.Subnet] = true
		}
	}
	for i := range int(fleet.MaxSubnet) + 1 {
		n := fleet.Subnet((int(d.base.Cluster.NextSubnet) + i) % (int(fleet.MaxSubnet) + 1))
		if !used[n] {
			return n, true
		}
	}
	return 0, false
}
