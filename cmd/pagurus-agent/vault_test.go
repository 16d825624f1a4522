package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	acthost "pagurus/act/host"
	"pagurus/act/vault"
	"pagurus/cmd/roles"
	"pagurus/fleet"
	"pagurus/internal/testkit"
	"pagurus/serve/wire"
)

// A host whose owner refuses keeps nothing, tells nobody of a vault, and its guests are saved elsewhere.
func TestVaultIsOff(t *testing.T) {
	t.Chdir(t.TempDir())
	state := t.TempDir()
	v := openVaults(roles.Agent{VaultDir: "off", StateDir: state}, slog.New(slog.NewTextHandler(io.Discard, nil)))
	defer v.close()
	if v.facts(netip.Addr{}, netip.Addr{}) != nil || v.listener != nil || len(v.troubles()) > 0 {
		t.Errorf("facts %v, troubles %v", v.facts(netip.Addr{}, netip.Addr{}), v.troubles())
	}
	for _, at := range []string{"off", filepath.Join(state, vaultFolder)} {
		if _, err := os.Stat(at); err == nil {
			t.Errorf("%s was made", at)
		}
	}
	own := v.forAgent(&wire.Client{}, nil, new(acthost.Address)).Own
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

// A vault that cannot be opened as the agent starts is opened when it can be; until then its host says why, and loses nothing.
func TestVaultIsAwayAtFirst(t *testing.T) {
	testkit.Root(t)
	state := t.TempDir()
	folder := filepath.Join(state, vaultFolder)
	if err := os.WriteFile(folder, nil, 0o600); err != nil { // in the place of a folder
		t.Fatal(err)
	}
	v := openVaults(roles.Agent{StateDir: state}, slog.New(slog.NewTextHandler(t.Output(), nil)))
	defer v.close()
	own := v.forAgent(&wire.Client{}, nil, new(acthost.Address)).Own
	if v.facts(netip.Addr{}, netip.Addr{}) != nil || len(v.troubles()) != 1 || !strings.Contains(v.troubles()[0], "keeps no checkpoints now") {
		t.Errorf("facts %v, troubles %v", v.facts(netip.Addr{}, netip.Addr{}), v.troubles())
	}
	if _, err := own.Own(0).Missing(t.Context(), fleet.PartName{}, nil); err == nil || errors.Is(err, fleet.ErrNotKept) {
		t.Errorf("asked for what is missing there: %v", err)
	}
	if err := own.Remove("j1c1"); err == nil || len(own.Holds()) != 0 {
		t.Error("a checkpoint that may be there counts as removed")
	}
	if err := os.Remove(folder); err != nil {
		t.Fatal(err)
	}
	go v.open(t.Context(), func() {}, time.Millisecond) // as every 20 s
	for range 3000 {
		if v.facts(netip.Addr{}, netip.Addr{}) != nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if v.facts(netip.Addr{}, netip.Addr{}) == nil || len(v.troubles()) > 0 {
		t.Errorf("troubles %v", v.troubles())
	}
	if err := own.Remove("j1c1"); err != nil {
		t.Error(err)
	}
}

// An agent starts without its bucket, says who does not answer, and so does the doctor.
func TestBucketIsAwayAtFirst(t *testing.T) {
	testkit.Root(t)
	dir := t.TempDir()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	keys := filepath.Join(dir, "keys")
	if err := os.WriteFile(keys, []byte("[default]\naws_access_key_id = a\naws_secret_access_key = b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	at := "https://" + silent.Addr().String()
	config := filepath.Join(dir, "config.toml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "[agent]\nvault = \"s3://kept\"\nvault-endpoint = %q\nvault-keys = %q\nvault-region = \"here\"\n", at, keys), 0o600); err != nil {
		t.Fatal(err)
	}
	since := time.Now()
	v := openVaults(roles.Agent{Name: "host1", VaultDir: "s3://kept", VaultBucket: vault.Bucket{Endpoint: at, Region: "here", Credentials: keys}, StateDir: dir}, slog.New(slog.NewTextHandler(t.Output(), nil)))
	defer v.close()
	if took := time.Since(since); took > 6*vaultPatience {
		t.Errorf("the agent waited %s for its bucket", took)
	}
	if says := v.troubles(); len(says) != 1 || !strings.Contains(says[0], "s3://kept has not answered") {
		t.Errorf("%q", says)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	found := tryVault(ctx, roles.ReadConfigFile(config, true))
	if len(found) != 1 || found[0].OK || found[0].Needed || !strings.Contains(found[0].Detail, "does not answer in time") {
		t.Errorf("the doctor finds %+v", found)
	}
	if found := tryVault(ctx, roles.ReadConfigFile("", false)); len(found) != 0 {
		t.Errorf("without a bucket: %+v", found)
	}
}
