// Package vacating decides what follows when a host is known to go away at a time: it is switched off, put to sleep, taken
// back by its cloud. It drains until then, and until no notice stands any more. Plan says which jobs' guests move first, which
// jobs are checkpointed by when, and which are lost.
//
// It must not know who saw a notice, nor how guests move. Its tests enumerate hosts' states, and compare plans with the best
// of all.
package vacating

import (
	"fmt"
	"time"

	"pagurus/decide/lifecycle"
	"pagurus/decide/placement"
	"pagurus/fleet"
)

// jitter is by how much the time of a notice may differ from the stored one. Hosts' times are converted with each report.
const jitter = 2 * time.Second

// Vacate empties a host for which a notice stands, and lets it take guests again when none does. A drain that a person asked for
// stays, and is hastened. One for an owner or for the host's health becomes one for the notice, since these may end before. The
// second result is false if nothing changed; a silent host never changes.
func Vacate(h fleet.Host, now, at time.Time) (fleet.Host, bool) {
	if !placement.Heard(h, now) || !Differs(&h) {
		return h, false
	}
	n, stands := h.Facts.Notices.Urgent(h.Waived)
	if !stands {
		h.EmptyBy = time.Time{}
		if len(h.Facts.Notices.Pending) == 0 {
			h.Waived = nil
		}
		if h.ForNotice {
			h, _ = lifecycle.Host(h, fleet.Undrain, at)
			h.ForNotice = false
		}
		return h, true
	}
	if h.EmptyBy.Sub(n.At).Abs() >= jitter {
		h.EmptyBy = n.At
	}
	if ours(&h) {
		h, _ = lifecycle.Host(h, fleet.Drain, at)
		h.ForNotice, h.ForOwner, h.ForHealth = true, false, false
	}
	return h, true
}

// ours reports whether the drain of a host is, or is to be, one for notices.
func ours(h *fleet.Host) bool { return h.State == fleet.HostUp || h.ForOwner || h.ForHealth }

// Differs reports whether Vacate would change a host that is heard.
func Differs(h *fleet.Host) bool {
	if h.Facts.Notices == nil {
		return false
	}
	n, stands := h.Facts.Notices.Urgent(h.Waived)
	if !stands {
		return h.ForNotice || !h.EmptyBy.IsZero() || len(h.Waived) > 0 && len(h.Facts.Notices.Pending) == 0
	}
	return h.EmptyBy.Sub(n.At).Abs() >= jitter || ours(h)
}

// Waive has a host take guests although notices stand: those that stand now count no more.
func Waive(h fleet.Host) fleet.Host {
	if h.Facts.Notices != nil {
		h.Waived = nil
		for _, n := range h.Facts.Notices.Pending {
			h.Waived = append(h.Waived, n.Key())
		}
	}
	h.ForNotice, h.EmptyBy = false, time.Time{}
	return h
}

// Why says why a host is emptied for a notice, and for which, as the part of a sentence; empty: it is not.
func Why(h fleet.Host) string {
	if h.EmptyBy.IsZero() {
		return ""
	}
	says, by := "it goes away", ""
	if n, stands := h.Facts.Notices.Urgent(h.Waived); stands {
		says, by = n.Says, fmt.Sprintf(" (notice by %s)", n.Kind)
	}
	return fmt.Sprintf("%s at %s UTC%s", says, h.EmptyBy.UTC().Format("15:04:05"), by)
}

// Names what a checkpoint is made for: a notice of a host.
func Names(h fleet.Host) string {
	n, _ := h.Facts.Notices.Urgent(h.Waived)
	return fmt.Sprintf("%s %s", h.ID, n.Key())
}
