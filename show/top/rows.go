package top

import (
	"cmp"
	"slices"
	"strings"

	"pagurus/fleet"
	"pagurus/show/view"
)

// row is one line of a list, by its place in the cluster's.
type row struct {
	at   int // in Hosts, Guests, Jobs or Moves, or in sites
	part int // of a move
}

// shown is a cluster with what only this screen adds up.
type shown struct {
	view.Cluster
	sites  []site
	glance glance
	moving map[fleet.GuestID]string // from where to where
}

// site is what the hosts of one place have together.
type site struct {
	name                      string
	hosts, up, guests, owners int // owners: that are there
	cpus                      int
	load                      float64
	memory, free              int64
}

// glance is the cluster in some numbers.
type glance struct {
	site
	draining, gone  int
	away            int // owners that are not there
	running, others int // guests
	jobs, waiting   int
	moves           int // under way
	stall           string
}

// readShown adds up a cluster.
func readShown(c view.Cluster) shown {
	s := shown{Cluster: c, moving: map[fleet.GuestID]string{}}
	at := map[string]int{}
	for _, h := range c.Hosts {
		i, known := at[h.Facts.Site]
		if !known {
			i = len(s.sites)
			at[h.Facts.Site] = i
			s.sites = append(s.sites, site{name: h.Facts.Site})
		}
		s.sites[i].add(h)
		s.glance.add(h)
		switch {
		case h.Gone:
			s.glance.gone++
		case h.State == fleet.HostDraining:
			s.glance.draining++
		}
		if o := h.Facts.Owner; o != nil && o.State != "" && !o.Present {
			s.glance.away++
		}
	}
	slices.SortFunc(s.sites, func(a, b site) int { return view.Compare(a.name, b.name) })
	s.glance.guests = 0 // a guest that moves is at two hosts
	for _, g := range c.Guests {
		switch {
		case g.State == fleet.GuestRunning:
			s.glance.running++
		case !g.State.Ended():
			s.glance.others++
		}
	}
	for _, j := range c.Jobs {
		switch j.State {
		case fleet.JobPending:
			s.glance.waiting++
		case fleet.JobStarting, fleet.JobRunning, fleet.JobStopping:
			s.glance.jobs++
		}
	}
	s.addMoves()
	return s
}

// addMoves adds up the moves.
func (s *shown) addMoves() {
	for _, m := range s.Moves {
		if !m.Over() {
			s.glance.moves++
		}
		for _, p := range m.Parts {
			if !p.Phase.Ended() {
				s.moving[p.Guest] = string(p.From) + "→" + string(p.To)
			}
			if p.Stall != nil {
				s.glance.stall = view.Took(p.Stall.Took) + " by " + string(m.ID)
			}
		}
	}
}

// add adds a host.
func (s *site) add(h view.Host) {
	s.hosts++
	s.guests += len(h.GuestIDs)
	if h.Gone {
		return
	}
	if h.State == fleet.HostUp && h.Facts.Connected {
		s.up++
	}
	s.cpus += h.Facts.Capacity.CPUs
	s.load += h.Facts.LoadCPUs
	s.memory += h.Facts.Capacity.MemoryBytes
	s.free += h.FreeBytes
	if o := h.Facts.Owner; o != nil && o.Present {
		s.owners++
	}
}

// page is one of the lists.
type page int

// The lists, in the order of their keys.
const (
	hostsPage page = iota
	sitesPage
	guestsPage
	jobsPage
	movesPage
	pages
)

// place is a list, or the part of it that belongs to one thing.
type place struct {
	page page
	of   string // "site", "host", "job", "guest"; empty: all
	id   string
}

// order is how a list is sorted.
type order struct {
	column  int
	reverse bool
}

// listed are the rows of a place, in the cluster's order.
func (s *shown) listed(p place) (rows []row) {
	switch p.page {
	case hostsPage:
		for i, h := range s.Hosts {
			if p.of == "" || h.Facts.Site == p.id {
				rows = append(rows, row{at: i})
			}
		}
	case sitesPage:
		for i := range s.sites {
			rows = append(rows, row{at: i})
		}
	case guestsPage:
		h, _ := s.Host(fleet.HostID(p.id))
		for i, g := range s.Guests {
			in := p.of == "" || p.of == "job" && string(g.Job) == p.id || p.of == "host" && slices.Contains(h.GuestIDs, g.ID)
			if g.State != fleet.GuestEnded && in {
				rows = append(rows, row{at: i})
			}
		}
	case jobsPage:
		for i := range s.Jobs {
			rows = append(rows, row{at: i})
		}
	case movesPage:
		for i, m := range s.Moves {
			for k, part := range m.Parts {
				if p.of == "" || p.of == "guest" && string(part.Guest) == p.id {
					rows = append(rows, row{i, k})
				}
			}
		}
	}
	return rows
}

// sortKey is by what a row is sorted: a number, then a text in natural order.
type sortKey struct {
	number float64
	text   string
	row    row
}

// arrange filters and sorts the rows of the place, and stays on the same thing.
func (m *Model) arrange() {
	list := m.place.page.of()
	key := m.key()
	o := m.orders[m.place.page]
	column := list.columns[o.column]
	want := strings.ToLower(m.filter)
	var keys []sortKey
	for _, r := range m.now.listed(m.place) {
		if want != "" && !list.has(&m.now, r, want) {
			continue
		}
		k := sortKey{row: r}
		if column.number != nil {
			k.number = column.number(&m.now, r)
		} else if o.column > 0 { // the cluster's lists are in order of names
			k.text = column.text(&m.now, r)
		}
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b sortKey) int {
		c := cmp.Compare(a.number, b.number)
		if c == 0 {
			c = view.Compare(a.text, b.text)
		}
		byName := c == 0
		if byName {
			c = cmp.Or(a.row.at-b.row.at, a.row.part-b.row.part)
		}
		if o.reverse && (!byName || o.column == 0) {
			return -c
		}
		return c
	})
	m.rows = make([]row, len(keys))
	for i, k := range keys {
		m.rows[i] = k.row
	}
	m.point(key)
}

// point puts the cursor on a thing, or leaves it where it is if that is no longer listed.
func (m *Model) point(key string) {
	list := m.place.page.of()
	if i := slices.IndexFunc(m.rows, func(r row) bool { return key != "" && list.key(&m.now, r) == key }); i >= 0 {
		m.cursor = i
	}
	m.scroll()
}

// scroll keeps the cursor among the rows, and on the screen.
func (m *Model) scroll() {
	m.cursor = max(0, min(m.cursor, len(m.rows)-1))
	most := m.layout().rows
	m.offset = max(0, min(m.offset, m.cursor, len(m.rows)-most))
	m.offset = max(m.offset, m.cursor-most+1)
}
