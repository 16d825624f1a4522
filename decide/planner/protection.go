// This file says what protects what passes between a host and others.
//
// It decides nothing.

package planner

import (
	"fmt"
	"time"

	"pagurus/decide/desired"
	"pagurus/fleet"
)

// protections are a sentence for each pair of a host and another with which it has a job, or one for all.
func (e *explainer) protections(h fleet.Host) (out []string) {
	switch c := e.s.Cluster.Encryption; {
	case c == "":
		return nil
	case !c.On():
		return []string{fmt.Sprintf("What passes between it and other hosts is not encrypted: the controller runs with --%s %s.", fleet.EncryptionFlag, c)}
	}
	own := protectionOf(h)
	if own == "" {
		return []string{"It has no WireGuard device now, so nothing passes between it and other hosts."}
	}
	for _, p := range desired.Wanted(e.s, h.ID).WireGuard.Peers {
		there := protectionOf(e.s.Hosts[p.Host])
		if there == "" {
			out = append(out, fmt.Sprintf("%s has no WireGuard device now, so nothing passes between the two.", p.Host))
			continue
		}
		out = append(out, fmt.Sprintf("What passes between it and %s is encrypted: by %s here and %s there.", p.Host, own, there))
		out = append(out, pathTo(h, p)...)
	}
	if len(out) == 0 {
		out = append(out, fmt.Sprintf("What passes between it and hosts of the same job is encrypted: by %s here.", own))
	}
	return out
}

// pathTo says how a host reaches a peer in another network; nothing: they are in one.
func pathTo(h fleet.Host, p fleet.WireGuardPeer) []string {
	if len(p.Ways) == 0 {
		return nil
	}
	path := h.Facts.WireGuard.Paths[p.Host]
	took := ""
	if path.Latency > 0 {
		took = fmt.Sprintf(", and a round trip takes %s", path.Latency.Round(100*time.Microsecond))
	}
	switch {
	case path.Kind == fleet.DirectPath:
		return []string{fmt.Sprintf("It reaches %s directly, at %s%s.", p.Host, path.At, took)}
	case path.Kind == fleet.RelayedPath:
		return []string{fmt.Sprintf("It does not reach %s directly: %s relays what both encrypt%s.", p.Host, path.Relay, took)}
	case path.Relay != "":
		return []string{fmt.Sprintf("It does not reach %s directly, and nothing comes by %s, which should relay: UDP to the ports of its --%s has to pass.", p.Host, path.Relay, fleet.RelayPortFlag)}
	case path.NeedsRelay:
		return []string{fmt.Sprintf("It does not reach %s directly, and no host relays: start an agent, without --%s off, on a machine that both reach.", p.Host, fleet.RelayFlag)}
	}
	return []string{fmt.Sprintf("It looks for a way to %s.", p.Host)}
}

func protectionOf(h fleet.Host) fleet.Protection {
	if h.Facts.WireGuard == nil {
		return ""
	}
	return h.Facts.WireGuard.By
}
