package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"pagurus/act/etcd"
	"pagurus/act/image"
	"pagurus/cmd/roles"
	"pagurus/fleet"
	"pagurus/serve/identity"
)

// outside starts a real etcd on a socket, as an administrator would, and gives its endpoint.
func outside(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	socket := url.URL{Scheme: "unix", Path: filepath.Join(dir, "etcd.sock")}
	c := embed.NewConfig()
	c.Name, c.Dir = "outside", filepath.Join(dir, "data")
	c.ListenPeerUrls, c.AdvertisePeerUrls = nil, []url.URL{{Scheme: "http", Host: "127.0.0.1:1"}}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{socket}, []url.URL{socket}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	<-e.Server.ReadyNotify()
	return "unix://" + socket.Path
}

// A backup of a controller with an external etcd is restored into it: what came since is gone
// from it, and kept beside.
func TestRestoreIntoExternalStore(t *testing.T) {
	if testing.Short() {
		t.Skip("contract ring: make test")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	dir := t.TempDir()
	f := roles.Controller{StateDir: filepath.Join(dir, "state"), RunDir: dir, ImageDir: filepath.Join(dir, "images"), Socket: filepath.Join(dir, "c.sock"), Etcd: []string{outside(t)}}
	authority, err := identity.OpenNamed(f.StateDir, "physics")
	if err != nil {
		t.Fatal(err)
	}
	images, err := image.Open(f.ImageDir)
	if err != nil {
		t.Fatal(err)
	}
	store, err := openStore(ctx, f, etcd.Peer{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	snap, err := store.Load(ctx)
	if err != nil {
		t.Fatal(err)
	}
	at, err := store.Commit(ctx, snap.Revision, fleet.Changeset{Hosts: []fleet.Host{{ID: "before"}}})
	if err != nil {
		t.Fatal(err)
	}
	var plain, packed bytes.Buffer
	saves := &saving{flags: f, store: store, images: images, authority: authority, state: store.Load, log: slog.New(slog.DiscardHandler)}
	if err := saves.write(ctx, func() io.Writer { return &plain }); err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(plain.Bytes()); err != nil || z.Close() != nil {
		t.Fatal("gzip")
	}
	file := filepath.Join(dir, "backup")
	if err := os.WriteFile(file, packed.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Commit(ctx, at, fleet.Changeset{Hosts: []fleet.Host{{ID: "after"}}}); err != nil {
		t.Fatal(err)
	}

	said := printing{out: new(bytes.Buffer), err: io.Discard}
	if err := restore(ctx, f, roles.Restore{File: file}, said); err == nil || !strings.Contains(err.Error(), "etcd at unix://") {
		t.Errorf("over a state that is there: %v", err)
	}
	if got, err := store.Load(ctx); err != nil || len(got.Hosts) != 2 {
		t.Errorf("after a refusal: %d hosts, %v", len(got.Hosts), err)
	}
	if err := restore(ctx, f, roles.Restore{File: file, Force: true}, said); err != nil {
		t.Fatal(err)
	}
	got, err := store.Load(ctx)
	if _, has := got.Hosts["before"]; err != nil || !has || len(got.Hosts) != 1 || got.Cluster.ID != snap.Cluster.ID || got.Cluster.Restored == nil {
		t.Errorf("restored: %+v, %v", got, err)
	}
	kept, _ := filepath.Glob(filepath.Join(f.StateDir, "before-restore-*", "*"))
	if all := strings.Join(kept, " "); len(kept) != 3 || !strings.Contains(all, "store.db") || !strings.Contains(all, identity.AuthorityKeyFile) {
		t.Errorf("kept beside: %v", kept)
	}
	if again, err := identity.OpenAuthority(f.StateDir); err != nil || again.Fingerprint() != authority.Fingerprint() || again.Name() != "physics" {
		t.Errorf("authority: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(f.StateDir, "restoring-*")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if _, err := os.Stat(filepath.Join(f.StateDir, storeFolder)); err == nil {
		t.Error("an embedded store was put beside the external one")
	}
}
