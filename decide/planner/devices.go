// This file has what follows from guests having devices of their hosts for themselves. Package placement says
// which host has a device free.

package planner

import (
	"cmp"
	"fmt"
	"slices"

	"pagurus/decide/placement"
	"pagurus/fleet"
)

// cardMTU is that of a network on a VLAN: every Ethernet card has it.
const cardMTU = 1500

// hasCard reports whether a host has a card for guests.
func hasCard(h fleet.Host) bool {
	card, _ := h.Facts.NetFunctions()
	return card
}

// refusedVLAN says why no job may have its network on a VLAN of hosts' cards; empty: it may, or does not want that.
func (d *draft) refusedVLAN(s fleet.JobSpec) string {
	asks := fmt.Sprintf("--%s %s", fleet.DeviceFlag, fleet.NetFunction)
	switch c := d.base.Cluster.Encryption; {
	case s.Need.Device != fleet.NetFunction:
		return ""
	case c.On():
		return fmt.Sprintf("%s: this cluster encrypts what passes between hosts, and a virtual function sends in clear; an administrator who trusts the cards' network starts the controller with --%s %s", asks, fleet.EncryptionFlag, fleet.NoEncryption)
	case d.p.VLANs == fleet.VLANs{}:
		return fmt.Sprintf("%s: the job's network would be a VLAN of its hosts' cards, and there is none for jobs; an administrator gives the controller a range with --%s", asks, fleet.VLANsFlag)
	}
	return ""
}

// vlan is a free VLAN for a job's network; 0: the job wants none. It starts where the network's number says, so that numbers are reused
// late. false: the job wants one, and all are taken.
func (d *draft) vlan(s fleet.JobSpec, net fleet.Subnet) (uint16, bool) {
	if s.Need.Device != fleet.NetFunction {
		return 0, true
	}
	if d.refusedVLAN(s) != "" { // the controller was told otherwise while the job waited
		return 0, false
	}
	v := d.p.VLANs
	all := int(v.Last-v.First) + 1
	for i := range all {
		n := v.First + uint16((int(net)+i)%all)
		if !d.l.OnVLAN(n) && !slices.Contains(d.vlans, n) {
			d.vlans = append(d.vlans, n)
			return n, true
		}
	}
	return 0, false
}

// noVLAN says why a job waits for a VLAN; empty: it does not.
func (d *draft) noVLAN(s fleet.JobSpec) string {
	if why := d.refusedVLAN(s); why != "" || s.Need.Device != fleet.NetFunction {
		return why
	}
	for n := d.p.VLANs.First; n <= d.p.VLANs.Last; n++ {
		if !d.l.OnVLAN(n) {
			return ""
		}
	}
	return fmt.Sprintf("all VLANs for jobs are in use, %d to %d", d.p.VLANs.First, d.p.VLANs.Last)
}

// siteOf is where the guests of a job have to be whose network is a VLAN: in the site of the host that serves their files; nil: anywhere.
func (d *draft) siteOf(s fleet.JobSpec) *string {
	for _, id := range d.l.Room().On(s.Machine) {
		if h := d.base.Hosts[id]; hasCard(h) {
			return placement.SiteOf(s.Need, h.Facts)
		}
	}
	return nil
}

// onVirtio says which guests of a move get no virtual function where they go.
func (d *draft) onVirtio(guests []fleet.Guest, to map[fleet.GuestID]placement.Choice) (notes []string) {
	room := d.room().Clone()
	for _, g := range guests {
		host := to[g.ID].Host
		if why := room.OnVirtio(host, g.Need); why != "" {
			notes = append(notes, fmt.Sprintf("guest %s: %s", g.ID, why))
		}
		room.Depart(g.Home, host, g.Need)
	}
	return notes
}

// mostOn is how many guests could be on a host if it were free. A device is one guest's.
func mostOn(h fleet.Host, need fleet.Resources) int {
	most := int(h.Facts.Capacity.MemoryBytes / max(need.MemoryBytes, 1))
	switch _, functions := h.Facts.NetFunctions(); need.Device {
	case "":
	case fleet.NetFunction:
		most = min(most, functions)
	default:
		most = min(most, 1)
	}
	return most
}

// unsavable says why a guest cannot be written to a checkpoint where it is; empty: it can, or its host has not said yet.
func (d *draft) unsavable(g fleet.Guest) string {
	able := d.base.Hosts[g.Home].Facts.Abilities[g.Kind]
	switch {
	case g.Need.Device != "":
		return g.Need.Device.Kept()
	case able.Checkpoint || d.silentHome(g):
		return ""
	}
	return cmp.Or(able.NoCheckpoint, "its agent does not say that it can")
}

// noEasier reports whether a guest with one need finds no room where one with the other found none.
func noEasier(need, than fleet.Resources) bool {
	return than.MemoryBytes <= need.MemoryBytes && (than.Device == "" || than.Device == need.Device)
}
