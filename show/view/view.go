// Package view turns a snapshot of the cluster into rows and sentences for people. The
// command line only prints them.
//
// It is pure: no clock (the snapshot has the time), no terminal, no connection, no decision
// about the cluster. Its tests run against golden tables.
package view

import (
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"pagurus/fleet"
)

// Table is the content of one listing.
type Table struct {
	Columns []string
	Rows    [][]string
	Notes   []string // what a user should know or do, one sentence each
	Empty   string   // the text if there are no rows
}

// Cluster is a snapshot made ready for reading: sorted and joined. --json prints its lists.
type Cluster struct {
	At     time.Time
	Hosts  []Host
	Guests []Guest
	Jobs   []Job
	Moves  []Move

	Checkpoints []Checkpoint

	Rules fleet.Rules

	Encryption fleet.Encryption
	Users      []fleet.User
	Tokens     []fleet.JoinToken
}

// Host is a host and its guests.
type Host struct {
	fleet.Host
	GuestIDs  []fleet.GuestID `json:"guest_ids"`         // guests whose home it is or that move to it
	FreeBytes int64           `json:"free_memory_bytes"` // not promised to any guest

	Silent time.Duration `json:"silent_ns,omitempty"` // for how long it could have been heard and was not; 0: until it is long
	Gone   bool          `json:"gone,omitempty"`      // its lease is over, and nothing runs there

	Protection fleet.Protection `json:"protection"` // at this end of what passes to other hosts; empty: nothing passes yet
}

// Guest is a guest with its address and its use of resources.
type Guest struct {
	fleet.Guest
	Address string            `json:"address"`
	Facts   *fleet.GuestFacts `json:"facts,omitempty"` // nil: no facts from its host yet
}

// Job is a job and the guests it has now.
type Job struct {
	fleet.Job
	GuestIDs []fleet.GuestID `json:"guest_ids"`
	Waits    string          `json:"waits,omitempty"` // why its program waits: its output finds no room
}

// Move is a move and its migrations.
type Move struct {
	fleet.Move
	Parts []Part `json:"parts"`
	Skew  *Skew  `json:"skew,omitempty"` // nil: fewer than two guests have switched
}

// Part is one migration of a move with its progress.
type Part struct {
	fleet.Migration
	Progress fleet.Progress `json:"progress"`              // the final cost if known, otherwise the source's latest facts
	Blackout *time.Duration `json:"blackout_ns,omitempty"` // from suspension to resume; nil: not over, or the hosts' clocks differ
	Resuming *Resuming      `json:"resuming,omitempty"`    // its second part; nil: not over
}

// Read joins and sorts a snapshot.
func Read(s fleet.Snapshot) Cluster {
	c := ReadWork(s)
	c.Hosts, c.Guests = make([]Host, 0, len(s.Hosts)), make([]Guest, 0, len(s.Guests))
	for _, g := range s.Guests {
		c.Guests = append(c.Guests, readGuest(s, g))
	}
	slices.SortFunc(c.Guests, func(a, b Guest) int { return Compare(string(a.ID), string(b.ID)) })
	at := guestsAt(s)
	for _, h := range s.Hosts {
		c.Hosts = append(c.Hosts, readHost(s, h, at[h.ID]))
	}
	slices.SortFunc(c.Hosts, func(a, b Host) int { return Compare(string(a.ID), string(b.ID)) })
	c.readMembers(s)
	return c
}

// ReadWork is Read without hosts, guests and members, of which there may be many.
func ReadWork(s fleet.Snapshot) Cluster {
	c := Cluster{At: s.At, Rules: s.Cluster.Rules, Encryption: s.Cluster.Encryption, Jobs: []Job{}, Moves: []Move{}}
	of := guestsOf(s)
	for _, j := range s.Jobs {
		row := Job{Job: j, GuestIDs: []fleet.GuestID{}, Waits: s.Crowded[j.ID]}
		row.GuestIDs = append(row.GuestIDs, of[j.ID]...)
		c.Jobs = append(c.Jobs, row)
	}
	slices.SortFunc(c.Jobs, func(a, b Job) int { return Compare(string(a.ID), string(b.ID)) })
	for _, m := range s.Moves {
		c.Moves = append(c.Moves, readMove(s, m))
	}
	slices.SortFunc(c.Moves, func(a, b Move) int { return Compare(string(a.ID), string(b.ID)) })
	c.Checkpoints = readCheckpoints(s)
	return c
}

func readGuest(s fleet.Snapshot, g fleet.Guest) Guest {
	row := Guest{Guest: g}
	if j, ok := s.Jobs[g.Job]; ok {
		row.Address = j.Subnet.GuestAddr(g.Index).String()
	}
	if f, ok := s.Hosts[g.Home].Facts.Guests[g.ID]; ok {
		row.Facts = &f
	}
	return row
}

// guestsAt says which guests are at each host or move to it, in the order of the list. Without it each host would look at all guests.
func guestsAt(s fleet.Snapshot) map[fleet.HostID][]fleet.Guest {
	at, to := map[fleet.HostID][]fleet.Guest{}, map[fleet.GuestID][]fleet.HostID{}
	for _, m := range s.Migrations {
		if !m.Phase.Ended() && !slices.Contains(to[m.Guest], m.To) {
			to[m.Guest] = append(to[m.Guest], m.To)
		}
	}
	for _, g := range s.Guests {
		if g.State.Ended() {
			continue
		}
		at[g.Home] = append(at[g.Home], g)
		for _, h := range to[g.ID] {
			if h != g.Home {
				at[h] = append(at[h], g)
			}
		}
	}
	for _, guests := range at {
		slices.SortFunc(guests, func(a, b fleet.Guest) int { return Compare(string(a.ID), string(b.ID)) })
	}
	return at
}

// guestsOf says which guests each job has now, in the order of the list.
func guestsOf(s fleet.Snapshot) map[fleet.JobID][]fleet.GuestID {
	of := map[fleet.JobID][]fleet.GuestID{}
	for _, g := range s.Guests {
		if !g.State.Ended() {
			of[g.Job] = append(of[g.Job], g.ID)
		}
	}
	for _, guests := range of {
		slices.SortFunc(guests, func(a, b fleet.GuestID) int { return Compare(string(a), string(b)) })
	}
	return of
}

func readHost(s fleet.Snapshot, h fleet.Host, guests []fleet.Guest) Host {
	row := Host{Host: h, GuestIDs: []fleet.GuestID{}, FreeBytes: h.Facts.Capacity.MemoryBytes, Protection: fleet.Unprotected}
	if row.Gone = s.Gone(h.ID, s.At); s.Silence(h.ID, s.At) > silentAfter {
		row.Silent = s.Silence(h.ID, s.At)
	}
	if s.Cluster.Encryption.On() {
		row.Protection = ""
		if w := h.Facts.WireGuard; w != nil {
			row.Protection = w.By
		}
	}
	for _, g := range guests {
		row.GuestIDs = append(row.GuestIDs, g.ID)
		row.FreeBytes -= g.Need.MemoryBytes
	}
	row.FreeBytes = max(row.FreeBytes, 0)
	return row
}

func readMove(s fleet.Snapshot, m fleet.Move) Move {
	row := Move{Move: m, Parts: []Part{}}
	for _, id := range m.Migrations {
		mig, ok := s.Migrations[id]
		if !ok {
			continue
		}
		p := Part{Migration: mig, Progress: mig.Cost}
		if live, ok := s.Hosts[mig.From].Facts.Copies[id]; ok && (mig.Cost.TotalBytes == 0 || mig.Phase.Traits().PostCopies()) {
			p.Progress = live
		}
		p.Blackout = blackout(p, clocks(s))
		p.Resuming = resuming(p)
		row.Parts = append(row.Parts, p)
	}
	row.Skew = skew(row.Parts, clocks(s))
	return row
}

// Guest finds a guest by its ID.
func (c Cluster) Guest(id fleet.GuestID) (Guest, bool) {
	return find(c.Guests, func(g Guest) bool { return g.ID == id })
}

// Job finds a job by its ID.
func (c Cluster) Job(id fleet.JobID) (Job, bool) {
	return find(c.Jobs, func(j Job) bool { return j.ID == id })
}

// Move finds a move by its ID.
func (c Cluster) Move(id fleet.MoveID) (Move, bool) {
	return find(c.Moves, func(m Move) bool { return m.ID == id })
}

// Host finds a host by its ID.
func (c Cluster) Host(id fleet.HostID) (Host, bool) {
	return find(c.Hosts, func(h Host) bool { return h.ID == id })
}

// Leaving lists the moves off a host that are under way or ended after since.
func (c Cluster) Leaving(host fleet.HostID, since time.Time) []Move {
	var moves []Move
	for _, m := range c.Moves {
		off := slices.ContainsFunc(m.Parts, func(p Part) bool { return p.From == host })
		if off && (!m.Over() || m.Ended.After(since)) {
			moves = append(moves, m)
		}
	}
	return moves
}

func find[T any](list []T, is func(T) bool) (T, bool) {
	if i := slices.IndexFunc(list, is); i >= 0 {
		return list[i], true
	}
	var none T
	return none, false
}

// Text draws the table with its columns aligned, then its notes.
func (t Table) Text() string {
	var b strings.Builder
	if len(t.Rows) == 0 {
		if t.Empty != "" {
			b.WriteString(t.Empty + "\n")
		}
	} else {
		t.grid(&b)
	}
	for _, n := range t.Notes {
		b.WriteString("! " + Clean(n) + "\n")
	}
	return b.String()
}

// grid writes the columns and rows. Lines have no trailing blanks, so that a terminal does
// not wrap them.
func (t Table) grid(b *strings.Builder) {
	width := make([]int, len(t.Columns))
	lines := append([][]string{t.Columns}, t.Rows...)
	for _, line := range lines {
		for i, cell := range line {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	for _, line := range lines {
		var text strings.Builder
		for i, cell := range line {
			text.WriteString(cell)
			text.WriteString(strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell)+2))
		}
		b.WriteString(strings.TrimRight(text.String(), " ") + "\n")
	}
}
