package top

import (
	"cmp"
	"fmt"
	"strings"

	"pagurus/fleet"
	"pagurus/show/view"
)

// column is one column of a list.
type column struct {
	title string
	width int  // usual width
	drop  int  // narrow terminals leave out the highest first; 0: never
	right bool // numbers
	state bool // its words have colours
	// text says a row's content. What others wrote in it is made harmless where it is drawn.
	text   func(*shown, row) string
	number func(*shown, row) float64 // to sort by; nil: by text
}

// list is what differs between pages.
type list struct {
	name    string
	empty   string
	columns []column
	key     func(*shown, row) string // identifies a row as long as its thing is there
	opens   func(*shown, row) place  // what Enter shows; nil: the move's details
	names   func(*shown, row) string // of what explain explains; nil: nothing
}

// of gives a page's list.
func (p page) of() list { return lists[p] }

// has reports whether any column of a row has a text.
func (l list) has(s *shown, r row, want string) bool {
	for _, c := range l.columns {
		if strings.Contains(strings.ToLower(c.text(s, r)), want) {
			return true
		}
	}
	return false
}

var lists = [pages]list{hostList, siteList, guestList, jobList, moveList}

// onHost makes a function of rows from one of hosts; likewise the others below.
func onHost[T any](f func(*shown, view.Host) T) func(*shown, row) T {
	return func(s *shown, r row) T { return f(s, s.Hosts[r.at]) }
}

func onSite[T any](f func(site) T) func(*shown, row) T {
	return func(s *shown, r row) T { return f(s.sites[r.at]) }
}

func onGuest[T any](f func(*shown, view.Guest) T) func(*shown, row) T {
	return func(s *shown, r row) T { return f(s, s.Guests[r.at]) }
}

func onJob[T any](f func(*shown, view.Job) T) func(*shown, row) T {
	return func(s *shown, r row) T { return f(s, s.Jobs[r.at]) }
}

func onPart[T any](f func(*shown, view.Part) T) func(*shown, row) T {
	return func(s *shown, r row) T { return f(s, s.Moves[r.at].Parts[r.part]) }
}

var hostList = list{
	name:  "hosts",
	empty: "no hosts yet: start an agent with `pagurus agent`, or a cluster on this machine with `pagurus lab up`",
	key:   onHost(func(_ *shown, h view.Host) string { return string(h.ID) }),
	names: onHost(func(_ *shown, h view.Host) string { return string(h.ID) }),
	opens: onHost(func(_ *shown, h view.Host) place { return place{guestsPage, "host", string(h.ID)} }),
	columns: []column{
		{title: "HOST", width: 14, text: onHost(func(_ *shown, h view.Host) string { return string(h.ID) })},
		{title: "STATE", width: 9, state: true, text: onHost(func(_ *shown, h view.Host) string { return hostWord(h) })},
		{title: "GUESTS", width: 6, right: true, text: onHost(func(_ *shown, h view.Host) string { return fmt.Sprint(len(h.GuestIDs)) }),
			number: onHost(func(_ *shown, h view.Host) float64 { return float64(len(h.GuestIDs)) })},
		{title: "LOAD", width: 6, drop: 2, right: true, text: onHost(func(_ *shown, h view.Host) string { return fmt.Sprintf("%.2f", h.Facts.LoadCPUs) }),
			number: onHost(func(_ *shown, h view.Host) float64 { return h.Facts.LoadCPUs })},
		{title: "CPUS", width: 5, drop: 4, right: true, text: onHost(func(_ *shown, h view.Host) string { return fmt.Sprint(h.Facts.Capacity.CPUs) }),
			number: onHost(func(_ *shown, h view.Host) float64 { return float64(h.Facts.Capacity.CPUs) })},
		{title: "FREE", width: 9, drop: 3, right: true, text: onHost(func(_ *shown, h view.Host) string { return view.Bytes(h.FreeBytes) }),
			number: onHost(func(_ *shown, h view.Host) float64 { return float64(h.FreeBytes) })},
		{title: "MEMORY", width: 9, drop: 5, right: true, text: onHost(func(_ *shown, h view.Host) string { return view.Bytes(h.Facts.Capacity.MemoryBytes) }),
			number: onHost(func(_ *shown, h view.Host) float64 { return float64(h.Facts.Capacity.MemoryBytes) })},
		{title: "OWNER", width: 9, drop: 1, state: true, text: onHost(func(_ *shown, h view.Host) string { return ownerWord(h) })},
		{title: "IDLE", width: 8, drop: 6, right: true, text: onHost(idle),
			number: onHost(func(s *shown, h view.Host) float64 {
				if o := h.Facts.Owner; o != nil && o.State != "" {
					return float64(o.IdleFor(s.At))
				}
				return -1
			})},
		{title: "SEEN", width: 9, drop: 7, right: true, text: onHost(func(s *shown, h view.Host) string { return view.Ago(s.At, h.Facts.SeenAt) }),
			number: onHost(func(s *shown, h view.Host) float64 { return float64(s.At.Sub(h.Facts.SeenAt)) })},
		{title: "SITE", width: 12, drop: 8, text: onHost(func(_ *shown, h view.Host) string { return h.Facts.Site })},
	},
}

// hostWord is a host's state for people.
func hostWord(h view.Host) string {
	if h.Gone {
		return "gone"
	}
	if !h.Facts.Connected && h.State == fleet.HostUp {
		return "silent"
	}
	return string(h.State)
}

// ownerWord is the state of a host's owner; empty if it has none.
func ownerWord(h view.Host) string {
	if o := h.Facts.Owner; o != nil {
		return string(o.State)
	}
	return ""
}

// idle is for how long a host's owner has not been there.
func idle(s *shown, h view.Host) string {
	if o := h.Facts.Owner; o != nil && o.State != "" && !o.Present && !o.LastSign.IsZero() {
		return view.Age(s.At.Sub(o.LastSign))
	}
	return ""
}

var siteList = list{
	name:  "sites",
	empty: "no hosts yet",
	key:   onSite(func(s site) string { return "site " + s.name }),
	opens: onSite(func(s site) place { return place{hostsPage, "site", s.name} }),
	columns: []column{
		{title: "SITE", width: 16, text: onSite(func(s site) string { return cmp.Or(s.name, "(no site)") })},
		{title: "HOSTS", width: 6, right: true, text: onSite(func(s site) string { return fmt.Sprint(s.hosts) }), number: onSite(func(s site) float64 { return float64(s.hosts) })},
		{title: "UP", width: 6, right: true, text: onSite(func(s site) string { return fmt.Sprint(s.up) }), number: onSite(func(s site) float64 { return float64(s.up) })},
		{title: "GUESTS", width: 7, right: true, text: onSite(func(s site) string { return fmt.Sprint(s.guests) }), number: onSite(func(s site) float64 { return float64(s.guests) })},
		{title: "LOAD", width: 8, drop: 1, right: true, text: onSite(func(s site) string { return fmt.Sprintf("%.1f", s.load) }), number: onSite(func(s site) float64 { return s.load })},
		{title: "CPUS", width: 6, drop: 2, right: true, text: onSite(func(s site) string { return fmt.Sprint(s.cpus) }), number: onSite(func(s site) float64 { return float64(s.cpus) })},
		{title: "FREE", width: 9, drop: 3, right: true, text: onSite(func(s site) string { return view.Bytes(s.free) }), number: onSite(func(s site) float64 { return float64(s.free) })},
		{title: "MEMORY", width: 9, drop: 5, right: true, text: onSite(func(s site) string { return view.Bytes(s.memory) }), number: onSite(func(s site) float64 { return float64(s.memory) })},
		{title: "OWNERS", width: 7, drop: 4, right: true, text: onSite(func(s site) string { return fmt.Sprint(s.owners) }), number: onSite(func(s site) float64 { return float64(s.owners) })},
	},
}

var guestList = list{
	name:  "guests",
	empty: "no guests: start a job with `pagurus run`",
	key:   onGuest(func(_ *shown, g view.Guest) string { return string(g.ID) }),
	names: onGuest(func(_ *shown, g view.Guest) string { return string(g.ID) }),
	opens: onGuest(func(_ *shown, g view.Guest) place { return place{movesPage, "guest", string(g.ID)} }),
	columns: []column{
		{title: "GUEST", width: 10, text: onGuest(func(_ *shown, g view.Guest) string { return string(g.ID) })},
		{title: "HOST", width: 20, text: onGuest(func(s *shown, g view.Guest) string { return cmp.Or(s.moving[g.ID], string(g.Home)) })},
		{title: "STATE", width: 9, state: true, text: onGuest(func(_ *shown, g view.Guest) string { return guestWord(g) })},
		{title: "JOB", width: 7, drop: 3, text: onGuest(func(_ *shown, g view.Guest) string { return string(g.Job) })},
		{title: "CPU", width: 6, drop: 1, right: true, text: onGuest(func(_ *shown, g view.Guest) string {
			if g.Facts == nil {
				return ""
			}
			return fmt.Sprintf("%.2f", g.Facts.CPUs)
		}), number: onGuest(func(_ *shown, g view.Guest) float64 {
			if g.Facts == nil {
				return -1
			}
			return g.Facts.CPUs
		})},
		{title: "MEMORY", width: 9, drop: 2, right: true, text: onGuest(func(_ *shown, g view.Guest) string { return view.Bytes(g.Need.MemoryBytes) }),
			number: onGuest(func(_ *shown, g view.Guest) float64 { return float64(g.Need.MemoryBytes) })},
		{title: "SINCE", width: 8, drop: 4, right: true, text: onGuest(func(s *shown, g view.Guest) string { return view.Age(s.At.Sub(g.Since)) }),
			number: onGuest(func(s *shown, g view.Guest) float64 { return float64(s.At.Sub(g.Since)) })},
		{title: "ADDRESS", width: 15, drop: 5, text: onGuest(func(_ *shown, g view.Guest) string { return g.Address })},
	},
}

// guestWord is a guest's state for people.
func guestWord(g view.Guest) string {
	if g.Facts != nil && g.Facts.Suspended {
		return "suspended"
	}
	return string(g.State)
}

var jobList = list{
	name:  "jobs",
	empty: "no jobs: start one with `pagurus run -n 4 -- ./a.out`",
	key:   onJob(func(_ *shown, j view.Job) string { return string(j.ID) }),
	names: onJob(func(_ *shown, j view.Job) string { return string(j.ID) }),
	opens: onJob(func(_ *shown, j view.Job) place { return place{guestsPage, "job", string(j.ID)} }),
	columns: []column{
		{title: "JOB", width: 7, text: onJob(func(_ *shown, j view.Job) string { return string(j.ID) })},
		{title: "STATE", width: 9, state: true, text: onJob(func(_ *shown, j view.Job) string { return string(j.State) })},
		{title: "RANKS", width: 6, drop: 4, right: true, text: onJob(func(_ *shown, j view.Job) string { return fmt.Sprint(j.Spec.Ranks) }),
			number: onJob(func(_ *shown, j view.Job) float64 { return float64(j.Spec.Ranks) })},
		{title: "GUESTS", width: 6, drop: 3, right: true, text: onJob(func(_ *shown, j view.Job) string { return fmt.Sprint(j.Size()) }),
			number: onJob(func(_ *shown, j view.Job) float64 { return float64(j.Size()) })},
		{title: "TIME", width: 8, drop: 2, right: true, text: onJob(func(s *shown, j view.Job) string { return s.Ran(j.Job) }),
			number: onJob(ranFor)},
		{title: "RESULT", width: 10, drop: 1, state: true, text: onJob(func(_ *shown, j view.Job) string { return view.Result(j.Job) })},
		{title: "SUBMITTED", width: 11, drop: 6, right: true, text: onJob(func(s *shown, j view.Job) string { return view.Ago(s.At, j.Submitted) }),
			number: onJob(func(_ *shown, j view.Job) float64 { return float64(j.Submitted.UnixNano()) })},
		{title: "IMAGE", width: 12, drop: 7, text: onJob(func(_ *shown, j view.Job) string { return j.Spec.Image })},
		{title: "COMMAND", width: 40, drop: 5, text: onJob(func(_ *shown, j view.Job) string { return view.Command(j.Spec.Args) })},
	},
}

// ranFor is for how long a job's program has run, or ran, in nanoseconds.
func ranFor(s *shown, j view.Job) float64 {
	switch {
	case j.Started.IsZero():
		return 0
	case j.Ended.IsZero():
		return float64(s.At.Sub(j.Started))
	}
	return float64(j.Ended.Sub(j.Started))
}

var moveList = list{
	name:  "moves",
	empty: "no moves: m moves a guest or a job",
	key:   onPart(func(_ *shown, p view.Part) string { return string(p.ID) }),
	names: nil,
	columns: []column{
		{title: "MOVE", width: 7, text: func(s *shown, r row) string { return string(s.Moves[r.at].ID) }},
		{title: "GUEST", width: 8, text: onPart(func(_ *shown, p view.Part) string { return string(p.Guest) })},
		{title: "FROM → TO", width: 20, drop: 3, text: onPart(func(_ *shown, p view.Part) string { return string(p.From) + "→" + string(p.To) })},
		{title: "PHASE", width: 10, state: true, text: onPart(func(_ *shown, p view.Part) string { return view.PhaseWord(p.Phase) })},
		{title: "TOTAL", width: 8, drop: 4, right: true, text: onPart(func(s *shown, p view.Part) string { return view.Took(p.TotalTime(s.At)) }),
			number: onPart(func(s *shown, p view.Part) float64 { return float64(p.TotalTime(s.At)) })},
		{title: "DOWNTIME", width: 8, drop: 2, right: true, text: onPart(func(_ *shown, p view.Part) string {
			if p.Progress.Downtime <= 0 {
				return ""
			}
			return view.Took(p.Progress.Downtime)
		}), number: onPart(func(_ *shown, p view.Part) float64 { return float64(p.Progress.Downtime) })},
		{title: "STALL", width: 8, drop: 1, right: true, text: onPart(func(_ *shown, p view.Part) string {
			if p.Stall == nil {
				return ""
			}
			return view.Took(p.Stall.Took)
		}), number: onPart(func(_ *shown, p view.Part) float64 {
			if p.Stall == nil {
				return -1
			}
			return float64(p.Stall.Took)
		})},
		{title: "PROGRESS", width: 30, drop: 5, text: onPart(func(_ *shown, p view.Part) string { return p.Far() })},
		{title: "WHY", width: 24, drop: 6, text: func(s *shown, r row) string { return s.Moves[r.at].Why }},
	},
}
