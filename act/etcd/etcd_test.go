package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"pagurus/fleet"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("PAGURUS_TEST_STORE"); dir != "" {
		commitForEver(dir)
		return
	}
	os.Exit(m.Run())
}

// contract skips tests with a real etcd in short runs.
func contract(t *testing.T) context.Context {
	t.Helper()
	if testing.Short() {
		t.Skip("contract ring: make test")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func opened(t *testing.T, ctx context.Context, dir string) *Store {
	t.Helper()
	s, err := Embed(ctx, EmbedConfig{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// external starts a real etcd on a socket, as an administrator would.
func external(t *testing.T, ctx context.Context, maxOps uint) *Store {
	t.Helper()
	dir := t.TempDir()
	socket := url.URL{Scheme: "unix", Path: filepath.Join(dir, "etcd.sock")}
	c := embed.NewConfig()
	c.Name, c.Dir = "outside", filepath.Join(dir, "data")
	c.ListenPeerUrls, c.AdvertisePeerUrls = nil, []url.URL{{Scheme: "http", Host: "127.0.0.1:1"}}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{socket}, []url.URL{socket}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	if maxOps > 0 {
		c.MaxTxnOps = maxOps
	}
	e, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	<-e.Server.ReadyNotify()
	s, err := Connect(ctx, ConnectConfig{Endpoints: []string{"unix://" + socket.Path}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func loaded(t *testing.T, ctx context.Context, s *Store) fleet.Snapshot {
	t.Helper()
	snap, err := s.Load(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return snap
}

func committed(t *testing.T, ctx context.Context, s *Store, from int64, c fleet.Changeset) int64 {
	t.Helper()
	rev, err := s.Commit(ctx, from, c)
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

// job is a minimal job.
func job(id string) fleet.Job {
	return fleet.Job{ID: fleet.JobID(id), Spec: fleet.JobSpec{Ranks: 1, Guests: 1}}
}

// everything is a changeset with one object of each kind, and odd names.
func everything() fleet.Changeset {
	at := time.Date(2025, 3, 4, 5, 6, 7, 8, time.UTC)
	return fleet.Changeset{
		Cluster:    &fleet.Cluster{ID: "c1", NextJob: 8, NextMove: 2, NextSubnet: 3},
		Hosts:      []fleet.Host{{ID: "host1", State: fleet.HostUp, Since: at}, {ID: "a/../b c%", State: fleet.HostDraining}},
		Guests:     []fleet.Guest{{ID: "j7g0", Job: "j7", Kind: fleet.VM, State: fleet.GuestRunning, Home: "host1", Gen: 3}},
		Jobs:       []fleet.Job{{ID: "j7", Spec: fleet.JobSpec{Args: []string{"./a.out", "ü\x01"}, Ranks: 2, Guests: 1}, Subnet: 3, Exit: &fleet.Exit{Code: 3}, Submitted: at}},
		Moves:      []fleet.Move{{ID: "m1", Migrations: []fleet.MigrationID{"m1.j7g0"}}},
		Migrations: []fleet.Migration{{ID: "m1.j7g0", Phase: fleet.Copying, Entered: []fleet.Entered{{Phase: fleet.Preparing, At: at}}}},
	}
}

func same(t *testing.T, got, want fleet.Snapshot) {
	t.Helper()
	g, _ := json.MarshalIndent(got, "", " ")
	w, _ := json.MarshalIndent(want, "", " ")
	if string(g) != string(w) {
		t.Fatalf("got %s\nwant %s", g, w)
	}
}

// suite is the contract of both kinds of store.
func suite(t *testing.T, ctx context.Context, s *Store) {
	first := loaded(t, ctx, s)
	if first.Cluster.ID == "" || first.Cluster.NextJob != 1 || first.Revision == 0 {
		t.Fatalf("a new store holds %+v", first.Cluster)
	}
	same(t, loaded(t, ctx, s), first) // the identity is created once

	c := everything()
	rev := committed(t, ctx, s, first.Revision, c)
	same(t, loaded(t, ctx, s), first.Apply(c, rev))

	if _, err := s.Commit(ctx, first.Revision, fleet.Changeset{GoneJobs: []fleet.JobID{"j7"}}); !errors.Is(err, fleet.ErrConflict) {
		t.Fatalf("an old revision: %v", err)
	}
	same(t, loaded(t, ctx, s), first.Apply(c, rev))

	gone := fleet.Changeset{GoneHosts: []fleet.HostID{"a/../b c%", "never was"}, GoneGuests: []fleet.GuestID{"j7g0"},
		GoneJobs: []fleet.JobID{"j7"}, GoneMoves: []fleet.MoveID{"m1"}, GoneMigrations: []fleet.MigrationID{"m1.j7g0"}}
	next := committed(t, ctx, s, rev, gone)
	if next <= rev {
		t.Fatalf("revision %d after %d", next, rev)
	}
	left := loaded(t, ctx, s)
	if len(left.Hosts) != 1 || len(left.Guests)+len(left.Jobs)+len(left.Moves)+len(left.Migrations) != 0 {
		t.Fatalf("left: %+v", left)
	}

	host := fleet.Host{ID: "host1", State: fleet.HostUp, Facts: fleet.Facts{Address: "192.0.2.1", Connected: true}}
	next = committed(t, ctx, s, next, fleet.Changeset{Hosts: []fleet.Host{host, host}})
	if h := loaded(t, ctx, s).Hosts["host1"]; !reflect.DeepEqual(h.Facts, fleet.Facts{}) {
		t.Fatalf("facts were stored: %+v", h.Facts)
	}
	watching(t, ctx, s, next)
}

func watching(t *testing.T, ctx context.Context, s *Store, rev int64) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	seen, err := s.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if got := <-seen; got.Revision != rev {
		t.Fatalf("the watch begins at %d, not %d", got.Revision, rev)
	}
	for i := range 5 {
		rev = committed(t, ctx, s, rev, fleet.Changeset{Jobs: []fleet.Job{job(fmt.Sprint("j", i))}})
	}
	for got := range seen {
		if got.Revision == rev {
			if len(got.Jobs) != 5 {
				t.Fatalf("%d jobs", len(got.Jobs))
			}
			break
		}
	}
	cancel()
	for range seen { // closed in the end
	}
}

func TestEmbedded(t *testing.T) {
	ctx := contract(t)
	suite(t, ctx, opened(t, ctx, t.TempDir()))
}

func TestExternal(t *testing.T) {
	ctx := contract(t)
	suite(t, ctx, external(t, ctx, 0))
}

func TestLoadsMoreThanOnePage(t *testing.T) {
	ctx := contract(t)
	s := opened(t, ctx, t.TempDir())
	snap := loaded(t, ctx, s)
	var c fleet.Changeset
	for i := range 2*loadPage + 7 {
		c.Guests = append(c.Guests, fleet.Guest{ID: fleet.GuestID(fmt.Sprint("j1g", i))})
	}
	rev := committed(t, ctx, s, snap.Revision, c)
	same(t, loaded(t, ctx, s), snap.Apply(c, rev))
}

func TestExternalSaysWhatLimitsIt(t *testing.T) {
	ctx := contract(t)
	s := external(t, ctx, 64)
	snap := loaded(t, ctx, s)
	var c fleet.Changeset
	for i := range 100 {
		c.Guests = append(c.Guests, fleet.Guest{ID: fleet.GuestID(fmt.Sprint("j1g", i))})
	}
	_, err := s.Commit(ctx, snap.Revision, c)
	if err == nil || !strings.Contains(err.Error(), "--max-txn-ops") {
		t.Fatalf("got %v", err)
	}
	same(t, loaded(t, ctx, s), snap)
}

func TestNoStoreAnswers(t *testing.T) {
	ctx := contract(t)
	_, err := Connect(ctx, ConnectConfig{Endpoints: []string{"unix://" + filepath.Join(t.TempDir(), "none.sock")}})
	if err == nil || !strings.Contains(err.Error(), "--etcd") {
		t.Fatalf("got %v", err)
	}
}

func TestOneProcessAtATime(t *testing.T) {
	ctx := contract(t)
	dir := t.TempDir()
	first := opened(t, ctx, dir)
	snap := loaded(t, ctx, first)
	if _, err := Embed(ctx, EmbedConfig{Dir: dir}); err == nil || !strings.Contains(err.Error(), "another controller") {
		t.Fatalf("got %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	same(t, loaded(t, ctx, opened(t, ctx, dir)), snap) // the same cluster after a restart
}

func TestUnreadableObjects(t *testing.T) {
	ctx := contract(t)
	s := opened(t, ctx, t.TempDir())
	snap := loaded(t, ctx, s)
	committed(t, ctx, s, snap.Revision, everything())
	want := loaded(t, ctx, s)
	const newer, damaged = "a newer controller wrote it; nothing was changed: upgrade this controller", "it is damaged, or"
	for key, value := range map[string][2]string{
		root + "jobs/j9":             {"{", damaged},
		root + "jobs/j8":             {`{"id":"j8","colour":"red"}`, newer},
		root + "jobs/j5":             {`{"id":"j4"}`, damaged},
		root + "jobs/j3":             {`{"id":"j3","spec":{"ranks":1,"guests":-1}}`, damaged},
		root + "guests/g":            {`{"id":"g"} {}`, damaged},
		root + "pets/p":              {`{}`, newer},
		"/pagurus/v2/hosts/host1":    {`{}`, newer},
		root + "migrations/m1.j7g99": {"", damaged},
		root + "hosts/h":             {`{"id":"h","since":"yesterday"}`, damaged},
	} {
		value, why := value[0], value[1]
		if _, err := s.client.Put(ctx, key, value); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Load(ctx); err == nil || !strings.Contains(err.Error(), key) || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v does not say %q", key, err, why)
		}
		kept, err := s.client.Get(ctx, key)
		if err != nil || len(kept.Kvs) != 1 || string(kept.Kvs[0].Value) != value {
			t.Errorf("%s was not kept: %v", key, err)
		}
		s.client.Delete(ctx, key)
	}
	same(t, loaded(t, ctx, s), want)

	guard, err := s.client.Get(ctx, guardKey)
	if err != nil {
		t.Fatal(err)
	}
	// The whole store's format is told rather than the first thing that is not understood.
	s.client.Put(ctx, root+"guests/g9", `{"id":"g9","colour":"red"}`)
	s.client.Put(ctx, guardKey, `{"format":2,"since":"tomorrow"}`)
	if _, err := s.Load(ctx); err == nil || !strings.Contains(err.Error(), "format 2 and this controller reads formats up to 1") || !strings.Contains(err.Error(), "upgrade this controller") {
		t.Fatalf("got %v", err)
	}
	s.client.Delete(ctx, root+"guests/g9")
	s.client.Put(ctx, guardKey, string(guard.Kvs[0].Value))
	s.client.Delete(ctx, clusterKey)
	if _, err := s.Load(ctx); err == nil || !strings.Contains(err.Error(), clusterKey) {
		t.Fatalf("got %v", err)
	}
}

func TestLead(t *testing.T) {
	ctx := contract(t)
	one := external(t, ctx, 0)
	two, err := Connect(ctx, ConnectConfig{Endpoints: one.client.Endpoints()})
	if err != nil {
		t.Fatal(err)
	}
	defer two.Close()
	first, resign := context.WithCancel(ctx)
	lost, err := one.Lead(first, "controller")
	if err != nil {
		t.Fatal(err)
	}
	second := make(chan error, 1)
	go func() {
		_, err := two.Lead(ctx, "controller")
		second <- err
	}()
	select {
	case err := <-second:
		t.Fatalf("two lead at once: %v", err)
	case <-lost:
		t.Fatal("lost at once")
	case <-time.After(300 * time.Millisecond):
	}
	resign()
	<-lost
	if err := <-second; err != nil {
		t.Fatal(err)
	}
}

func TestLeadEmbeddedIsAtOnce(t *testing.T) {
	ctx := contract(t)
	s := opened(t, ctx, t.TempDir())
	leading, resign := context.WithCancel(ctx)
	lost, err := s.Lead(leading, "controller")
	if err != nil {
		t.Fatal(err)
	}
	resign()
	<-lost
}

// TestConcurrentCommits: of two commits from one revision, one succeeds.
func TestConcurrentCommits(t *testing.T) {
	ctx := contract(t)
	s := opened(t, ctx, t.TempDir())
	rev := loaded(t, ctx, s).Revision
	results := make(chan error, 8)
	for i := range cap(results) {
		go func() {
			_, err := s.Commit(ctx, rev, fleet.Changeset{Jobs: []fleet.Job{job(fmt.Sprint("j", i))}})
			results <- err
		}()
	}
	won := 0
	for range cap(results) {
		err := <-results
		if err == nil {
			won++
		} else if !errors.Is(err, fleet.ErrConflict) {
			t.Error(err)
		}
	}
	if won != 1 || len(loaded(t, ctx, s).Jobs) != 1 {
		t.Fatalf("%d won", won)
	}
}

// TestDamagedNumbers: a job of impossible size is refused by its key, before any code
// allocates memory for that many guests.
func TestDamagedNumbers(t *testing.T) {
	at := key("jobs", fleet.JobID("j 7"))
	for name, damage := range map[string]func(*fleet.Job){
		"no guests":       func(j *fleet.Job) { j.Spec.Guests = 0 },
		"negative guests": func(j *fleet.Job) { j.Spec.Guests = -1 },
		"many guests":     func(j *fleet.Job) { j.Spec.Guests, j.Spec.Ranks = 1<<50, 1<<19 },
		"no ranks":        func(j *fleet.Job) { j.Spec.Ranks = 0 },
		"many ranks":      func(j *fleet.Job) { j.Spec.Ranks = 1 << 50 },
		"a far network":   func(j *fleet.Job) { j.Subnet = fleet.MostSubnet + 1 },
		"nothing":         nil,
	} {
		j := job("j 7")
		if damage != nil {
			damage(&j)
		}
		row, err := json.Marshal(j)
		if err != nil {
			t.Fatal(err)
		}
		err = newReading().decode(at, row, 5)
		if damage == nil && err != nil || damage != nil && (err == nil || !strings.Contains(err.Error(), at) || !strings.Contains(err.Error(), "damaged")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEncodeIsPure(t *testing.T) {
	ops, _, err := (&specs{of: map[fleet.JobID]fleet.Digest{}}).encode(0, everything())
	if err != nil {
		t.Fatal(err)
	}
	r := newReading()
	for _, op := range ops {
		if !op.IsPut() {
			t.Fatalf("%s is not a put", op.KeyBytes())
		}
		if err := r.decode(string(op.KeyBytes()), op.ValueBytes(), 5); err != nil {
			t.Fatal(err)
		}
	}
	snap, err := r.whole()
	if err != nil {
		t.Fatal(err)
	}
	same(t, snap, fleet.NewSnapshot().Apply(everything(), 5))
	if _, ok := any(ops[0]).(clientv3.Op); !ok || string(ops[0].KeyBytes()) != guardKey {
		t.Fatal("the guard comes first")
	}
}

// What waits may end twice: because a candidate's lease ended, and because it leads.
func TestAWaitEndsTwice(t *testing.T) {
	ctx := contract(t)
	s := opened(t, ctx, t.TempDir())
	waiting, stop := s.untilFault(ctx)
	stop()
	stop()
	if waiting.Err() == nil {
		t.Error("it did not end")
	}
}
