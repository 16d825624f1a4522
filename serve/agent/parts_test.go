package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"pagurus/act/vault"
	"pagurus/fleet"
)

var errNotAsked = errors.New("nobody asks this here")

func (*memoryController) Handed(context.Context, string) ([]byte, error) { return nil, errNotAsked }

func (*memoryController) Hand(context.Context, string, []byte) error { return errNotAsked }

func (*memoryController) Unknown(context.Context, []fleet.CheckpointID) (fleet.VaultAnswer, error) {
	return fleet.VaultAnswer{}, errNotAsked
}

func (*memoryVault) Back(fleet.Digest, int64) Chunks { return nil }

func (*memoryVault) Holds() []fleet.CheckpointID { return nil }

// handing is a controller that passes one piece.
type handing struct {
	Controller
	one     sync.Mutex
	in, out []byte
}

func (h *handing) Handed(context.Context, string) ([]byte, error) { return h.in, nil }

func (h *handing) Hand(_ context.Context, _ string, data []byte) error {
	h.out = data
	return nil
}

// A user's copy leaves the real vault by the controller's questions, and comes back to another one.
func TestPartsPassByQuestions(t *testing.T) {
	host := func() (*Agent, *handing, *vault.Store) {
		s, err := vault.Open(vault.Config{Folder: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		h := &handing{}
		return New(Config{Host: "stock", Run: t.TempDir(), Controller: h, Vaults: Vaults{Own: storeVault{s}}, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}), h, s
	}
	over := func(a *Agent, h *handing, manifest fleet.Digest) vault.Chunks {
		return vault.Over(func(ctx context.Context, q fleet.PartCall, put []byte) ([]byte, error) {
			h.one.Lock() // it passes one piece
			defer h.one.Unlock()
			h.in, h.out, q.MostBytes = put, nil, 8<<20
			if q.Verb == fleet.PutManifest {
				q.Digest = manifest
			}
			err := a.part(ctx, q, "1")
			return h.out, err
		})
	}
	folder, dir := t.TempDir(), filepath.Join(t.TempDir(), "copy")
	memory := strings.Repeat("memory", 1<<17)
	if err := os.WriteFile(filepath.Join(folder, "memory"), []byte(memory), 0o600); err != nil {
		t.Fatal(err)
	}
	a, h, s := host()
	put, err := vault.Save(t.Context(), folder, fleet.PartName{Checkpoint: "j1c1", Guest: "j1g0"}, s)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(fleet.CheckpointCopy{Version: 1, Checkpoint: fleet.Checkpoint{ID: "j1c1", Job: "j1", Guests: []fleet.CheckpointPart{{Guest: "j1g0", Manifest: put.Manifest, Bytes: put.Bytes}}}})
	if err == nil {
		err = vault.WriteCopy(t.Context(), dir, fleet.SealedCopy{Text: text, Seal: []byte("x")}, over(a, h, ""), nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	b, k, to := host()
	if err := vault.GiveBack(t.Context(), dir, "j1c2", over(b, k, "sha256-other"), nil); !errors.Is(err, fleet.ErrDamaged) {
		t.Errorf("another manifest than the controller says: %v", err)
	}
	if err := vault.GiveBack(t.Context(), dir, "j1c2", over(b, k, put.Manifest), nil); err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	if err := vault.Load(t.Context(), fleet.KeptPart{PartName: fleet.PartName{Checkpoint: "j1c2", Guest: "j1g0"}, Manifest: put.Manifest}, to, out); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(out, "memory")); string(got) != memory {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	for what, q := range map[string]fleet.PartCall{
		"upgrade the agent":   {Part: fleet.PartName{Checkpoint: "j1c1", Guest: "j1g0"}, Verb: "other"},
		"no such checkpoint":  {Part: fleet.PartName{Checkpoint: "j9c1", Guest: "j1g0"}, Verb: fleet.GetManifest},
		"is not the name of":  {Part: fleet.PartName{Checkpoint: "j1c1", Guest: "j1g0"}, Verb: fleet.PutChunk, Digest: "../x"},
		"has no chunk":        {Part: fleet.PartName{Checkpoint: "j1c1", Guest: "j1g0"}, Verb: fleet.GetChunk, Digest: "../x"},
		"is not a valid name": {Part: fleet.PartName{Checkpoint: "../..", Guest: "j1g0"}, Verb: fleet.PutChunk},
	} {
		if err := a.part(t.Context(), q, "1"); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v does not say %q", err, what)
		}
	}
}
