package ways

import (
	"net/netip"
	"time"

	"pagurus/fleet"
)

// Try is what is known of one direct way to a peer.
type Try struct {
	At       netip.AddrPort
	Answered time.Time // when the peer last answered there; zero: never
	Took     time.Duration
	Silent   bool // lately nothing came inside while it was called there, whatever is answered
}

// Peer is what an agent knows of a peer in another network.
type Peer struct {
	Begun   time.Time // since when it is one
	Tries   []Try     // best first
	Relay   netip.AddrPort
	Relayed time.Time      // since when Relay is known
	Now     netip.AddrPort // where the device calls it; not valid: nowhere
	Heard   time.Time      // when the device last got something from it
	Unheard time.Time      // since when it is called where it is now and has sent nothing; zero: it has, or is not called
}

// Choice is what to do about a peer, and what to report.
type Choice struct {
	Call netip.AddrPort // where to call it from now on; not valid: as it is
	Kind fleet.PathKind // of the way that works
	// NeedsRelay: it is not reached directly. Dead: nor by the relay that is known.
	NeedsRelay, Dead bool
	// Silent: where it is called now checks are answered, and nothing comes inside.
	Silent bool
}

// The times after which something is believed.
const (
	// AliveFor is how long a way counts after an answer: several checks may be lost.
	AliveFor = 12 * time.Second
	// directFirst is how long a peer is tried directly before a relay is asked for.
	directFirst = 2 * time.Second
	// relayPatience is how long a relay has until something comes through it.
	relayPatience = 15 * time.Second
	// directPatience is how long a direct way has, although checks are answered: a device may be made there.
	directPatience = 20 * time.Second
	// SilentFor is how long a way or a relay by which nothing came is the last to be taken.
	SilentFor = 10 * time.Minute
)

// Choose decides how to reach a peer. A way that works is kept; a direct one is better than a relay.
func Choose(p Peer, now time.Time) Choice {
	alive := func(t Try) bool { return !t.Answered.IsZero() && now.Sub(t.Answered) < AliveFor }
	heard := !p.Heard.IsZero() && now.Sub(p.Heard) < AliveFor
	silent := !p.Unheard.IsZero() && now.Sub(p.Unheard) >= directPatience
	fell := false
	var best Try
	direct := false // it is called in one of the ways
	for _, t := range p.Tries {
		direct = direct || t.At == p.Now
		switch {
		case !alive(t) || t.Silent:
		case t.At == p.Now && silent:
			fell = true
		case t.At == p.Now:
			return Choice{Kind: fleet.DirectPath}
		case !best.At.IsValid() || t.Took < best.Took:
			best = t
		}
	}
	switch {
	case best.At.IsValid():
		return Choice{Call: best.At, Kind: fleet.DirectPath, Silent: fell}
	case direct && heard: // where much passes, checks may be lost
		return Choice{Kind: fleet.DirectPath}
	}
	c := Choice{NeedsRelay: now.Sub(p.Begun) >= directFirst, Silent: fell}
	switch {
	case !p.Relay.IsValid() || !c.NeedsRelay:
		return c
	case p.Now != p.Relay:
		c.Call = p.Relay
	case heard:
		c.Kind = fleet.RelayedPath
	}
	c.Dead = !heard && now.Sub(p.Relayed) >= relayPatience
	return c
}
