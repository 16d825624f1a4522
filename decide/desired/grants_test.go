package desired

import (
	"testing"

	"pagurus/fleet"
)

// Hosts that use each other's vault are each other's WireGuard peers, as long as they do.
func TestPeersOfAVault(t *testing.T) {
	host := func(id fleet.HostID, number uint32) fleet.Host {
		return fleet.Host{ID: id, Number: number, WireGuard: fleet.WireGuardEnd{Key: "key of " + string(id), Port: 7462}, Facts: fleet.Facts{Address: "198.51.100.1"}}
	}
	s := fleet.Snapshot{
		Cluster: fleet.Cluster{ID: "c1", Encryption: fleet.Encryptions[0]},
		Hosts:   map[fleet.HostID]fleet.Host{"home": host("home", 1), "vault": host("vault", 2), "other": host("other", 3)},
		Jobs:    map[fleet.JobID]fleet.Job{"j1": {Spec: fleet.JobSpec{Need: fleet.Resources{MemoryBytes: 2 << 30}}}},
		Checkpoints: map[fleet.CheckpointID]fleet.Checkpoint{"j1c1": {
			ID: "j1c1", Job: "j1", Phase: fleet.Saving, Guests: []fleet.CheckpointPart{{Guest: "j1g0", Host: "home", Vault: "vault"}},
		}},
	}
	for phase, want := range map[fleet.CheckpointPhase]int{fleet.Saving: 1, fleet.Kept: 0, fleet.Cutting: 0} {
		c := s.Checkpoints["j1c1"]
		c.Phase = phase
		s.Checkpoints["j1c1"] = c
		for of, peer := range map[fleet.HostID]fleet.HostID{"home": "vault", "vault": "home"} {
			w := Wanted(s, of)
			if len(w.WireGuard.Peers) != want || want > 0 && w.WireGuard.Peers[0].Host != peer {
				t.Errorf("%s: peers of %s: %+v", phase, of, w.WireGuard.Peers)
			}
			if of == "vault" && len(w.VaultGrants) != want || of == "home" && len(w.VaultGrants) > 0 {
				t.Errorf("%s: grants at %s: %+v", phase, of, w.VaultGrants)
			}
			for _, g := range w.VaultGrants {
				if g.MostBytes != 7<<30 {
					t.Errorf("a guest of 2 GiB may put %d bytes", g.MostBytes)
				}
			}
		}
		if w := Wanted(s, "other"); len(w.WireGuard.Peers)+len(w.VaultGrants) > 0 {
			t.Errorf("%s: another host has %+v", phase, w)
		}
	}
}
