package desired

import (
	"cmp"
	"slices"

	"pagurus/fleet"
)

// grants says what other hosts may do in each host's vault: a guest's home may write while it saves a checkpoint there, and read
// the part that the guest is made from.
func grants(s fleet.Snapshot) map[fleet.HostID][]fleet.VaultGrant {
	out := map[fleet.HostID][]fleet.VaultGrant{}
	for _, c := range s.Checkpoints {
		for _, p := range c.Guests {
			g := fleet.VaultGrant{Checkpoint: c.ID, Guest: p.Guest}
			switch is := s.Guests[p.Guest]; {
			case c.Phase == fleet.Saving && !p.Answered:
				g.Host, g.Write, g.MostBytes = p.Host, true, fleet.MostKept(s.Jobs[c.Job].Spec.Need)
			case c.Phase == fleet.Kept && is.State == fleet.GuestRestoring && is.From == c.ID:
				g.Host, g.Manifest = is.Home, p.Manifest
			default:
				continue
			}
			if g.Host != p.Vault {
				out[p.Vault] = append(out[p.Vault], g)
			}
		}
	}
	for _, of := range out {
		slices.SortFunc(of, func(a, b fleet.VaultGrant) int {
			return cmp.Or(cmp.Compare(a.Checkpoint, b.Checkpoint), cmp.Compare(a.Guest, b.Guest))
		})
	}
	return out
}
