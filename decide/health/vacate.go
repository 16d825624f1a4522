package health

import (
	"strings"
	"time"

	"pagurus/decide/lifecycle"
	"pagurus/decide/placement"
	"pagurus/fleet"
)

// Vacate empties a host that has a grave sign, and lets it take guests again when that is over. A drain that a person or
// an owner asked for stays. The second result is false if nothing changed; a silent host never changes.
func Vacate(h fleet.Host, now, at time.Time) (fleet.Host, bool) {
	if !placement.Heard(h, now) {
		return h, false
	}
	grave := h.Facts.Health.Grave(h.SignsSeen)
	switch {
	case grave && h.State == fleet.HostUp:
		h, _ = lifecycle.Host(h, fleet.Drain, at)
		h.ForHealth = true
		return h, true
	case h.ForHealth && !grave:
		h, _ = lifecycle.Host(h, fleet.Undrain, at)
		h.ForHealth = false
		return h, true
	}
	return h, false
}

// Why says why a host is emptied for its health, as the end of a sentence; empty: it is not.
func Why(h fleet.Host) string {
	if !h.ForHealth || h.Facts.Health == nil {
		return ""
	}
	var all []string
	for _, s := range h.Facts.Health.Signs {
		if s.Grave && s.Last.After(h.SignsSeen) {
			all = append(all, s.Sentence())
		}
	}
	return strings.Join(all, ", and ")
}
