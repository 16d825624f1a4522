package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"pagurus/fleet"
)

// kind is a kind of fault.
type kind string

// The kinds of fault. Daemons are killed with SIGKILL and restarted, as a service manager
// would.
const (
	sourceAgent  kind = "source-agent"
	targetAgent  kind = "target-agent"
	controller   kind = "controller"
	targetQEMU   kind = "target-qemu"
	sourceQEMU   kind = "source-qemu"
	linkCut      kind = "link-cut"
	linkSlow     kind = "link-slow"
	linkLossy    kind = "link-lossy"
	targetMemory kind = "target-memory" // the target's QEMU gets no more memory, and the kernel kills it
	diskFull     kind = "disk-full"     // the controller's disk is full
	cancelMove   kind = "cancel-move"
	double       kind = "double" // the same request again, and another for the same guest
)

// Faults of containers only. Killing a guest kills all its processes.
const (
	targetGuest kind = "target-guest"
	sourceGuest kind = "source-guest"
	targetCRIU  kind = "target-criu" // during a restore
	sourceCRIU  kind = "source-criu" // during a dump
	hostFull    kind = "host-full"   // the disk for important data of the target's or the source's agent is full
	noRuntime   kind = "no-runtime"  // the target's agent restarts without a CRIU
)

// share is how often a kind of fault comes, and in which phases.
type share struct {
	kind   kind
	weight int
	phases []fleet.Phase
}

// phases are those in which faults are planned. The phases of the way back are hit by faults
// that come while an earlier one is handled.
var phases = phasesWith(func(t fleet.PhaseTraits) bool { return !t.Back && !t.Phase.Ended() })

// early are those in which the guest is certainly at the source.
var early = phasesWith(fleet.PhaseTraits.BeforeSwitch)

// phasesWith gives the phases with certain traits.
func phasesWith(is func(fleet.PhaseTraits) bool) (all []fleet.Phase) {
	for _, t := range fleet.Phases {
		if is(t) {
			all = append(all, t.Phase)
		}
	}
	return all
}

// sharesOf gives the faults for guests of a kind. Faults that end a job are rarer, so that
// guests get old.
func sharesOf(k fleet.Kind) []share {
	if k == fleet.Container {
		return containerShares
	}
	return vmShares
}

var vmShares = []share{
	{sourceAgent, 17, phases}, {targetAgent, 17, phases}, {controller, 12, phases},
	{targetQEMU, 12, slices.Concat(early, switching)}, {sourceQEMU, 5, phases},
	{linkCut, 8, phases}, {linkSlow, 6, phases}, {linkLossy, 6, phases},
	{targetMemory, 4, early}, {diskFull, 3, phases},
	{cancelMove, 6, phases}, {double, 4, phases},
}

// A container is at its target only briefly before it is complete, and CRIU runs in that
// moment.
var containerShares = []share{
	{sourceAgent, 17, phases}, {targetAgent, 17, phases}, {controller, 12, phases},
	{targetGuest, 6, switching}, {sourceGuest, 5, phases}, {targetCRIU, 8, switching}, {sourceCRIU, 8, switching},
	{linkCut, 8, phases}, {linkSlow, 6, phases}, {linkLossy, 6, phases},
	{hostFull, 4, phases}, {noRuntime, 4, phases}, {diskFull, 3, phases},
	{cancelMove, 6, phases}, {double, 4, phases},
}

var switching = []fleet.Phase{fleet.Switching}

// kinds gives the names of all kinds of fault for guests of a kind.
func kinds(of fleet.Kind) []kind {
	var all []kind
	for _, s := range sharesOf(of) {
		all = append(all, s.kind)
	}
	return all
}

// fault is one line of the plan.
type fault struct {
	Number int           `json:"number"`
	Kind   kind          `json:"kind"`
	Phase  fleet.Phase   `json:"phase"`    // the phase of some migration in which it comes
	After  time.Duration `json:"after_ns"` // delay after the phase was seen
	Lasts  time.Duration `json:"lasts_ns"` // until repair, if it is repaired
	Pick   uint64        `json:"pick"`     // decides the kind's open choices
	misses int           // how often it came too late for its phase
}

// mostMisses is how often a fault may come too late for its phase.
const mostMisses = 6

// later is a fault that came too late, for its next try with a shorter delay.
func (f fault) later() fault {
	f.After /= 2
	f.misses++
	return f
}

// when is the phase of a fault. A fault that always comes too late gets a long phase, and
// without post-copy that phase is replaced. The report has the phase that was hit.
func (f fault) when(postCopies bool) fleet.Phase {
	switch {
	case f.misses >= mostMisses:
		return fleet.Copying
	case f.Phase.Traits().PostCopies() && !postCopies:
		return fleet.Retiring
	}
	return f.Phase
}

// How long a fault waits in its phase, and lasts.
const (
	mostAfter = 200 * time.Millisecond
	leastLast = 100 * time.Millisecond
	mostLast  = 2500 * time.Millisecond
)

// planned gives one fault of a plan; it depends only on the arguments.
func planned(seed uint64, number int, of fleet.Kind, only []kind) fault {
	r := rand.New(rand.NewPCG(seed, uint64(number)))
	sum := 0
	may := slices.DeleteFunc(slices.Clone(sharesOf(of)), func(s share) bool { return len(only) > 0 && !slices.Contains(only, s.kind) })
	for _, s := range may {
		sum += s.weight
	}
	at, chosen := r.IntN(sum), share{}
	for _, s := range may {
		if at -= s.weight; at < 0 {
			chosen = s
			break
		}
	}
	f := fault{
		Number: number, Kind: chosen.kind, Phase: chosen.phases[r.IntN(len(chosen.phases))],
		After: time.Duration(r.Int64N(int64(mostAfter))),
		Lasts: leastLast + time.Duration(r.Int64N(int64(mostLast-leastLast))),
		Pick:  r.Uint64(),
	}
	if f.Phase.Traits().PostCopies() { // which is over in a tenth of a second
		f.After /= 10
	}
	return f
}

// pointsOf are fault points in the agent where it waits, so that phases of milliseconds are
// long enough to be hit.
func pointsOf(k fleet.Kind) []string {
	if k == fleet.Container {
		return []string{
			"agent.receive.before", "agent.receive.after", "container.receive.after-listen",
			"agent.copy.before", "agent.copy.after", "container.copy.after-begin",
			"agent.switch.before", "agent.switch.after", "container.switch.after-freeze", "container.switch.after-dump",
			"container.switch.before-ask", "container.switch.after-ask", "container.restore.before-arrived",
			"agent.activate.before", "agent.activate.after", "container.resume.before",
			"agent.retire.before", "agent.retire.after", "agent.revert.before", "agent.discard.before",
		}
	}
	return []string{
		"agent.receive.before", "agent.receive.after", "qemu.receive.after-listen",
		"agent.copy.before", "agent.copy.after", "qemu.copy.after-begin",
		"agent.switch.before", "agent.switch.after", "qemu.switch.before-continue", "qemu.switch.after-continue",
		"agent.activate.before", "agent.activate.after", "qemu.resume.before",
		"agent.retire.before", "agent.retire.after", "agent.revert.before", "agent.discard.before",
	}
}

// The share of fault points at which a daemon waits, and for how long.
const (
	napShare = 0.35
	leastNap = 20 * time.Millisecond
	mostNap  = 300 * time.Millisecond
)

// naps gives the waits of the daemon that is started after a fault, as its environment
// variable. It depends only on the arguments.
func naps(seed uint64, number int, of fleet.Kind) string {
	r := rand.New(rand.NewPCG(seed, 1<<32+uint64(number)))
	var list []string
	for _, p := range pointsOf(of) {
		nap := leastNap + time.Duration(r.Int64N(int64(mostNap-leastNap)))
		if r.Float64() < napShare {
			list = append(list, fmt.Sprintf("%s=sleep:%s", p, nap.Round(time.Millisecond)))
		}
	}
	return strings.Join(list, ",")
}
