package health

import (
	"slices"
	"time"

	"pagurus/fleet"
)

// Expected is the time between two losses of a host before anything is known: a guess for borrowed machines. A loss ends all guests
// of a host without a warning: its power, its kernel or its network fails, or it is taken away.
const Expected = 3 * 24 * time.Hour

// mostLosses bounds what is kept of one host.
const mostLosses = 64

// Gone notes that a host is gone: that is a loss, unless it was being emptied, so that somebody knew.
func Gone(h fleet.Host, at time.Time) (fleet.Host, bool) {
	if h.Lost {
		return h, false
	}
	h = count(h, at)
	h.Lost = true
	return h, true
}

// Rebooted notes that a host was booted without having been gone, which its guests did not survive.
func Rebooted(h fleet.Host, at time.Time) fleet.Host {
	if h.Lost { // counted as it was gone
		return h
	}
	return count(h, at)
}

// Back notes that a host that was gone is heard.
func Back(h fleet.Host) (fleet.Host, bool) {
	was := h.Lost
	h.Lost = false
	return h, was
}

func count(h fleet.Host, at time.Time) fleet.Host {
	if h.State != fleet.HostUp {
		return h
	}
	h.Losses = append(slices.Clone(h.RecentLosses(at)), at)
	h.Losses = h.Losses[max(len(h.Losses)-mostLosses, 0):]
	return h
}

// Record is the losses of some hosts, and for how long they could have been lost.
type Record struct {
	Losses  int64
	Seconds int64 // of all hosts together
}

// Plus is a record of more hosts.
func (r Record) Plus(o Record) Record { return Record{r.Losses + o.Losses, r.Seconds + o.Seconds} }

// RecordOf is the record of one host.
func RecordOf(h *fleet.Host, at time.Time) Record {
	losses := h.RecentLosses(at)
	from, to := h.Since, at
	if joined := h.Credential.Joined; !joined.IsZero() && joined.Before(from) {
		from = joined
	}
	if len(losses) > 0 && losses[0].Before(from) {
		from = losses[0]
	}
	if h.Lost && len(losses) > 0 {
		to = losses[len(losses)-1]
	}
	if oldest := at.Add(-fleet.LossWindow); from.Before(oldest) {
		from = oldest
	}
	return Record{int64(len(losses)), max(int64(to.Sub(from)/time.Second), 0)}
}

// Between is how much time passes between two losses of a host. It is known from the host's own record, and, as long as that is
// short, from those of all hosts, of which it is one: they count as much as the time of one guess.
func Between(own, all Record) time.Duration {
	guess := Expected.Seconds()
	others := (guess + float64(all.Seconds-own.Seconds)) / float64(1+all.Losses-own.Losses)
	return time.Duration((guess + float64(own.Seconds)) / (guess/others + float64(own.Losses)) * float64(time.Second))
}
