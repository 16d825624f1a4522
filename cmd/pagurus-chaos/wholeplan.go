package main

import (
	"math/rand/v2"
	"slices"
	"time"
)

// Faults of a whole cluster, beside those of links. What is restarted is restarted after the
// fault has lasted.
const (
	hostPower       kind = "host-power"       // everything of a host ends at once, and it is off for a while
	hostCut         kind = "host-cut"         // a host reaches nobody
	controlCut      kind = "control-cut"      // a host reaches no controller, but other hosts
	hostsCut        kind = "data-cut"         // a host reaches no other host, but the controllers
	hostAgent       kind = "agent"            // an agent is killed
	hostGuest       kind = "guest"            // all processes of a guest are killed
	leaderKilled    kind = "leader"           // the controller that leads is killed, with its member of the store
	memberKilled    kind = "member"           // another one
	leaderSuspended kind = "leader-suspended" // it stops, and goes on as if nothing had been
	memberSuspended kind = "member-suspended"
	majorityKilled  kind = "majority"       // all controllers but one
	controllerFull  kind = "disk-full"      // a controller's disk
	rollback        kind = "store-rollback" // all controllers are killed, and a backup is restored

	clockSet          kind = "clock"              // the wall clock of a controller is set by hours, and back
	agentVersion      kind = "agent-version"      // an agent is killed, and started as one of another version; later back
	controllerVersion kind = "controller-version" // a controller
)

// class is what faults have in common that must not be under way at once, so that what they
// cost is known.
type class string

const (
	ofHosts       class = "hosts"       // takes a host away
	ofControllers class = "controllers" // takes a controller away
	ofLinks       class = "links"
	ofClocks      class = "clocks"
	ofVersions    class = "versions"
	ofProcesses   class = "processes"
	ofAll         class = "all" // nothing else is under way
)

// wholeShare is how often a kind of fault comes.
type wholeShare struct {
	kind   kind
	weight int
	class  class
	least  time.Duration
	most   time.Duration
	long   time.Duration // a part of them lasts longer than a lease; 0: none
}

var wholeShares = []wholeShare{
	{hostPower, 10, ofHosts, 500 * time.Millisecond, 5 * time.Second, wholeLease + 8*time.Second},
	{hostCut, 8, ofHosts, 200 * time.Millisecond, 5 * time.Second, wholeLease + 8*time.Second},
	{controlCut, 7, ofHosts, 200 * time.Millisecond, 5 * time.Second, wholeLease + 8*time.Second},
	{hostsCut, 7, ofHosts, 200 * time.Millisecond, 5 * time.Second, 0},
	{linkSlow, 5, ofLinks, 500 * time.Millisecond, 5 * time.Second, 0},
	{linkLossy, 5, ofLinks, 500 * time.Millisecond, 5 * time.Second, 0},
	{hostAgent, 20, ofProcesses, 0, 2 * time.Second, 0},
	{hostGuest, 6, ofProcesses, 0, 1, 0},
	{leaderKilled, 8, ofControllers, 0, 5 * time.Second, 0},
	{memberKilled, 8, ofControllers, 0, 5 * time.Second, 0},
	{leaderSuspended, 5, ofControllers, 500 * time.Millisecond, 12 * time.Second, 0},
	{memberSuspended, 5, ofControllers, 500 * time.Millisecond, 12 * time.Second, 0},
	{majorityKilled, 2, ofControllers, 500 * time.Millisecond, 6 * time.Second, 0},
	{controllerFull, 4, ofControllers, 500 * time.Millisecond, 5 * time.Second, 0},
	{rollback, 1, ofAll, 0, 2 * time.Second, 0},
	{clockSet, 5, ofClocks, time.Second, 20 * time.Second, 0},
	{agentVersion, 6, ofVersions, time.Second, 20 * time.Second, 0},
	{controllerVersion, 4, ofControllers, time.Second, 12 * time.Second, 0},
}

// ofOtherVersions are the faults that need programs of another version.
var ofOtherVersions = []kind{agentVersion, controllerVersion}

// wholeShareOf gives the row of a kind.
func wholeShareOf(k kind) wholeShare {
	return wholeShares[slices.IndexFunc(wholeShares, func(s wholeShare) bool { return s.kind == k })]
}

func wholeKinds() (all []kind) {
	for _, s := range wholeShares {
		all = append(all, s.kind)
	}
	return all
}

// longShare is the share of faults that last longer than a lease, of those that may.
const longShare = 0.3

// mostApart is the longest pause between two faults. With less, no job lives until its first checkpoint: every fifth fault
// costs the guests of a host.
const mostApart = 4 * time.Second

// may gives the kinds of fault of a run of hosts.
func (c *chaos) may() []kind {
	if c.other != "" || len(c.only) > 0 {
		return c.only
	}
	return slices.DeleteFunc(wholeKinds(), func(k kind) bool { return slices.Contains(ofOtherVersions, k) })
}

// plannedWhole gives one fault of a plan; it depends only on the arguments.
func plannedWhole(seed uint64, number int, only []kind) fault {
	r := rand.New(rand.NewPCG(seed, uint64(number)))
	may := slices.DeleteFunc(slices.Clone(wholeShares), func(s wholeShare) bool { return len(only) > 0 && !slices.Contains(only, s.kind) })
	sum := 0
	for _, s := range may {
		sum += s.weight
	}
	at, chosen := r.IntN(sum), wholeShare{}
	for _, s := range may {
		if at -= s.weight; at < 0 {
			chosen = s
			break
		}
	}
	f := fault{Number: number, Kind: chosen.kind, After: time.Duration(r.Int64N(int64(mostApart))), Pick: r.Uint64()}
	least, most := chosen.least, chosen.most
	if chosen.long > 0 && r.Float64() < longShare {
		least, most = wholeLease, chosen.long
	}
	f.Lasts = least + time.Duration(r.Int64N(int64(most-least)))
	return f
}
