package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"pagurus/fleet"
)

// kind is what is done to the cluster.
type kind string

// The kinds of fault. Daemons are killed with SIGKILL and started again, as
// whoever watches over services would.
const (
	sourceAgent  kind = "source-agent"
	targetAgent  kind = "target-agent"
	controller   kind = "controller"
	targetQEMU   kind = "target-qemu"
	sourceQEMU   kind = "source-qemu"
	linkCut      kind = "link-cut"
	linkSlow     kind = "link-slow"
	linkLossy    kind = "link-lossy"
	targetMemory kind = "target-memory" // the target's QEMU gets no more memory and the kernel kills it
	diskFull     kind = "disk-full"     // no room is left where the controller keeps its state
	cancelMove   kind = "cancel-move"
	double       kind = "double" // the same request once more, and another for the same guest
)

// Those that only containers have. What is killed of a guest is all of its
// processes.
const (
	targetGuest kind = "target-guest"
	sourceGuest kind = "source-guest"
	targetCRIU  kind = "target-criu" // what restores it, in the middle of that
	sourceCRIU  kind = "source-criu" // what dumps it
	hostFull    kind = "host-full"   // no room is left where the target's agent, or the source's, keeps what it must not forget
	noRuntime   kind = "no-runtime"  // the target's agent comes up again without a CRIU
)

// share is how often a kind comes, and in which phases it makes sense.
type share struct {
	kind   kind
	weight int
	phases []fleet.Phase
}

// phases are those in which faults come. The way back has its own: they are
// hit by faults that come while an earlier one is being dealt with.
var phases = phasesWith(func(t fleet.PhaseTraits) bool { return !t.Back && !t.Phase.Ended() })

// early are those in which the guest is surely at the source.
var early = phasesWith(fleet.PhaseTraits.BeforeSwitch)

// phasesWith gives the phases whose traits are these.
func phasesWith(is func(fleet.PhaseTraits) bool) (all []fleet.Phase) {
	for _, t := range fleet.Phases {
		if is(t) {
			all = append(all, t.Phase)
		}
	}
	return all
}

// sharesOf gives the faults for guests of a kind. What ends a job for good is rarer,
// or guests would never get old.
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

// A container is at its target for a moment only before it is all of the guest,
// and CRIU runs in that moment.
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
	Phase  fleet.Phase   `json:"phase"`    // of some migration, in which it shall come
	After  time.Duration `json:"after_ns"` // so long after the phase was seen
	Lasts  time.Duration `json:"lasts_ns"` // until it is mended, where it is
	Pick   uint64        `json:"pick"`     // decides what the kind leaves open
	misses int           // how often it came too late for its phase
}

// mostMisses is how often a fault may come too late for its phase.
const mostMisses = 6

// later is a fault that came too late, for its next try: sooner after the phase was
// seen.
func (f fault) later() fault {
	f.After /= 2
	f.misses++
	return f
}

// when is the phase in which a fault comes: what always comes too late for its own
// comes in one that lasts for long, and nothing is fetched where there is no post-copy.
// The report says in which one it came.
func (f fault) when(postCopies bool) fleet.Phase {
	switch {
	case f.misses >= mostMisses:
		return fleet.Copying
	case f.Phase.Traits().PostCopies() && !postCopies:
		return fleet.Retiring
	}
	return f.Phase
}

// How long a fault waits for its place in a phase, and lasts.
const (
	mostAfter = 200 * time.Millisecond
	leastLast = 100 * time.Millisecond
	mostLast  = 2500 * time.Millisecond
)

// planned gives one fault of a plan; it follows from the arguments alone.
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

// pointsOf are places in the agent at which it is made to wait, so that
// phases which take milliseconds are long enough to be met.
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

// The share of points at which a daemon's life it is made to wait, and for how long.
const (
	napShare = 0.35
	leastNap = 20 * time.Millisecond
	mostNap  = 300 * time.Millisecond
)

// naps gives where the daemon that is started after a fault waits, as
// its environment says it. It follows from the arguments alone.
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
