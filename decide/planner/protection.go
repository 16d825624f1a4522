// This file says what protects what passes between a host and others.
//
// It decides nothing.

package planner

import (
	"fmt"

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
	}
	if len(out) == 0 {
		out = append(out, fmt.Sprintf("What passes between it and hosts of the same job is encrypted: by %s here.", own))
	}
	return out
}

func protectionOf(h fleet.Host) fleet.Protection {
	if h.Facts.WireGuard == nil {
		return ""
	}
	return h.Facts.WireGuard.By
}
