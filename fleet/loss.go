package fleet

import "time"

// LossWindow is for how long the losses of a host count.
const LossWindow = 90 * 24 * time.Hour

// RecentLosses are when a host was lost, within LossWindow before a time, the oldest first.
func (h *Host) RecentLosses(at time.Time) []time.Time {
	for i, lost := range h.Losses {
		if at.Sub(lost) <= LossWindow {
			return h.Losses[i:]
		}
	}
	return nil
}
