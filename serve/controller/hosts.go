package controller

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"pagurus/decide/desired"
	"pagurus/decide/planner"
	"pagurus/decide/ways"
	"pagurus/fleet"
	"pagurus/serve/wire"
)

// probeLimit is how long the host's present agent has to answer before a new one with the
// same host name replaces it.
const probeLimit = 2 * time.Second

// How many messages of a host are heard a second on average, and at once; more wait at the host. It says something once a second, and
// reports on each order.
const (
	heardASecond = 200
	heardAtOnce  = 2000
)

// fewHosts are told at once of each that attaches; more of them with the next tick.
const fewHosts = 200

// host is a host with a connected agent.
type host struct {
	session *wire.HostSession
	wanted  fleet.Wanted // as last sent
	apart   bool         // it followed from the host's own record and the cluster's, which have not changed since
}

// ended is a context for calls that must not wait.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// Attach is one agent's session: what is wanted at once, then what is pending,
// then whatever follows from what it and others say.
func (c *Controller) Attach(ctx context.Context, by wire.Peer, hello wire.Hello, s *wire.HostSession) error {
	if err := c.admit(ctx, by, hello, s); err != nil {
		return err
	}
	defer func() {
		// After Run has ended this fails, and is not needed.
		_ = c.do(ctx, forHost(hello.Host), func(context.Context) { c.detach(hello.Host, s) })
	}()
	pace := rate.NewLimiter(heardASecond, heardAtOnce)
	for {
		if pace.Wait(ctx) != nil {
			return nil
		}
		up, err := s.Receive(ctx)
		if err != nil {
			return nil // the agent left; not an error
		}
		if up.Reply != nil {
			c.answered(hello.Host, *up.Reply)
			continue
		}
		var bad error
		if err := c.do(ctx, forHost(hello.Host), func(ctx context.Context) { bad = c.handleMessage(ctx, said{by, hello.Host, s, up}) }); err != nil {
			return nil
		}
		if bad != nil {
			c.Log.Warn("ended an agent's session", "host", hello.Host, "cause", bad)
			return bad
		}
	}
}

// admit makes s the session of the host, unless the host has one that lives.
func (c *Controller) admit(ctx context.Context, by wire.Peer, hello wire.Hello, s *wire.HostSession) error {
	for {
		var before *wire.HostSession
		var refused error
		if err := c.do(ctx, forHost(hello.Host), func(ctx context.Context) { before, refused = c.join(ctx, by, hello, s) }); err != nil {
			return err
		}
		if before == nil {
			if refused != nil {
				c.Log.Warn("refused an agent", "host", hello.Host, "cause", refused)
			}
			return refused
		}
		probing, cancel := context.WithTimeout(ctx, probeLimit)
		err := before.Probe(probing)
		cancel()
		if err == nil {
			return fmt.Errorf("another agent already runs as %s: stop it, or start this one with another --%s", hello.Host, fleet.HostFlag)
		}
		before.End("another agent took this host's place, which did not answer")
		// Only this goroutine removes it while its own still reads.
		if err := c.do(ctx, forHost(hello.Host), func(context.Context) { c.detach(hello.Host, before) }); err != nil {
			return err
		}
	}
}

// join lets the agent in if its host is free; else before is who has it.
func (c *Controller) join(ctx context.Context, by wire.Peer, hello wire.Hello, s *wire.HostSession) (before *wire.HostSession, refused error) {
	if hello.Cluster != "" && hello.Cluster != c.snap().Cluster.ID {
		return nil, fmt.Errorf("%s belongs to cluster %s and this is %s: use the controller of its cluster, or start the agent with an empty --%s folder", hello.Host, hello.Cluster, c.snap().Cluster.ID, fleet.RunFlag)
	}
	hello.Facts.From = by.From // never what the agent says
	if err := c.believable(by, hello.Host, hello.Facts); err != nil {
		return nil, err
	}
	if h := c.hosts[hello.Host]; h != nil {
		return h.session, nil
	}
	if _, known := c.snap().Hosts[hello.Host]; !known {
		_, err := c.step(ctx, fleet.Observation{At: now(), Called: hello.Host})
		c.noteStoreError(err)
		if err != nil {
			return nil, err
		}
	}
	c.Log.Info("agent attached", "host", hello.Host)
	h := &host{session: s}
	c.hosts[hello.Host] = h
	c.learn(hello.Host, hello.Facts)
	if c.snap().Cluster.Restored != nil { // what the host runs may be younger than the backup
		if _, err := c.step(ctx, fleet.Observation{At: now(), Attached: hello.Host}); err != nil {
			c.noteStoreError(err)
			c.detach(hello.Host, s)
			return nil, err
		}
		c.nameUnrecorded(hello)
	}
	h.wanted = desired.Wanted(c.snap(), hello.Host)
	c.sendToHost(hello.Host, wire.Down{Wanted: &h.wanted})
	c.sendPending(hello.Host)
	c.renewLease(ctx, hello.Host, hello.Facts.Lease)
	if len(c.hosts) > fewHosts { // thousands come back when a controller begins: the others, and watchers, hear of all at once
		c.stale, c.changed = true, true
		return nil, nil
	}
	c.sendWanted() // other hosts may need its address
	c.publish()
	return nil, nil
}

// Refused keeps why a host's agent was not let in, for people.
func (c *Controller) Refused(ctx context.Context, id fleet.HostID, why string) {
	_ = c.do(ctx, forHost(id), func(context.Context) { // the agent tries again
		h, known := c.snap().Hosts[id]
		if !known || c.hosts[id] != nil || slices.Equal(h.Facts.Troubles, []string{why}) {
			return
		}
		c.Log.Warn("refused an agent", "host", id, "cause", why)
		h.Facts.Troubles = []string{why}
		c.loop.Index.Learn(id, h.Facts)
		c.publish()
	})
}

// nameUnrecorded logs the guests of a host that it is about to be told to end because the store
// was restored from a backup that is older than they are.
func (c *Controller) nameUnrecorded(hello wire.Hello) {
	for id := range hello.Facts.Guests {
		if g, known := c.snap().Guests[id]; !known || g.State.Ended() {
			c.Log.Warn("a guest on a host is not in the state that was restored, and is ended there", "guest", id, "host", hello.Host, "cause", g.Cause)
		}
	}
}

func (c *Controller) detach(id fleet.HostID, s *wire.HostSession) {
	if h := c.hosts[id]; h == nil || h.session != s {
		return
	}
	c.Log.Info("agent left", "host", id)
	delete(c.hosts, id)
	if h, ok := c.snap().Hosts[id]; ok {
		h.Facts.Connected = false
		c.loop.Index.Learn(id, h.Facts)
		c.stale = c.stale || h.Facts.Site != "" || h.Facts.WireGuard != nil && len(h.Facts.WireGuard.Relayed) > 0
	}
	c.publish()
}

// said is a message with who sent it.
type said struct {
	by   wire.Peer
	host fleet.HostID
	s    *wire.HostSession
	wire.Up
}

// handleMessage handles one message. An error is why the session has to end.
func (c *Controller) handleMessage(ctx context.Context, up said) error {
	id := up.host
	if h := c.hosts[id]; h == nil || h.session != up.s {
		return errors.New("another agent took this host's place")
	}
	switch {
	case up.Hello != nil:
		return errors.New("a session begins with one hello; this was a second")
	case up.Facts != nil:
		up.Facts.From = up.by.From // never what the agent says
		if err := c.believable(up.by, id, *up.Facts); err != nil {
			return err
		}
		if c.learn(id, *up.Facts) {
			c.sendWanted()
		}
		c.renewLease(ctx, id, up.Facts.Lease)
		c.heed(ctx, id, *up.Facts)
		if len(up.Facts.Copies) > 0 && time.Since(c.told) >= copiesEvery {
			c.publish()
		}
	case up.Report != nil:
		r := *up.Report
		if err := sensible(id, r); err != nil {
			return err
		}
		r.At, r.Order = now(), c.born(r.Order)
		c.lastWords(r)
		r.Traces = nil // for the spool, not for the planner
		c.enter(r)
	}
	return nil
}

// believable says why facts of a host are not taken.
func (c *Controller) believable(by wire.Peer, id fleet.HostID, f fleet.Facts) error {
	if err := c.claims(by, id, f); err != nil {
		return err
	}
	return possible(id, f)
}

// The most that a host can have. What it says is kept, shown to everybody, and gone through at every decision.
const (
	mostGuests   = 4096
	mostTroubles = 256
	mostNodes    = 1024
	mostCPUs     = 1 << 16
	mostBytes    = 1 << 56
	mostPaths    = 4096     // to other hosts, and relayed between two
	mostMapped   = 64       // a host's port behind NAT has one address for each router that there is
	mostText     = 16 << 10 // bytes of anything that is said: a processor's features take 3 KiB
	mostName     = 255      // bytes of what names something
)

// possible rejects facts that are of no machine: others' room is added up with this one's.
func possible(id fleet.HostID, f fleet.Facts) error {
	nodes, cores := 0, 0
	if f.Topology != nil {
		nodes = len(f.Topology.Nodes)
		for _, n := range f.Topology.Nodes {
			cores += len(n.Cores)
		}
	}
	inside := func(v, most float64) bool { return v >= -most && v <= most } // and no NaN; what is measured may be a little below nothing
	switch {
	case len(f.Guests) > mostGuests, len(f.Copies) > mostGuests, len(f.Shared) > mostGuests:
		return fmt.Errorf("%s says that it has %d guests, %d copies and %d directories, and at most %d of each can be", id, len(f.Guests), len(f.Copies), len(f.Shared), mostGuests)
	case f.WireGuard != nil && (len(f.WireGuard.Paths) > mostPaths || len(f.WireGuard.Relayed) > mostPaths || len(f.WireGuard.Mapped) > mostMapped):
		return fmt.Errorf("%s says that it has %d paths, relays at %d ports, and is seen at %d addresses", id, len(f.WireGuard.Paths), len(f.WireGuard.Relayed), len(f.WireGuard.Mapped))
	case f.Vault != nil && (f.Vault.FreeBytes < 0 || f.Vault.FreeBytes > mostBytes || f.Vault.UsedBytes < 0 || f.Vault.UsedBytes > mostBytes || f.Vault.EachBytes < 0 || f.Vault.EachBytes > mostBytes):
		return fmt.Errorf("%s says that its vault has %d bytes, and %d free, and %d for each user", id, f.Vault.UsedBytes, f.Vault.FreeBytes, f.Vault.EachBytes)
	case len(f.Troubles) > mostTroubles:
		return fmt.Errorf("%s says that it has %d troubles, and at most %d are taken", id, len(f.Troubles), mostTroubles)
	case fleet.RefusedLease(f.Lease.Length) != "", fleet.RefusedLease(f.Lease.Held) != "":
		return fmt.Errorf("%s says that it has a lease of %s and wants one of %s: %s", id, f.Lease.Held, f.Lease.Length, fleet.RefusedLease(-1))
	case nodes > mostNodes, cores > mostCPUs:
		return fmt.Errorf("%s says that it has %d nodes and %d cores", id, nodes, cores)
	case f.Capacity.CPUs < 0 || f.Capacity.CPUs > mostCPUs, !inside(f.CPULimit, mostCPUs), !inside(f.LoadCPUs, mostCPUs):
		return fmt.Errorf("%s says that it has %d CPUs, of which guests may use %g and use %g", id, f.Capacity.CPUs, f.CPULimit, f.LoadCPUs)
	case f.Capacity.MemoryBytes < 0 || f.Capacity.MemoryBytes > mostBytes, !inside(float64(f.MemoryInUse), mostBytes):
		return fmt.Errorf("%s says that it has %d bytes of memory, of which guests use %d", id, f.Capacity.MemoryBytes, f.MemoryInUse)
	}
	if p := f.Power; p != nil && (!inside(p.Joules, mostBytes) || p.Worked < 0) {
		return fmt.Errorf("%s says that it used %g J, and that its CPUs worked for %s", id, p.Joules, p.Worked)
	}
	for g, of := range f.Guests {
		if !inside(of.CPUs, mostCPUs) || !inside(float64(of.ResidentBytes), mostBytes) || !inside(float64(of.ReclaimedBytes), mostBytes) || of.CPUTime < 0 {
			return fmt.Errorf("%s says that guest %s has %d bytes of memory and %g CPUs", id, g, of.ResidentBytes, of.CPUs)
		}
	}
	if many := talkative(reflect.ValueOf(f)); many > 0 {
		return fmt.Errorf("%s says something of %d bytes or parts, which is more than a machine has to say at once", id, many)
	}
	return nil
}

// talkative is the length of a text, name or list in facts that is too long, wherever it is; 0: none is.
func talkative(v reflect.Value) int {
	switch v.Kind() {
	case reflect.String:
		if v.Len() > mostText {
			return v.Len()
		}
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return talkative(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() { // a time has none
				if n := talkative(v.Field(i)); n > 0 {
					return n
				}
			}
		}
	case reflect.Map:
		for of := v.MapRange(); of.Next(); {
			if of.Key().Kind() == reflect.String && of.Key().Len() > mostName {
				return of.Key().Len()
			}
			if n := talkative(of.Value()); n > 0 {
				return n
			}
		}
	case reflect.Slice, reflect.Array:
		if v.Len() > mostCPUs {
			return v.Len()
		}
		for i := range v.Len() {
			if n := talkative(v.Index(i)); n > 0 {
				return n
			}
		}
	}
	return 0
}

// sensible rejects reports that no working agent sends.
func sensible(id fleet.HostID, r fleet.Report) error {
	if r.Order.Host != id {
		return fmt.Errorf("%s reports on an order to %q", id, r.Order.Host)
	}
	switch r.Outcome {
	case fleet.Done, fleet.Failed, fleet.Unknown:
		return nil
	case fleet.Gone:
		if r.Order.Verb == fleet.Switch {
			return nil
		}
	}
	return fmt.Errorf("%s reports the outcome %q of an order to %s, which is invalid", id, r.Outcome, r.Order.Verb)
}

// enter queues a report. An agent sends it once, so it must not be lost.
func (c *Controller) enter(r fleet.Report) {
	for i, h := range c.heard {
		if h.Order == r.Order {
			c.heard[i] = r
			return
		}
	}
	c.heard = append(c.heard, r)
}

// learn stores facts in memory and reports whether other hosts need the change.
func (c *Controller) learn(id fleet.HostID, f fleet.Facts) bool {
	h := c.snap().Hosts[id]
	before := h.Facts
	f = c.rekeyed.admitKey(h, f, now())
	moved := before.Address != f.Address || wireGuardEnd(before) != wireGuardEnd(f) || ways.Differ(before, f)
	f.SeenAt, f.Connected = now(), true
	if behind := fleet.Behind(fleet.Speaker{Name: "its agent", Protocol: f.Protocol}, fleet.Speaker{Name: "the controller", Protocol: fleet.Protocol()}); behind != "" {
		f.Troubles = append(f.Troubles, behind)
	}
	if f.Owner != nil {
		owner := f.Owner.By(f.SeenAt)
		f.Owner = &owner
	}
	c.countUsage(id, before, f)
	for g, of := range f.Guests {
		if of.Said != nil {
			said := of.Said.Bounded()
			said.Marks = said.Marks.By(f.SeenAt)
			of.Said = &said
			f.Guests[g] = of
		}
	}
	f.Health = c.withRemarks(id, f)
	if f.Notices != nil {
		notices := f.Notices.By(f.SeenAt)
		f.Notices = &notices
	}
	c.loop.Index.Learn(id, desired.Barred(f, c.snap().Cluster))
	c.changed = true
	return moved
}

// wireGuardEnd is what other hosts must know of what a host said about WireGuard.
func wireGuardEnd(f fleet.Facts) (e fleet.WireGuardEnd) {
	if f.WireGuard != nil {
		e = f.WireGuard.WireGuardEnd
	}
	return e
}

// sendWanted sends every connected host what is wanted on it, if that has changed. Of thousands of hosts most have no part in what
// changes, and are not looked at.
func (c *Controller) sendWanted() {
	if len(c.hosts) == 0 {
		return
	}
	all := desired.New(c.snap())
	c.toldOf = c.snap().Cluster
	for id, h := range c.hosts {
		apart := all.Apart(id)
		if apart && h.apart {
			continue
		}
		h.apart = apart
		w := all.Wanted(id)
		if same(w, h.wanted) {
			continue
		}
		h.wanted = w
		c.sendToHost(id, wire.Down{Wanted: &w})
	}
}

// touched notes the hosts whose own record a change has. Of the cluster's record they are told its name, and whether it encrypts.
func (c *Controller) touched(change fleet.Changeset) {
	for _, of := range change.Hosts {
		if h := c.hosts[of.ID]; h != nil {
			h.apart = false
		}
	}
	for _, id := range change.GoneHosts {
		if h := c.hosts[id]; h != nil {
			h.apart = false
		}
	}
	if is := change.Cluster; is != nil && (is.ID != c.toldOf.ID || is.Encryption != c.toldOf.Encryption) {
		c.touchAll()
	}
}

func (c *Controller) touchAll() {
	for _, h := range c.hosts {
		h.apart = false
	}
}

// same compares all but the revision: a host need not get changes that do not concern it.
func same(a, b fleet.Wanted) bool {
	a.Revision, b.Revision = 0, 0
	return reflect.DeepEqual(a, b)
}

// send gives orders to connected hosts. Others get them when they attach, since the orders
// are pending.
func (c *Controller) send(orders []fleet.Order) {
	for _, o := range orders {
		if c.hosts[o.Host] == nil {
			continue
		}
		t := planner.Task(c.snap(), o)
		if o.Verb == fleet.Run || o.Verb == fleet.End {
			t.Have = c.spool.have(o.Job)
		}
		c.sendToHost(o.Host, wire.Down{Task: &t})
	}
}

func (c *Controller) sendPending(id fleet.HostID) {
	var own []fleet.Order
	for _, o := range planner.Pending(c.snap()) {
		if o.Host == id {
			own = append(own, o)
		}
	}
	c.send(own)
}

// sendToHost queues a message for a host's agent. An agent that does not take it is
// disconnected: it comes back and gets everything again.
func (c *Controller) sendToHost(id fleet.HostID, d wire.Down) {
	h := c.hosts[id]
	if err := h.session.Send(ended, d); err != nil {
		go h.session.End("the agent does not take its messages")
	}
}
