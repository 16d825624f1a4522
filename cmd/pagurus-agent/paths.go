package main

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"math/bits"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"pagurus/act/wireguard"
	"pagurus/decide/ways"
	"pagurus/fleet"
)

// paths are this host's to peers in other networks: it looks for ways, has the device take the best, and measures it.
type paths struct {
	device *wireguard.Device
	checks *wireguard.Checks
	own    func() netip.AddrPort // this host's own address, with the device's port
	server string                // the controller, host:port, which says how it sees that; empty: it is this machine
	log    *slog.Logger
	over   chan struct{}
	ctx    context.Context // ends with close
	stop   func()
	ended  sync.WaitGroup

	sinking sync.WaitGroup // what serves sinks

	mu   sync.Mutex
	far  map[string]*far // by public key
	echo uint16
	own6 netip.Addr // this host's address inside
	sink *wireguard.Sink
	made int // which link the sink is on
}

// far is a peer in another network.
type far struct {
	peer    fleet.WireGuardPeer
	relay   netip.AddrPort
	relayed time.Time // since when it is this one
	called  time.Time
	heard   time.Time
	unheard time.Time                    // since when it is called where it is now, and has sent nothing
	silent  map[netip.AddrPort]time.Time // where it answers checks, and nothing came inside
	dead    map[fleet.HostID]time.Time   // relays by which nothing came
	seen    wireguard.Seen               // at the last turn
	counted wireguard.Seen               // a while ago, to count bytes
	since   time.Time                    // of counted
	most    time.Time                    // when path.BytesPerSecond was counted
	burst   time.Time                    // of the last one
	path    fleet.Path
	echoes  uint32 // the last ones; a set bit is one that was lost
	asked   int    // how many of them there are
}

// How often things are done.
const (
	pathTurn     = 250 * time.Millisecond
	echoEvery    = 2 * time.Second
	echoLimit    = time.Second
	serverEvery  = 20 * time.Second // within what NAT remembers
	serverSeldom = time.Minute      // without NAT
	callAgain    = 5 * time.Second
	countEvery   = time.Second
	mostFor      = 10 * time.Minute // how long the most bytes a second count
	lastEchoes   = 32
	mostWays     = 8 // to a peer
	burstEvery   = 10 * time.Minute
	burstTurn    = 5 * time.Second
	burstEnd     = 10 * time.Second
	telling      = 64 << 10 // bytes a second: less says nothing of what could pass
	enough       = 1 << 20  // bytes a second: where so much passed lately, nothing is sent only to measure
)

func openPaths(device *wireguard.Device, own func() netip.AddrPort, server string, log *slog.Logger) (*paths, error) {
	checks, err := device.OpenChecks()
	if err != nil {
		return nil, err
	}
	p := &paths{device: device, checks: checks, own: own, server: server, log: log, over: make(chan struct{}), far: map[string]*far{}}
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.also(pathTurn, p.turn)
	p.also(echoEvery, p.measure)
	p.also(burstTurn, p.measureBandwidth)
	p.ended.Go(p.askServer)
	return p, nil
}

// also has something else done so often, until the end.
func (p *paths) also(every time.Duration, do func()) { p.ended.Go(func() { p.repeat(every, do) }) }

func (p *paths) close() error {
	close(p.over)
	p.stop()
	p.ended.Wait()
	if p.sink != nil {
		_ = p.sink.Close()
	}
	p.sinking.Wait()
	return p.checks.Close()
}

func (p *paths) repeat(every time.Duration, do func()) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-p.over:
			return
		case <-tick.C:
			do()
		}
	}
}

// askServer asks the controller how it sees the device's port, now and then.
func (p *paths) askServer() {
	for wait := time.Second; ; {
		for _, network := range []string{"udp4", "udp6"} {
			if at, err := net.ResolveUDPAddr(network, p.server); p.server != "" && err == nil {
				to := at.AddrPort()
				_ = p.checks.AskServer(netip.AddrPortFrom(to.Addr().Unmap(), to.Port())) // asked again soon
			}
		}
		select {
		case <-p.over:
			return
		case <-time.After(wait):
		}
		mapped := p.checks.Mapped()
		switch {
		case len(mapped) == 0:
			wait = min(2*wait, serverEvery)
		case mapped[0] == p.own():
			wait = serverSeldom
		default:
			wait = serverEvery
		}
	}
}

// want says which peers there are. Those in this host's own network need nothing.
func (p *paths) want(w *fleet.WireGuard) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	seek, relays, stay := map[string][]netip.AddrPort{}, map[string][]netip.AddrPort{}, map[string]bool{}
	if w != nil {
		p.own6 = w.Address
		for _, peer := range w.Peers {
			if len(peer.Ways) == 0 {
				continue
			}
			stay[peer.Key] = true
			f := p.far[peer.Key]
			if f == nil {
				f = &far{silent: map[netip.AddrPort]time.Time{}, dead: map[fleet.HostID]time.Time{}}
				p.far[peer.Key] = f
			}
			f.peer = peer
			relay := netip.AddrPort{}
			if peer.Relay != nil {
				relay, _ = netip.ParseAddrPort(peer.Relay.Endpoint)
			}
			if !ways.Usable(relay.Addr()) {
				relay = netip.AddrPort{}
			}
			if relay.IsValid() {
				relays[peer.Relay.Key] = append(relays[peer.Relay.Key], relay)
			}
			if relay != f.relay {
				f.relay, f.relayed = relay, time.Now()
			}
			for _, text := range peer.Ways {
				if at, err := netip.ParseAddrPort(text); err == nil && ways.Usable(at.Addr()) && len(seek[peer.Key]) < mostWays {
					seek[peer.Key] = append(seek[peer.Key], at)
				}
			}
		}
	}
	for key := range p.far {
		if !stay[key] {
			delete(p.far, key)
		}
	}
	return p.checks.Seek(seek, relays)
}

// turn looks at every peer, and has the device call it elsewhere where that is better.
func (p *paths) turn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.far) == 0 {
		return
	}
	seen, err := p.device.Seen()
	if err != nil {
		return // the device is made again, and then there is one
	}
	now := time.Now()
	for key, f := range p.far {
		is, there := seen[key]
		if !there {
			continue
		}
		f.count(is, now)
		known, since := p.checks.Known(key)
		q := ways.Peer{Begun: since, Relay: f.relay, Relayed: f.relayed, Now: is.Endpoint, Heard: f.heard, Unheard: f.unheard}
		f.forget(now)
		for _, k := range known {
			_, silent := f.silent[k.At]
			q.Tries = append(q.Tries, ways.Try{At: k.At, Answered: k.Answered, Took: k.Took, Silent: silent})
		}
		p.followChoice(f, ways.Choose(q, now), now)
	}
}

// followChoice does what was chosen, and notes it.
func (p *paths) followChoice(f *far, c ways.Choice, now time.Time) {
	at := f.seen.Endpoint
	if c.Call.IsValid() && now.Sub(f.called) >= callAgain {
		f.called = now
		if err := p.device.Call(f.peer, c.Call, c.Call == f.relay); err != nil {
			p.log.Warn("a peer cannot be called elsewhere", "host", f.peer.Host, "cause", err)
		} else {
			at = c.Call
		}
	}
	f.remember(c, now)
	was := f.path
	f.path.Kind, f.path.NeedsRelay, f.path.Dead, f.path.At, f.path.Relay = c.Kind, c.NeedsRelay, c.Dead, "", ""
	if at.IsValid() {
		f.path.At = at.String()
	}
	if f.peer.Relay != nil && c.NeedsRelay {
		f.path.Relay = f.peer.Relay.Host
	}
	if f.path.Kind != was.Kind || f.path.Relay != was.Relay {
		f.path.Since, f.echoes, f.asked, f.path.Latency, f.path.Lost = now.UTC(), 0, 0, 0, 0
		p.log.Info("the path to a peer in another network", "host", f.peer.Host, "is", string(f.path.Kind), "at", f.path.At, "relay", f.path.Relay, "was", string(was.Kind))
	}
}

// remember notes by which ways nothing came, so that others are tried before them.
func (f *far) remember(c ways.Choice, now time.Time) {
	if c.Silent {
		f.silent[f.seen.Endpoint] = now
	}
	if c.Dead && f.peer.Relay != nil {
		if host := f.peer.Relay.Host; f.dead[host].Before(f.relayed) { // once each time that it is the one
			f.dead[host] = now
		}
	}
	f.path.Silent = slices.SortedFunc(maps.Keys(f.dead), func(a, b fleet.HostID) int {
		return cmp.Or(f.dead[a].Compare(f.dead[b]), cmp.Compare(a, b))
	})
}

// forget gives what was silent another try after a while.
func (f *far) forget(now time.Time) {
	old := func(since time.Time) bool { return now.Sub(since) > ways.SilentFor }
	maps.DeleteFunc(f.silent, func(_ netip.AddrPort, since time.Time) bool { return old(since) })
	maps.DeleteFunc(f.dead, func(_ fleet.HostID, since time.Time) bool { return old(since) })
}

// count notes what passed.
func (f *far) count(is wireguard.Seen, now time.Time) {
	switch {
	case is.Received > f.seen.Received:
		f.heard, f.unheard = now, time.Time{}
		delete(f.silent, is.Endpoint)
		if f.peer.Relay != nil && is.Endpoint == f.relay {
			delete(f.dead, f.peer.Relay.Host)
		}
	case is.Endpoint != f.seen.Endpoint:
		f.unheard = time.Time{}
	case is.Sent > f.seen.Sent && f.unheard.IsZero():
		f.unheard = now
	}
	f.seen = is
	passed := now.Sub(f.since)
	if passed < countEvery {
		return
	}
	bytes := is.Sent - f.counted.Sent
	if !f.since.IsZero() && bytes >= 0 {
		rate := float64(bytes) / passed.Seconds()
		if now.Sub(f.most) > mostFor {
			f.path.BytesPerSecond = 0
		}
		if rate > max(f.path.BytesPerSecond, telling) {
			f.path.BytesPerSecond, f.most = rate, now
		}
	}
	f.counted, f.since = is, now
}

// measure has every peer that is reached echo once.
func (p *paths) measure() {
	p.mu.Lock()
	var to []netip.Addr
	for _, f := range p.far {
		if f.seen.Endpoint.IsValid() {
			to = append(to, f.peer.Address)
		}
	}
	p.echo++
	number := p.echo
	p.mu.Unlock()
	if len(to) == 0 {
		return
	}
	took, err := p.device.Echo(to, number, echoLimit)
	if err != nil {
		return // without a device
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.far {
		if f.seen.Endpoint.IsValid() {
			each, came := took[f.peer.Address]
			f.noteEcho(each, came)
		}
	}
}

// measureBandwidth has one peer take in a burst, if it is time and nothing else has shown what passes.
func (p *paths) measureBandwidth() {
	p.mu.Lock()
	p.keepSink()
	now := time.Now()
	var due *far
	for _, f := range p.far {
		shown := f.path.BytesPerSecond >= enough && now.Sub(f.most) < mostFor
		if f.path.Kind != "" && f.path.Latency > 0 && !shown && now.Sub(f.burst) >= burstEvery && (due == nil || f.burst.Before(due.burst)) {
			due = f
		}
	}
	if due != nil {
		due.burst = now
	}
	p.mu.Unlock()
	if due == nil {
		return
	}
	ctx, stop := context.WithTimeout(p.ctx, burstEnd)
	defer stop()
	rate, err := p.device.Burst(ctx, due.peer.Address)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err != nil: // sooner than usual, as the peer may only begin
		due.burst = now.Add(time.Minute - burstEvery)
	case rate > due.path.BytesPerSecond:
		due.path.BytesPerSecond, due.most = rate, time.Now()
	}
}

// keepSink takes in what peers send to measure, while there are some.
func (p *paths) keepSink() {
	link, err := net.InterfaceByName(p.device.Name())
	if p.sink != nil && (err != nil || link.Index != p.made || len(p.far) == 0) {
		_ = p.sink.Close()
		p.sink = nil
	}
	if err != nil || p.sink != nil || len(p.far) == 0 {
		return
	}
	sink, err := p.device.OpenSink(p.own6)
	if err != nil {
		return // the device is being made
	}
	p.sink, p.made = sink, link.Index
	p.sinking.Go(sink.Serve)
}

// noteEcho smooths as TCP does (RFC 6298).
func (f *far) noteEcho(took time.Duration, came bool) {
	f.echoes <<= 1
	f.asked = min(f.asked+1, lastEchoes)
	if !came {
		f.echoes |= 1
	}
	f.path.Lost = float64(bits.OnesCount32(f.echoes)) / float64(f.asked)
	if !came {
		return
	}
	const part = 8
	if f.path.Latency == 0 {
		f.path.Latency = took
	}
	f.path.Latency += (took - f.path.Latency) / part
}

// report is what the controller hears.
func (p *paths) report(f *fleet.WireGuardFacts) {
	for _, at := range p.checks.Mapped() {
		f.Mapped = append(f.Mapped, at.String())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, each := range p.far {
		if f.Paths == nil {
			f.Paths = map[fleet.HostID]fleet.Path{}
		}
		f.Paths[each.peer.Host] = each.path
	}
}
