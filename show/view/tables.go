package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"pagurus/fleet"
)

// silentAfter is how long a host may be silent before a note says so: an agent sends facts
// about once a second.
const silentAfter = 5 * time.Second

// The widths of cells that would otherwise push others off the screen.
const (
	commandWidth = 44
	causeWidth   = 72
)

// HostTable lists the hosts.
func (c Cluster) HostTable() Table {
	t := Table{
		Columns: []string{"HOST", "STATE", "SEEN", "CPUS", "LOAD", "MEMORY", "FREE", "GUESTS", "KINDS", "ADDRESS"},
		Empty:   "no hosts yet: start an agent with `pagurus agent`, or a cluster on this machine with `pagurus lab up`",
	}
	for _, h := range c.Hosts {
		f := h.Facts
		row := []string{cell(string(h.ID)), cell(h.state()), c.seen(f), "-", "-", "-", "-",
			fmt.Sprint(len(h.GuestIDs)), cell(kinds(f.Abilities)), cell(f.Address)}
		if !f.SeenAt.IsZero() {
			row[3], row[4] = cpus(f), fmt.Sprintf("%.2f", f.LoadCPUs)
			row[5], row[6] = Bytes(f.Capacity.MemoryBytes), Bytes(h.FreeBytes)
		}
		t.Rows = append(t.Rows, row)
		t.Notes = append(t.Notes, c.hostNotes(h)...)
	}
	if slices.ContainsFunc(c.Hosts, func(h Host) bool { return h.Facts.Site != "" }) {
		t.Columns = append(t.Columns, "SITE")
		for i, h := range c.Hosts {
			t.Rows[i] = append(t.Rows[i], cmp.Or(cell(h.Facts.Site), "-"))
		}
	}
	c.internetColumn(&t)
	c.encryptionColumn(&t)
	c.pathColumn(&t)
	c.ownerColumns(&t)
	c.healthNotes(&t)
	c.noticeNotes(&t)
	c.cpuNotes(&t)
	return t
}

// state is what a host is for people.
func (h Host) state() string {
	if h.Gone {
		return "gone"
	}
	return string(h.State)
}

// internetColumn says which hosts lead jobs to the Internet, and how many, if any may.
func (c Cluster) internetColumn(t *Table) {
	if !slices.ContainsFunc(c.Hosts, func(h Host) bool { return h.Facts.Internet != nil }) {
		return
	}
	t.Columns = append(t.Columns, "INTERNET")
	for i, h := range c.Hosts {
		word := "-"
		switch o := h.Facts.Internet; {
		case o == nil || !o.Allowed:
		case o.Trouble != "":
			word = "none"
			t.Notes = append(t.Notes, fmt.Sprintf("%s leads no job to the Internet: %s", h.ID, cell(o.Trouble)))
		default:
			word = Count(o.Jobs, "job")
		}
		t.Rows[i] = append(t.Rows[i], word)
	}
}

// encryptionColumn says at which end of what passes between hosts what encrypts, if the cluster has
// chosen how.
func (c Cluster) encryptionColumn(t *Table) {
	if c.Encryption == "" {
		return
	}
	short := map[fleet.Protection]string{"": "-", fleet.Unprotected: "none", fleet.KernelWireGuard: "kernel", fleet.UserWireGuard: "go"}
	t.Columns = append(t.Columns, "WIREGUARD")
	for i, h := range c.Hosts {
		t.Rows[i] = append(t.Rows[i], cell(short[h.Protection]))
	}
}

// seen says when a host was last heard from; never "now" if it is not connected.
func (c Cluster) seen(f fleet.Facts) string {
	if f.Connected || f.SeenAt.IsZero() {
		return Ago(c.At, f.SeenAt)
	}
	return Age(c.At.Sub(f.SeenAt)) + " ago"
}

// hostNotes says what needs attention on a host.
func (c Cluster) hostNotes(h Host) []string {
	var notes []string
	lease := fleet.ShortDuration(h.Lease)
	switch {
	case h.Gone:
		notes = append(notes, fmt.Sprintf("%s is gone: it was not heard from for %s, and its lease was %s, so nothing runs there any more; `pagurus forget %s` if it does not come back", h.ID, Age(h.Silent), lease, h.ID))
	case h.Facts.SeenAt.IsZero() && len(h.Facts.Troubles) > 0: // it has called, and was refused
	case h.Facts.SeenAt.IsZero():
		notes = append(notes, fmt.Sprintf("%s has not called since the controller started: does its agent run? `pagurus forget %s` if the host is gone for good", h.ID, h.ID))
	case !h.Facts.Connected || c.At.Sub(h.Facts.SeenAt) > silentAfter:
		notes = append(notes, fmt.Sprintf("the agent of %s is not connected, last heard %s: does it run? `pagurus forget %s` if the host is gone for good", h.ID, c.seen(h.Facts), h.ID))
	}
	if ids := c.homed(h.ID); h.Lease > 0 && h.Silent > 0 && !h.Gone && len(ids) > 0 {
		notes = append(notes, fmt.Sprintf("what runs at %s (%s) is stopped there, and lost, unless its agent is heard again within its lease of %s: for %s it has not been", h.ID, List(ids), lease, Age(h.Silent)))
	}
	// One working kind is enough; `pagurus doctor` tells what others lack.
	if kinds(h.Facts.Abilities) == "" {
		for _, k := range sortedKinds(h.Facts.Abilities) {
			notes = append(notes, fmt.Sprintf("%s cannot run %s guests: %s", h.ID, k, h.Facts.Abilities[k].Trouble))
		}
	}
	notes = append(notes, isolationNotes(h)...)
	for _, trouble := range h.Facts.Troubles {
		notes = append(notes, fmt.Sprintf("%s: %s", h.ID, trouble))
	}
	return notes
}

// homed are the guests that run at a host. Those that move there, or have moved away from it, run elsewhere.
func (c Cluster) homed(h fleet.HostID) (ids []fleet.GuestID) {
	for _, g := range c.Guests {
		if g.Home == h && !g.State.Ended() {
			ids = append(ids, g.ID)
		}
	}
	return ids
}

// GuestTable lists the guests that have not ended.
func (c Cluster) GuestTable() Table {
	t := Table{
		Columns: []string{"GUEST", "JOB", "HOST", "STATE", "MEM", "CPU", "ADDRESS", "SINCE"},
		Empty:   "no guests: start a job with `pagurus run`",
	}
	for _, g := range c.Guests {
		if g.State == fleet.GuestEnded {
			continue
		}
		load := "-"
		if g.Facts != nil {
			load = fmt.Sprintf("%.2f", g.Facts.CPUs)
		}
		state := string(g.State)
		if g.Facts != nil && g.Facts.Suspended {
			state = "suspended" // for people; the controller's state is running
		}
		t.Rows = append(t.Rows, []string{
			cell(string(g.ID)), cell(string(g.Job)), cell(c.where(g)), cell(state),
			Bytes(g.Need.MemoryBytes), load, cell(g.Address), Age(c.At.Sub(g.Since)),
		})
		if g.State == fleet.GuestLost {
			t.Notes = append(t.Notes, fmt.Sprintf("it is unknown whether %s still runs (%s): `pagurus explain %s`", g.ID, orElse(g.Cause, "no host answers for it"), g.ID))
		}
	}
	return t
}

// where gives the guest's home, and its target if it moves.
func (c Cluster) where(g Guest) string {
	if g.State != fleet.GuestMoving {
		return string(g.Home)
	}
	for _, m := range c.Moves {
		for _, p := range m.Parts {
			if p.Guest == g.ID && !p.Phase.Ended() {
				return string(p.From) + "→" + string(p.To)
			}
		}
	}
	return string(g.Home)
}

// JobTable lists the jobs.
func (c Cluster) JobTable() Table {
	t := Table{
		Columns: []string{"JOB", "STATE", "RANKS", "GUESTS", "IMAGE", "COMMAND", "SUBMITTED", "TIME", "RESULT"},
		Empty:   "no jobs: start one with `pagurus run -n 4 -- ./a.out`",
	}
	for _, j := range c.Jobs {
		t.Rows = append(t.Rows, []string{
			cell(string(j.ID)), cell(string(j.State)), fmt.Sprint(j.Spec.Ranks), fmt.Sprint(j.Size()),
			cell(j.Spec.Image), cell(short(Command(j.Spec.Args), commandWidth)), Ago(c.At, j.Submitted),
			c.Ran(j.Job), cell(Result(j.Job)),
		})
		if j.State == fleet.JobPending {
			t.Notes = append(t.Notes, fmt.Sprintf("%s waits: %s; `pagurus explain %s` says when it would start", j.ID, orElse(j.Reason, "for room"), j.ID))
		}
		if j.State == fleet.JobSuspended {
			t.Notes = append(t.Notes, fmt.Sprintf("%s is suspended, with its state in %s; `pagurus resume %s` lets it go on", j.ID, j.From, j.ID))
		}
		if j.Waits != "" {
			t.Notes = append(t.Notes, fmt.Sprintf("the program of %s waits, because its output finds no room: %s", j.ID, j.Waits))
		}
		if j.Result == fleet.JobFailed {
			t.Notes = append(t.Notes, fmt.Sprintf("%s: %s", j.ID, orElse(j.Cause, "no cause is known")))
		}
	}
	return t
}

// Ran says how long the job's program has run.
func (c Cluster) Ran(j fleet.Job) string {
	switch {
	case j.Started.IsZero():
		return "-"
	case j.Ended.IsZero():
		return Age(c.At.Sub(j.Started))
	}
	return Took(j.Ended.Sub(j.Started))
}

// Result says how a job ended, in a word or two; "-" while it has not.
func Result(j fleet.Job) string {
	switch {
	case j.Result == "":
		return "-"
	case j.Result != fleet.JobFinished || j.Exit == nil:
		return string(j.Result)
	case j.Exit.Signal != "":
		return j.Exit.Signal
	}
	return fmt.Sprintf("exit %d", j.Exit.Code)
}

// MoveTable lists the moves, a row for each guest.
func (c Cluster) MoveTable() Table {
	t := Table{
		Columns: []string{"MOVE", "GUEST", "FROM", "TO", "PHASE", "PROGRESS", "TOTAL", "DOWNTIME", "STALL", "WHY"},
		Empty:   "no moves: move a guest with `pagurus migrate GUEST`",
	}
	for _, m := range c.Moves {
		for _, p := range m.Parts {
			t.Rows = append(t.Rows, []string{
				cell(string(m.ID)), cell(string(p.Guest)), cell(string(p.From)), cell(string(p.To)), cell(PhaseWord(p.Phase)),
				p.Far(), Took(p.TotalTime(c.At)), p.downtime(), p.stall(), cell(m.Why),
			})
			switch {
			case !c.fresh(p): // `explain` tells old stories
			case p.Phase.Traits().Back:
				t.Notes = append(t.Notes, fmt.Sprintf("%s of %s was cancelled: %s", p.ID, p.Guest, short(orElse(p.Cause, "no cause is known"), 2*causeWidth)))
			case p.Phase == fleet.Lost:
				t.Notes = append(t.Notes, fmt.Sprintf("%s: %s is lost: `pagurus explain %s`", p.ID, p.Guest, p.Guest))
			}
		}
	}
	return t
}

// PhaseWord is a phase for people.
func PhaseWord(p fleet.Phase) string {
	if p == fleet.Aborted {
		return "cancelled" // as everywhere else
	}
	return string(p)
}

// freshFor is for how long a note says that a move is over without success.
const freshFor = 10 * time.Minute

// fresh reports whether what came of a migration may still be news: it is the guest's last one, and goes on or is just over.
func (c Cluster) fresh(p Part) bool {
	if !p.Phase.Ended() {
		return true
	}
	if g, ok := c.Guest(p.Guest); ok && g.State == fleet.GuestEnded {
		return false
	}
	for _, m := range c.Moves {
		for _, other := range m.Parts {
			if other.Guest == p.Guest && other.begun().After(p.begun()) {
				return false
			}
		}
	}
	return len(p.Entered) > 0 && c.At.Sub(p.Entered[len(p.Entered)-1].At) < freshFor
}

// begun is when the first order of a migration was given; zero: not yet.
func (p Part) begun() time.Time {
	if len(p.Entered) == 0 {
		return time.Time{}
	}
	return p.Entered[0].At
}

func cpus(f fleet.Facts) string {
	if f.CPULimit > 0 {
		return fmt.Sprintf("%d (max %.3g)", f.Capacity.CPUs, f.CPULimit)
	}
	return fmt.Sprint(f.Capacity.CPUs)
}

// kinds lists the kinds of guest that a host runs, and how.
func kinds(can map[fleet.Kind]fleet.Abilities) string {
	var words []string
	for _, k := range sortedKinds(can) {
		switch a := can[k]; {
		case a.Trouble != "":
		case a.Accelerator != "":
			words = append(words, fmt.Sprintf("%s/%s", k, a.Accelerator))
		default:
			words = append(words, string(k))
		}
	}
	return strings.Join(words, ",")
}

func sortedKinds(can map[fleet.Kind]fleet.Abilities) []fleet.Kind {
	var ks []fleet.Kind
	for k := range can {
		ks = append(ks, k)
	}
	slices.Sort(ks)
	return ks
}

// cell prepares a text for a table: "-" if empty.
func cell(s string) string { return orElse(Clean(s), "-") }

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
