package main

import (
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"pagurus/cmd/roles"
	"pagurus/fleet"
	"pagurus/serve/wire"
)

// A host whose owner refuses keeps nothing, tells nobody of a vault, and its guests are saved elsewhere.
func TestVaultIsOff(t *testing.T) {
	t.Chdir(t.TempDir())
	state := t.TempDir()
	v := openVaults(roles.Agent{VaultDir: "off", StateDir: state}, slog.New(slog.NewTextHandler(io.Discard, nil)))
	defer v.close()
	able := map[fleet.Kind]fleet.Abilities{fleet.VM: {Checkpoint: true}}
	v.limit(able)
	if v.facts(netip.Addr{}, netip.Addr{}) != nil || v.listener != nil || len(v.troubles()) > 0 || !able[fleet.VM].Checkpoint {
		t.Errorf("facts %v, troubles %v, able %v", v.facts(netip.Addr{}, netip.Addr{}), v.troubles(), able)
	}
	for _, at := range []string{"off", filepath.Join(state, vaultFolder)} {
		if _, err := os.Stat(at); err == nil {
			t.Errorf("%s was made", at)
		}
	}
	own := v.forAgent(&wire.Client{}, nil).Own
	if own == nil {
		t.Fatal("its guests cannot be saved elsewhere")
	}
	if own.Own(0) != nil {
		t.Error("it has chunks")
	}
	if _, err := own.Save(t.Context(), state, fleet.PartName{}, own.Own(0)); err == nil {
		t.Error("saved here")
	}
	if err := own.Load(t.Context(), fleet.KeptPart{}, own.Own(0), state); err == nil {
		t.Error("loaded from here")
	}
	if err := own.Remove("j1c1"); err != nil {
		t.Error(err)
	}
}
