package view

import (
	"testing"
	"time"

	"pagurus/fleet"
)

func TestHealthTable(t *testing.T) {
	s := fleet.NewSnapshot()
	s.At = noon
	add := func(h fleet.Host) {
		h.Facts.SeenAt, h.Facts.Connected = noon, true
		s.Hosts[h.ID] = h
	}
	sign := func(k fleet.SignKind, where string, n uint64, says string, grave bool) fleet.Sign {
		return fleet.Sign{Kind: k, Where: where, Count: n, Since: noon.Add(-time.Hour), Last: noon.Add(-time.Minute), Says: says, Grave: grave}
	}
	said := func(p fleet.HealthPolicy, signs ...fleet.Sign) fleet.Facts {
		return fleet.Facts{Health: &fleet.Health{Policy: p, Signs: signs, Blind: []string{"memory errors are not counted here (no EDAC driver)"}}}
	}
	none := Read(s).HealthTable()
	add(fleet.Host{ID: "emptied", State: fleet.HostDraining, ForHealth: true, Facts: said(fleet.HealthDrain,
		sign(fleet.CheckFailed, "", 0, "sdb: \x1b[31m12 pending sectors", true), sign(fleet.LinkFlaps, "eth0", 7, "", false))})
	add(fleet.Host{ID: "leaving", State: fleet.HostDraining, ForHealth: true, Facts: said(fleet.HealthDrain, sign(fleet.SwapStorm, "", 90_000, "", true))})
	add(fleet.Host{ID: "warned", State: fleet.HostUp, Facts: said(fleet.HealthWarn, sign(fleet.MemoryFaults, "mc0", 1, "", true))})
	add(fleet.Host{ID: "known", State: fleet.HostUp, Facts: said(fleet.HealthDrain, sign(fleet.DiskErrors, "sda", 12, "", true))})
	add(fleet.Host{ID: "well", State: fleet.HostUp, Facts: said(fleet.HealthDrain)})
	add(fleet.Host{ID: "old", State: fleet.HostUp, Losses: []time.Time{noon.Add(-fleet.LossWindow - time.Hour), noon.Add(-49 * time.Hour), noon.Add(-3 * time.Hour)}})
	s.Guests["j1g0"] = fleet.Guest{ID: "j1g0", Job: "j1", State: fleet.GuestRunning, Home: "leaving"}
	c := Read(s)
	golden(t, "health", c.HealthTable().Text()+c.HostTable().Text()+none.Text())
}
