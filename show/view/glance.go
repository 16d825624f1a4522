package view

import (
	"net/netip"
	"time"

	"pagurus/fleet"
)

// glanceShare is the change of a number, as a share of it, from which on it is told again: what agents measure always changes a little.
const glanceShare = 1.0 / 16

// Smaller changes are not told in any case.
const (
	glanceCPUs = 0.1
	glanceTime = 2 * time.Second // agents' times are converted to the controller's clock with each report
)

// HostGlance is what a picture of a large cluster needs of a host. What an agent measures is rounded: see Near.
type HostGlance struct {
	ID          fleet.HostID      `json:"id"`
	State       fleet.HostState   `json:"state"`
	Site        string            `json:"site,omitempty"`
	CPUs        int               `json:"cpus,omitempty"`
	MemoryBytes int64             `json:"memory_bytes,omitempty"`
	FreeBytes   int64             `json:"free_memory_bytes,omitempty"`
	LoadCPUs    float64           `json:"load_cpus,omitempty"`
	Connected   bool              `json:"connected,omitempty"`
	Silent      bool              `json:"silent,omitempty"`
	Gone        bool              `json:"gone,omitempty"`
	Lost        bool              `json:"lost,omitempty"`
	ForOwner    bool              `json:"for_owner,omitempty"`
	ForHealth   bool              `json:"for_health,omitempty"`
	ForNotice   bool              `json:"for_notice,omitempty"`
	Troubles    int               `json:"troubles,omitempty"`
	Owner       OwnerGlance       `json:"owner,omitzero"`
	Policy      OwnerPolicyGlance `json:"policy,omitzero"`
}

// OwnerGlance is whether a host's owner is there.
type OwnerGlance struct {
	State    fleet.OwnerState `json:"state,omitempty"`
	Present  bool             `json:"present,omitempty"`
	Entered  time.Time        `json:"entered,omitzero"`
	Why      string           `json:"why,omitempty"`
	LoadCPUs float64          `json:"load_cpus,omitempty"`
}

// OwnerPolicyGlance is what a host's owner agreed to, without the list of programs.
type OwnerPolicyGlance struct {
	Owned     bool          `json:"owned,omitempty"`
	Claimed   bool          `json:"claimed,omitempty"`
	Preset    string        `json:"preset,omitempty"`
	Vacate    fleet.Vacate  `json:"vacate,omitempty"`
	Nowhere   fleet.Vacate  `json:"nowhere,omitempty"`
	Cap       float64       `json:"cap,omitempty"`
	Hours     fleet.Hours   `json:"hours,omitzero"`
	IdleAfter time.Duration `json:"idle_after_ns,omitempty"`
}

// GuestGlance is what a picture of a large cluster needs of a guest.
type GuestGlance struct {
	ID            fleet.GuestID     `json:"id"`
	Job           fleet.JobID       `json:"job"`
	Index         int               `json:"index,omitempty"`
	Home          fleet.HostID      `json:"home"`
	State         fleet.GuestState  `json:"state"`
	Kind          fleet.Kind        `json:"kind,omitempty"`
	Suspended     bool              `json:"suspended,omitempty"`
	Migration     fleet.MigrationID `json:"migration,omitempty"`
	MemoryBytes   int64             `json:"memory_bytes,omitempty"`
	ResidentBytes int64             `json:"resident_bytes,omitempty"`
	CPUs          float64           `json:"cpus,omitempty"`
	CPUTime       time.Duration     `json:"cpu_time_ns,omitempty"`
	Address       netip.Addr        `json:"address,omitzero"`
	Since         time.Time         `json:"since,omitzero"`
	Cause         string            `json:"cause,omitempty"`
	Reason        string            `json:"reason,omitempty"`
}

// Glances gives the hosts and guests of a snapshot at a glance, in no order. It neither sorts nor joins, as Read does, and keeps nothing.
func Glances(s fleet.Snapshot, host func(HostGlance), guest func(GuestGlance)) {
	promised := make(map[fleet.HostID]int64, len(s.Hosts))
	for _, g := range s.Guests {
		guest(glanceGuest(s, g))
		if !g.State.Ended() {
			promised[g.Home] += g.Need.MemoryBytes
		}
	}
	for _, m := range s.Migrations {
		if g := s.Guests[m.Guest]; !m.Phase.Ended() && m.To != g.Home && !g.State.Ended() {
			promised[m.To] += g.Need.MemoryBytes
		}
	}
	for id, h := range s.Hosts {
		host(glanceHost(s, h, promised[id]))
	}
}

func glanceHost(s fleet.Snapshot, h fleet.Host, promised int64) HostGlance {
	f := &h.Facts
	row := HostGlance{
		ID: h.ID, State: h.State, Site: f.Site, CPUs: f.Capacity.CPUs, MemoryBytes: f.Capacity.MemoryBytes, FreeBytes: max(f.Capacity.MemoryBytes-promised, 0),
		LoadCPUs: f.LoadCPUs, Connected: f.Connected, Silent: s.Silence(h.ID, s.At) > silentAfter, Gone: s.Gone(h.ID, s.At), Lost: h.Lost,
		ForOwner: h.ForOwner, ForHealth: h.ForHealth, ForNotice: h.ForNotice, Troubles: len(f.Troubles),
	}
	if row.Site == "" {
		row.Site = h.Credential.Site
	}
	if o := f.Owner; o != nil {
		row.Owner = OwnerGlance{o.State, o.Present, o.Entered, o.Why, o.LoadCPUs}
	}
	if p := h.Policy; p.Owned || p.Claimed || row.Owner.State != "" {
		row.Policy = OwnerPolicyGlance{p.Owned, p.Claimed, p.Preset, p.Vacate, p.Nowhere, p.Cap, p.Hours, p.IdleAfter}
	}
	return row
}

func glanceGuest(s fleet.Snapshot, g fleet.Guest) GuestGlance {
	f := s.Hosts[g.Home].Facts.Guests[g.ID]
	row := GuestGlance{
		ID: g.ID, Job: g.Job, Index: g.Index, Home: g.Home, State: g.State, Kind: g.Kind, Suspended: g.Suspended || f.Suspended, Migration: g.Migration,
		MemoryBytes: g.Need.MemoryBytes, ResidentBytes: f.ResidentBytes, CPUs: f.CPUs, CPUTime: f.CPUTime, Since: g.Since, Cause: g.Cause, Reason: g.Reason,
	}
	if j, known := s.Jobs[g.Job]; known {
		row.Address = j.Subnet.GuestAddr(g.Index)
	}
	return row
}

// Near is what there is to say of a host of which was has been said: numbers that have hardly changed are as they were.
func (h HostGlance) Near(was HostGlance) HostGlance {
	if was.CPUs == h.CPUs {
		h.LoadCPUs = near(was.LoadCPUs, h.LoadCPUs, glanceShare*float64(h.CPUs))
	}
	h.Owner.LoadCPUs = near(was.Owner.LoadCPUs, h.Owner.LoadCPUs, glanceCPUs)
	if was.Owner.State == h.Owner.State && was.Owner.Entered.Sub(h.Owner.Entered).Abs() < glanceTime {
		h.Owner.Entered = was.Owner.Entered
	}
	return h
}

// Near is the same of a guest.
func (g GuestGlance) Near(was GuestGlance) GuestGlance {
	if was.Home != g.Home {
		return g
	}
	g.CPUs = near(was.CPUs, g.CPUs, glanceCPUs)
	g.ResidentBytes = int64(near(float64(was.ResidentBytes), float64(g.ResidentBytes), 0))
	g.CPUTime = time.Duration(near(float64(was.CPUTime), float64(g.CPUTime), float64(glanceTime)))
	return g
}

// near is the number that was told, if it is near enough.
func near(was, is, least float64) float64 {
	if difference := max(was-is, is-was); is != 0 && difference < max(least, glanceShare*max(was, -was)) {
		return was
	}
	return is
}
