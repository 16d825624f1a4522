package health

import (
	"time"

	"pagurus/fleet"
)

const (
	// remarkCounts is how long a program's remark counts.
	remarkCounts = time.Hour
	// leastRemarked is how many guests of a host have to be ill for a sign, and leastUsers of how many users for a grave one:
	// nobody empties a host alone.
	leastRemarked = 2
	leastUsers    = 2
)

// Remarked is that the programs of a guest said that something is ill.
type Remarked struct {
	User uint32
	At   time.Time
}

// mostRemarked bounds what is kept of a host.
const mostRemarked = 64

// Book is what programs said on which host, also of guests that have left it. Nobody stores it: a controller that begins to lead hears
// what is said then. The zero Book is not ready.
type Book map[fleet.HostID]map[fleet.GuestID]Remarked

// NoteRemark takes what a guest's programs said last while it was on a host; ill: that something is.
func (b Book) NoteRemark(host fleet.HostID, guest fleet.GuestID, r Remarked, ill bool) {
	if !ill {
		delete(b[host], guest)
		return
	}
	if b[host] == nil {
		b[host] = map[fleet.GuestID]Remarked{}
	}
	if _, known := b[host][guest]; known || len(b[host]) < mostRemarked {
		b[host][guest] = r
	}
}

// Of is what counts of a host. What does not count any longer is forgotten.
func (b Book) Of(host fleet.HostID, at time.Time) (out []Remarked) {
	for g, r := range b[host] {
		if at.Sub(r.At) >= remarkCounts {
			delete(b[host], g)
		} else {
			out = append(out, r)
		}
	}
	if len(b[host]) == 0 {
		delete(b, host)
	}
	return out
}

// Remarks adds to what a host says of its health what the programs of its guests say, a remark of each. It is one sign, and grave only if there is
// another sign: programs are ill for many reasons.
func Remarks(h *fleet.Health, all []Remarked, at time.Time) *fleet.Health {
	if h == nil || h.Policy == fleet.HealthOff {
		return h
	}
	sign := fleet.Sign{Kind: fleet.ProgramRemarks, Grave: len(h.Signs) > 0}
	users := map[uint32]bool{}
	for _, r := range all {
		if at.Sub(r.At) >= remarkCounts {
			continue
		}
		users[r.User] = true
		sign.Count++
		if sign.Since.IsZero() || r.At.Before(sign.Since) {
			sign.Since = r.At
		}
		if r.At.After(sign.Last) {
			sign.Last = r.At
		}
	}
	if sign.Count < leastRemarked {
		return h
	}
	sign.Grave = sign.Grave && len(users) >= leastUsers
	out := *h
	out.Signs = append(out.Signs[:len(out.Signs):len(out.Signs)], sign)
	return &out
}
