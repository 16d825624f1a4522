package api

import (
	"cmp"
	"encoding/json"
	"reflect"
	"slices"

	"pagurus/fleet"
	"pagurus/show/view"
)

// thing is what an event is about.
type thing struct{ kind, id string }

// change is the newest row of a thing, as JSON; nil: it is gone.
type change struct {
	of  thing
	row []byte
}

// told is what was last told of the things of a kind. Rows are compared as they are, and only what differs is encoded: an agent reports
// every second, and most of what it says is as before.
type told[K ~string, R any] struct {
	kind  string
	rows  map[K]*toldRow[R]
	round int
}

type toldRow[R any] struct {
	row   R
	round int // of the last comparison that had it
}

// compare begins a comparison. Its first part takes each row that there is now, with what same makes of it and the one that was told; the
// second finds those that are gone.
func (d *told[K, R]) compare(same func(was, is *R) bool, out *[]change) (take func(K, R), end func()) {
	if d.rows == nil {
		d.rows = map[K]*toldRow[R]{}
	}
	d.round++
	there := 0
	take = func(id K, row R) {
		there++
		was := d.rows[id]
		if was != nil {
			was.round = d.round
			if same(&was.row, &row) {
				return
			}
		}
		text, err := json.Marshal(row)
		if err != nil { // all rows can be encoded, as the lists' test shows
			return
		}
		d.rows[id] = &toldRow[R]{row, d.round}
		*out = append(*out, change{thing{d.kind, string(id)}, text})
	}
	return take, func() {
		if there == len(d.rows) {
			return
		}
		for id, was := range d.rows {
			if was.round != d.round {
				delete(d.rows, id)
				*out = append(*out, change{of: thing{d.kind, string(id)}})
			}
		}
	}
}

// compareAll compares a list.
func (d *told[K, R]) compareAll(rows []R, id func(*R) K, same func(was, is *R) bool, out *[]change) {
	take, end := d.compare(same, out)
	for i := range rows {
		take(id(&rows[i]), rows[i])
	}
	end()
}

// looks is what a feed has told of everything.
type looks struct {
	brief bool // of hosts and guests only what a picture needs

	jobs        told[fleet.JobID, view.Job]
	moves       told[fleet.MoveID, view.Move]
	checkpoints told[fleet.CheckpointID, view.Checkpoint]
	hosts       told[fleet.HostID, view.Host]
	guests      told[fleet.GuestID, view.Guest]
	policies    told[string, view.Policy]

	hostGlances  told[fleet.HostID, view.HostGlance]
	guestGlances told[fleet.GuestID, view.GuestGlance]
}

func newLooks(brief bool) *looks {
	l := &looks{brief: brief}
	l.jobs.kind, l.moves.kind, l.checkpoints.kind, l.policies.kind = "job", "move", "checkpoint", "policy"
	l.hosts.kind, l.guests.kind, l.hostGlances.kind, l.guestGlances.kind = "host", "guest", "host", "guest"
	return l
}

// changes says what is other than last time, in order, so that a stream is the same each time. What is gone comes last.
func (l *looks) changes(s fleet.Snapshot, read func(fleet.Snapshot) view.Cluster) (out []change) {
	var c view.Cluster
	if l.brief {
		c = view.ReadWork(s)
		l.glance(s, &out)
	} else {
		c = read(s)
		l.hosts.compareAll(c.Hosts, func(h *view.Host) fleet.HostID { return h.ID }, sameHost, &out)
		l.guests.compareAll(c.Guests, func(g *view.Guest) fleet.GuestID { return g.ID }, same, &out)
	}
	l.jobs.compareAll(c.Jobs, func(j *view.Job) fleet.JobID { return j.ID }, same, &out)
	l.moves.compareAll(c.Moves, func(m *view.Move) fleet.MoveID { return m.ID }, same, &out)
	l.checkpoints.compareAll(c.Checkpoints, func(c *view.Checkpoint) fleet.CheckpointID { return c.ID }, same, &out)
	policies := []view.Policy{}
	if p, there := policy(c.Rules, ""); there {
		policies = append(policies, p)
	}
	l.policies.compareAll(policies, func(*view.Policy) string { return "" }, same, &out)
	slices.SortFunc(out, func(a, b change) int {
		if (a.row == nil) != (b.row == nil) {
			return cmp.Compare(len(b.row), len(a.row))
		}
		return cmp.Or(cmp.Compare(a.of.kind, b.of.kind), cmp.Compare(a.of.id, b.of.id))
	})
	return out
}

// glance compares hosts and guests at a glance.
func (l *looks) glance(s fleet.Snapshot, out *[]change) {
	host, hostsOver := l.hostGlances.compare(func(was, is *view.HostGlance) bool { *is = is.Near(*was); return *was == *is }, out)
	guest, guestsOver := l.guestGlances.compare(func(was, is *view.GuestGlance) bool { *is = is.Near(*was); return *was == *is }, out)
	view.Glances(s, func(h view.HostGlance) { host(h.ID, h) }, func(g view.GuestGlance) { guest(g.ID, g) })
	hostsOver()
	guestsOver()
}

func same[R any](was, is *R) bool { return reflect.DeepEqual(was, is) }

// sameHost leaves out when a host was last heard: that changes every second, and is no news.
func sameHost(was, is *view.Host) bool {
	seen := is.Facts.SeenAt
	is.Facts.SeenAt = was.Facts.SeenAt
	if reflect.DeepEqual(was, is) {
		return true
	}
	is.Facts.SeenAt = seen
	return false
}
