// Package etcd stores the cluster's snapshot in etcd: embedded in the controller's
// process, or an external cluster.
//
// Every object is one key under /pagurus/v1/ with its JSON form as the value. A changeset
// is one transaction, guarded by a key that every transaction writes. The package makes
// no decisions and does not interpret states. Its tests use a real embedded etcd, also
// killed or with a full disk, and for the external case a real etcd over a socket.
package etcd

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"pagurus/fleet"
	"pagurus/internal/pause"
)

// Limits of times and sizes.
const (
	opLimit       = 10 * time.Second // one request to etcd; normally milliseconds, with a slow disk a second
	dialLimit     = 5 * time.Second
	leaseSeconds  = 10   // an external cluster notices a dead leader within this time
	loadPage      = 1000 // objects read at once, to limit the size of answers
	watchPause    = 500 * time.Millisecond
	keepAlive     = 5 * time.Second
	initialNumber = 1
	rereads       = 10 // of a store whose revisions go while it is read; each takes seconds
)

// Store is the cluster's storage. Its methods may be called concurrently.
type Store struct {
	client    *clientv3.Client
	member    *member // nil if external
	candidate Candidate
	leading   atomic.Pointer[leading] // nil: it does not lead, or nobody else could
	specs     specs
}

// ConnectConfig is the address of an external etcd cluster.
type ConnectConfig struct {
	Endpoints []string    // "https://host:2379"
	TLS       *tls.Config // nil: none
	User      string
	Password  string
	Candidate Candidate // this process, as others see it
}

// Connect opens an external etcd cluster. It fails if no endpoint answers.
func Connect(ctx context.Context, c ConnectConfig) (*Store, error) {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: c.Endpoints, TLS: c.TLS, Username: c.User, Password: c.Password,
		DialTimeout: dialLimit, DialKeepAliveTime: keepAlive, DialKeepAliveTimeout: keepAlive,
		Logger: zap.NewNop(),
	})
	if err != nil {
		return nil, fmt.Errorf("connecting to etcd at %s: %w", strings.Join(c.Endpoints, ","), err)
	}
	s := &Store{client: client, candidate: c.Candidate}
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	if _, err := client.Get(ctx, guardKey); err != nil {
		client.Close()
		return nil, fmt.Errorf("connecting to etcd at %s: %w; check that it runs and that --etcd names it", strings.Join(c.Endpoints, ","), err)
	}
	return s, nil
}

// Close closes the store. An embedded etcd is stopped cleanly.
func (s *Store) Close() error {
	if s.member == nil {
		return s.client.Close()
	}
	// The in-process client has no connection.
	return s.member.close()
}

// Load reads the whole snapshot at one revision. An empty store gets a new cluster's
// identity. An invalid object is an error that names its key; nothing is changed then.
func (s *Store) Load(ctx context.Context) (fleet.Snapshot, error) {
	for again := 0; ; {
		snap, err := s.load(ctx)
		if errors.Is(err, rpctypes.ErrCompacted) && ctx.Err() == nil && again < rereads {
			again++ // it read for longer than old revisions are kept
			continue
		}
		if err != nil || snap.Revision != 0 {
			return snap, err
		}
		cluster := fleet.Cluster{ID: strings.ToLower(rand.Text()), NextJob: initialNumber, NextMove: initialNumber}
		// After a conflict another controller's identity counts.
		if _, err := s.Commit(ctx, 0, fleet.Changeset{Cluster: &cluster}); err != nil && !errors.Is(err, fleet.ErrConflict) {
			return fleet.Snapshot{}, err
		}
	}
}

func (s *Store) load(ctx context.Context) (fleet.Snapshot, error) {
	none := fleet.Snapshot{}
	ctx, cancel := s.limited(ctx)
	defer cancel()
	r, from, at := newReading(), root, int64(0)
	for {
		got, err := patiently(ctx, s, func() (*clientv3.GetResponse, error) {
			return s.client.Get(ctx, from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(family)), clientv3.WithLimit(loadPage), clientv3.WithRev(at))
		})
		if err != nil {
			return none, s.explained(ctx, "reading the store", err)
		}
		at = got.Header.Revision // all pages are of the first one's revision
		for _, kv := range got.Kvs {
			if err := r.decode(string(kv.Key), kv.Value, kv.ModRevision); err != nil {
				return none, cmp.Or(s.tooNew(ctx, at), err)
			}
		}
		if !got.More || len(got.Kvs) == 0 {
			break
		}
		from = string(got.Kvs[len(got.Kvs)-1].Key) + "\x00"
	}
	snap, err := r.whole()
	if err != nil {
		return none, err
	}
	if objects := len(snap.Hosts) + len(snap.Guests) + len(snap.Jobs) + len(snap.Moves) + len(snap.Migrations); snap.Cluster.ID == "" && (objects > 0 || snap.Revision != 0) {
		return none, fmt.Errorf("the store holds %d objects but %s is missing: it is damaged, restore it from a copy", objects, clusterKey)
	}
	s.specs.loaded(snap, r.apart)
	return snap, nil
}

// tooNew is an error if the whole store is of a newer format, which says more than what cannot
// be understood in it.
func (s *Store) tooNew(ctx context.Context, revision int64) error {
	got, err := s.client.Get(ctx, guardKey, clientv3.WithRev(revision))
	var f format
	if err != nil || len(got.Kvs) == 0 || json.Unmarshal(got.Kvs[0].Value, &f) != nil || f.Format <= formatNow {
		return nil
	}
	return f.tooNew()
}

// Commit makes the change if the store is still at revision from, whole or not at all,
// and returns the new revision. fleet.ErrConflict means that it is at another. After any
// other error the change may or may not have been made, and the next Commit from the same
// revision detects that by a conflict.
func (s *Store) Commit(ctx context.Context, from int64, c fleet.Changeset) (int64, error) {
	ops, then, err := s.specs.encode(from, c)
	if err != nil {
		return 0, err
	}
	if err := s.makeRoom(ctx, ops, then.adds); err != nil {
		return 0, err
	}
	ctx, cancel := s.limited(ctx)
	defer cancel()
	guards, still := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(guardKey), "=", from)}, s.leading.Load()
	var who []clientv3.Op
	full := false     // etcd has said so
	if still != nil { // one that was stopped for long does not know that another leads
		guards = append(guards, clientv3.Compare(clientv3.CreateRevision(still.key), "=", still.since))
		who = append(who, clientv3.OpGet(still.key, clientv3.WithKeysOnly()))
	}
	done, err := patiently(ctx, s, func() (*clientv3.TxnResponse, error) {
		done, err := s.client.Txn(ctx).If(guards...).Then(ops...).Else(who...).Commit()
		full = full || errors.Is(err, rpctypes.ErrNoSpace)
		return done, err
	})
	if full && (err != nil || !done.Succeeded) {
		if revision := s.madeAt(ctx, ops); revision > from {
			s.specs.committed(revision, then)
			return revision, nil
		}
	}
	switch {
	case errors.Is(err, rpctypes.ErrTooManyOps), errors.Is(err, rpctypes.ErrRequestTooLarge):
		return 0, fmt.Errorf("a change of %d objects is more than this etcd takes in one transaction: "+
			"start it with --max-txn-ops=%d --max-request-bytes=%d: %w", len(ops), maxTxnOps, maxRequestBytes, err)
	case errors.Is(err, rpctypes.ErrNoSpace) && s.member != nil:
		return 0, fmt.Errorf("%w (%w)", s.member.isFull(), err)
	case errors.Is(err, rpctypes.ErrNoSpace):
		return 0, fmt.Errorf("etcd's space is used up: compact, defragment and `etcdctl alarm disarm`: %w", err)
	case err != nil:
		return 0, s.explained(ctx, "writing the store", err)
	case !done.Succeeded && still != nil && len(done.Responses[0].GetResponseRange().Kvs) == 0:
		return 0, errors.New("another controller leads now")
	case !done.Succeeded:
		return 0, fleet.ErrConflict
	}
	s.specs.committed(done.Header.Revision, then)
	return done.Header.Revision, nil
}

// madeAt is the revision that a change made, if the newest one is that: etcd answers that there is no space also where its own change took
// the last of it. 0: it was not made, or nobody can tell.
func (s *Store) madeAt(ctx context.Context, ops []clientv3.Op) int64 {
	var reads []clientv3.Op
	for _, op := range ops {
		reads = append(reads, clientv3.OpGet(string(op.KeyBytes())))
	}
	got, err := s.client.Txn(ctx).Then(reads...).Commit()
	if err != nil {
		return 0
	}
	revision := int64(0) // of the guard, which every change writes
	for i, op := range ops {
		kvs := got.Responses[i].GetResponseRange().Kvs
		if op.IsDelete() != (len(kvs) == 0) {
			return 0
		}
		if len(kvs) == 0 {
			continue
		}
		if revision = cmp.Or(revision, kvs[0].ModRevision); kvs[0].ModRevision != revision || !bytes.Equal(kvs[0].Value, op.ValueBytes()) {
			return 0
		}
	}
	return revision
}

// Watch returns the snapshot now and after every committed change, until ctx ends. Quick
// successive changes are combined.
func (s *Store) Watch(ctx context.Context) (<-chan fleet.Snapshot, error) {
	snap, err := s.Load(ctx)
	if err != nil {
		return nil, err
	}
	out := make(chan fleet.Snapshot, 1)
	out <- snap
	go func() {
		defer close(out)
		for last := snap.Revision; ctx.Err() == nil; _ = pause.For(ctx, watchPause) {
			s.followChanges(ctx, &last, out)
		}
	}()
	return out, nil
}

// followChanges sends changes after last to out until the watch breaks, by a compaction
// or a lost connection.
func (s *Store) followChanges(ctx context.Context, last *int64, out chan<- fleet.Snapshot) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changes := s.client.Watch(clientv3.WithRequireLeader(ctx), guardKey)
	// Changes between the last snapshot and the watch need an explicit read.
	for first := true; ; first = false {
		if !first {
			w, ok := <-changes
			if !ok || w.Err() != nil {
				return
			}
			if n := len(w.Events); n == 0 || w.Events[n-1].Kv.ModRevision <= *last {
				continue
			}
		}
		snap, err := s.Load(ctx)
		if err != nil {
			return
		}
		if snap.Revision == *last {
			continue
		}
		*last = snap.Revision
		select {
		case out <- snap:
		case <-ctx.Done():
			return
		}
	}
}

// limited sets a request's time limit, and ends it at once when the embedded etcd has
// stopped.
func (s *Store) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, opLimit)
	ctx, stop := s.untilFault(ctx)
	return ctx, func() { stop(); cancel() }
}

// untilFault ends a context when the embedded etcd has stopped.
func (s *Store) untilFault(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	if s.member == nil {
		return ctx, cancel
	}
	go func() {
		select {
		case <-s.member.fault.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// explained adds a useful reason to err, if there is one.
func (s *Store) explained(ctx context.Context, doing string, err error) error {
	if s.member != nil {
		if cause := s.member.fault.cause(); cause != nil {
			return fmt.Errorf("%s: %w", doing, cause)
		}
		if s.Several() && s.member.etcd.Server.Leader() == 0 {
			return fmt.Errorf("%s: %w (%w)", doing, errAway, err)
		}
	}
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
		return fmt.Errorf("%s: etcd did not answer within %v: %w", doing, opLimit, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}
