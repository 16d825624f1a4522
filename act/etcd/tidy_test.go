package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pagurus/fleet"
)

// small is a store that has much less room than usual, and that only the test tidies, and what meets a full one.
func small(t *testing.T, ctx context.Context, quota int64) *Store {
	t.Helper()
	m := newMember(EmbedConfig{Dir: t.TempDir()})
	m.quota, m.roomy, m.compactAfter = quota, quota/4, quota/16
	s, err := m.embed(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// submitted is what adds a job: it takes the cluster's next number.
func submitted(snap fleet.Snapshot, j fleet.Job) fleet.Changeset {
	next := snap.Cluster
	next.NextJob++
	return fleet.Changeset{Cluster: &next, Jobs: []fleet.Job{j}}
}

// churn puts jobs with a long specification and removes them, until so many bytes were written.
func churn(ctx context.Context, s *Store, snap *fleet.Snapshot, bytes int) error {
	for n := 0; bytes > 0; n++ {
		j := long(fmt.Sprint("j", n), 40<<10)
		for _, c := range []fleet.Changeset{{Jobs: []fleet.Job{j}}, {GoneJobs: []fleet.JobID{j.ID}}} {
			rev, err := s.Commit(ctx, snap.Revision, c)
			if err != nil {
				return err
			}
			*snap = snap.Apply(c, rev)
		}
		bytes -= 40 << 10
	}
	return nil
}

// However fast jobs come and go, what they have left goes before it fills the store: nothing is refused, and nobody starts anything again.
func TestJobsThatComeAndGoDoNotFillTheStore(t *testing.T) {
	ctx := contract(t)
	const quota = 16 << 20
	s := small(t, ctx, quota)
	go s.keepTidy()
	snap := loaded(t, ctx, s)
	if err := churn(ctx, s, &snap, 3*quota); err != nil {
		t.Fatal(err)
	}
	same(t, loaded(t, ctx, s), snap)
}

// Old revisions go by what was written, not by time: the ones that somebody may be reading stay, and a file with much free space becomes small.
func TestOldRevisionsGoByBytes(t *testing.T) {
	ctx := contract(t)
	const quota = 64 << 20
	s := small(t, ctx, quota)
	snap, now := loaded(t, ctx, s), time.Now()
	tidy := func(later time.Duration) {
		t.Helper()
		s.member.etcd.Server.Backend().ForceCommit()
		if now = now.Add(later); s.tidy(ctx, now) != nil {
			t.Fatal(s.tidy(ctx, now))
		}
	}
	readable := func(at int64) bool {
		t.Helper()
		_, err := s.client.Get(ctx, guardKey, clientv3.WithRev(at))
		if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
			t.Fatal(err)
		}
		return err == nil
	}
	first := snap.Revision
	tidy(0)
	tidy(time.Hour)
	if !readable(first) {
		t.Error("old revisions went though nothing was written")
	}
	if err := churn(ctx, s, &snap, quota/2); err != nil {
		t.Fatal(err)
	}
	tidy(time.Second)
	held := snap.Revision
	if err := churn(ctx, s, &snap, 1); err != nil {
		t.Fatal(err)
	}
	tidy(heldFor - time.Second)
	if !readable(held) {
		t.Error("what was the newest 4 s ago cannot be read")
	}
	tidy(time.Second)
	if readable(held-1) || !readable(held) {
		t.Error("half of the store was written since, and old revisions are there, or the one that was the newest 5 s ago is not")
	}
	tidy(time.Second)
	if size := s.member.etcd.Server.Backend().Size(); size > quota/8 {
		t.Errorf("nothing is kept, and the file has %d KiB", size>>10)
	}
	same(t, loaded(t, ctx, s), snap)
}

// The alarm of a full store ends by itself, whoever of the members has raised it and whoever writes. One that is full of what is kept says so.
func TestAFullStoreRepairsItself(t *testing.T) {
	ctx := contract(t)
	s := small(t, ctx, 32<<20)
	snap := loaded(t, ctx, s)
	for _, who := range []uint64{uint64(s.member.etcd.Server.MemberID()), 7} {
		if _, err := s.member.etcd.Server.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: who, Alarm: pb.AlarmType_NOSPACE}); err != nil {
			t.Fatal(err)
		}
		c := fleet.Changeset{Jobs: []fleet.Job{job("j0")}}
		snap = snap.Apply(c, committed(t, ctx, s, snap.Revision, c))
		if err := s.KeepNoticeMarks(ctx, []fleet.NoticeMark{{Receiver: "a"}}, nil); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	for n := 1; err == nil && n < 2000; n++ {
		c := submitted(snap, long(fmt.Sprint("j", n), 200<<10))
		var rev int64
		if rev, err = s.Commit(ctx, snap.Revision, c); err == nil {
			snap = snap.Apply(c, rev)
		}
	}
	if err == nil || !strings.Contains(err.Error(), "the store of 32 MiB is full") {
		t.Fatalf("with %d jobs: %v", len(snap.Jobs), err)
	}
	// Nobody can add; whoever moves, changes or removes can, also after an alarm, and then there is room.
	if _, err := s.member.etcd.Server.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: 7, Alarm: pb.AlarmType_NOSPACE}); err != nil {
		t.Fatal(err)
	}
	changed := job("j0")
	changed.Attempt = 7
	moving := snap.Cluster
	moving.NextMove++
	for _, c := range []fleet.Changeset{{Jobs: []fleet.Job{changed}}, {Cluster: &moving, Jobs: []fleet.Job{long("j1", 201<<10)}}, {GoneJobs: []fleet.JobID{"j1", "j2", "j3", "j4", "j5", "j6", "j7", "j8", "j9", "j10"}}} {
		snap = snap.Apply(c, committed(t, ctx, s, snap.Revision, c))
	}
	if err := s.tidy(ctx, time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	c := submitted(snap, long("j3000", 200<<10))
	snap = snap.Apply(c, committed(t, ctx, s, snap.Revision, c))
	same(t, loaded(t, ctx, s), snap)
}

// A member whose store is full starts: what it writes first makes room.
func TestAMemberOfAFullStoreStarts(t *testing.T) {
	ctx := contract(t)
	at := freePort(t)
	c := EmbedConfig{Dir: t.TempDir(), Peer: Peer{Name: "c1", Listen: at, Advertise: at, Serves: "192.0.2.1:7461", Machine: "m1", Files: newAuthority(t).files(t, peerName)}}
	for range 2 {
		s, err := newMember(c).embed(ctx)
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.member.etcd.Server.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: 7, Alarm: pb.AlarmType_NOSPACE})
		if err := errors.Join(err, s.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// Where etcd would end the process while the file is made small, only the store stops, and says so to whoever asked for it.
func TestAFaultOfMakingTheFileSmall(t *testing.T) {
	ctx := contract(t)
	m := newMember(EmbedConfig{Dir: t.TempDir()})
	m.quota, m.roomy, m.compactAfter = 32<<20, 8<<20, 2<<20
	if _, err := m.embed(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.close() }) // what is broken does not stop
	db := m.etcd.Server.Cfg.BackendPath()
	if err := errors.Join(os.Rename(db, db+".was"), os.MkdirAll(filepath.Join(db, "in the way"), 0o700)); err != nil {
		t.Fatal(err)
	}
	said := make(chan error, 1)
	go func() {
		defer close(said)
		said <- m.defragment(0)
	}()
	if err := <-said; err == nil || !strings.Contains(err.Error(), "has stopped") {
		t.Errorf("it says %v", err)
	}
}

// fullAfterwards is a store that makes changes and says that there is no space for them, as etcd does at its limit.
type fullAfterwards struct {
	clientv3.KV
	lies int
}

func (f *fullAfterwards) Txn(ctx context.Context) clientv3.Txn { return &fullTxn{f.KV.Txn(ctx), f} }

type fullTxn struct {
	clientv3.Txn
	of *fullAfterwards
}

func (t *fullTxn) If(cs ...clientv3.Cmp) clientv3.Txn   { t.Txn = t.Txn.If(cs...); return t }
func (t *fullTxn) Then(ops ...clientv3.Op) clientv3.Txn { t.Txn = t.Txn.Then(ops...); return t }
func (t *fullTxn) Else(ops ...clientv3.Op) clientv3.Txn { t.Txn = t.Txn.Else(ops...); return t }

func (t *fullTxn) Commit() (*clientv3.TxnResponse, error) {
	done, err := t.Txn.Commit()
	if err == nil && t.of.lies > 0 {
		t.of.lies--
		return nil, rpctypes.ErrNoSpace
	}
	return done, err
}

// A change for which etcd says that there was no space, and that it has made, is made. One that another has made in its place is a conflict.
func TestAChangeThatTookTheLastSpaceIsMade(t *testing.T) {
	ctx := contract(t)
	s := small(t, ctx, 32<<20)
	snap := loaded(t, ctx, s)
	kv := &fullAfterwards{KV: s.client.KV}
	s.client.KV = kv
	for _, c := range []fleet.Changeset{
		{Jobs: []fleet.Job{job("j0"), long("j1", 40<<10)}},
		{Jobs: []fleet.Job{job("j2")}, GoneJobs: []fleet.JobID{"j1"}},
		{GoneJobs: []fleet.JobID{"j0"}},
	} {
		kv.lies = 1
		snap = snap.Apply(c, committed(t, ctx, s, snap.Revision, c))
		same(t, loaded(t, ctx, s), snap)
	}
	old := snap.Revision - 1
	kv.lies = 1
	if _, err := s.Commit(ctx, old, fleet.Changeset{Jobs: []fleet.Job{job("j3")}}); !errors.Is(err, fleet.ErrConflict) {
		t.Fatalf("from an old revision: %v", err)
	}
	same(t, loaded(t, ctx, s), snap)
}

// compacted is a store whose revisions go while they are read.
type compacted struct {
	clientv3.KV
	reads int
}

func (c *compacted) Get(context.Context, string, ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	c.reads++
	return nil, rpctypes.ErrCompacted
}

// Who reads a store whose revisions always go meanwhile is told so at last.
func TestReadingEnds(t *testing.T) {
	ctx := contract(t)
	s := small(t, ctx, 32<<20)
	kv := &compacted{KV: s.client.KV}
	s.client.KV = kv
	if _, err := s.Load(ctx); !errors.Is(err, rpctypes.ErrCompacted) || kv.reads != rereads+1 {
		t.Errorf("after %d reads: %v", kv.reads, err)
	}
	if _, _, err := s.LoadUsage(ctx); !errors.Is(err, rpctypes.ErrCompacted) || kv.reads != 2*(rereads+1) {
		t.Errorf("after %d reads: %v", kv.reads, err)
	}
	s.client.KV = kv.KV
}
