// This file has the election of the controller that leads. Every controller that could lead has a
// key with a lease; the oldest key leads.

package etcd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/raft/v3"

	"pagurus/internal/pause"
)

// memberLease is the time after which another member's controller leads in place of a dead one, in
// seconds. A lease is renewed three times within it.
const memberLease = 5

// Candidate is a process that leads, or would.
type Candidate struct {
	Name   string `json:"name"`
	Serves string `json:"serves,omitempty"` // HOST:PORT at which it is called
	Member uint64 `json:"member,omitempty"` // that it embeds
}

// leading is the key of the process that leads.
type leading struct {
	key   string
	since int64 // the revision that made it
}

// Lead waits until this process is the leader under name. The channel is closed when it
// no longer is, or when ctx ends. Two leaders are harmless because of Commit's guard, not
// because of this.
func (s *Store) Lead(ctx context.Context, name string) (<-chan struct{}, error) {
	if s.member != nil && !s.Several() {
		// The data folder's lock already makes this the only process. With a lease, a
		// restarted controller would wait for its dead predecessor.
		lost := make(chan struct{})
		context.AfterFunc(ctx, func() { close(lost) })
		return lost, nil
	}
	me, seconds := s.candidate, leaseSeconds
	if host, err := os.Hostname(); err == nil {
		me.Name = cmp.Or(me.Name, fmt.Sprintf("%s/%d", host, os.Getpid()))
	}
	if s.Several() {
		me.Member, seconds = s.Self(), memberLease
		if err := s.endPredecessor(ctx, name); err != nil {
			return nil, err
		}
	}
	value, err := json.Marshal(me)
	if err != nil {
		return nil, fmt.Errorf("becoming a candidate: %w", err)
	}
	for {
		lost, err := s.campaign(ctx, name, string(value), seconds)
		if err == nil || !s.Several() || ctx.Err() != nil || s.member.fault.cause() != nil {
			return lost, err
		}
		// Its lease ended while no member led, or too few were there. It begins again behind those that still have one.
		if pause.For(ctx, patienceEvery) != nil {
			return nil, err
		}
	}
}

// campaign waits until a candidate leads, as long as its lease lasts.
func (s *Store) campaign(ctx context.Context, name, value string, seconds int) (<-chan struct{}, error) {
	session, err := concurrency.NewSession(s.client, concurrency.WithTTL(seconds))
	if err != nil {
		return nil, s.explained(ctx, "opening a session with etcd", err)
	}
	election := concurrency.NewElection(session, leaders+name)
	waiting, stop := s.untilFault(ctx) // a member that was removed would wait for ever, too
	defer stop()
	go func() { // without its lease it would wait for ever
		select {
		case <-session.Done():
			stop()
		case <-waiting.Done():
		}
	}()
	if err := election.Campaign(waiting, value); err != nil {
		session.Close()
		return nil, s.explained(ctx, "waiting to become the leader", err)
	}
	s.leading.Store(&leading{key: election.Key(), since: election.Rev()})
	context.AfterFunc(ctx, func() { session.Close() }) // returns the lease, so that the next leader need not wait
	return session.Done(), nil
}

// Term is a number that is higher for each process that leads; 0: this one does not.
func (s *Store) Term() int64 {
	if l := s.leading.Load(); l != nil {
		return l.since
	}
	return 0
}

// endPredecessor ends the lease of an earlier process with this member, which is dead since this one has
// its folder's lock.
func (s *Store) endPredecessor(ctx context.Context, name string) error {
	ctx, cancel := s.limited(ctx)
	defer cancel()
	got, err := patiently(ctx, s, func() (*clientv3.GetResponse, error) {
		return s.client.Get(ctx, leaders+name+"/", clientv3.WithPrefix())
	})
	if err != nil {
		return s.explained(ctx, "reading who leads", err)
	}
	for _, kv := range got.Kvs {
		var was Candidate
		if json.Unmarshal(kv.Value, &was) != nil || was.Member != s.Self() {
			continue
		}
		if _, err := s.client.Revoke(ctx, clientv3.LeaseID(kv.Lease)); err != nil && !strings.Contains(err.Error(), rpctypes.ErrLeaseNotFound.Error()) {
			return s.explained(ctx, "ending the lease of an earlier process", err)
		}
	}
	return nil
}

// Candidates are the processes that could lead under name; the first one leads. They are what this
// member knows: that is also answered while most are away.
func (s *Store) Candidates(ctx context.Context, name string) ([]Candidate, error) {
	ctx, cancel := s.limited(ctx)
	defer cancel()
	got, err := s.client.Get(ctx, leaders+name+"/", clientv3.WithPrefix(), clientv3.WithSerializable(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		return nil, s.explained(ctx, "reading who leads", err)
	}
	var out []Candidate
	for _, kv := range got.Kvs {
		var c Candidate
		if json.Unmarshal(kv.Value, &c) != nil {
			c.Name = string(kv.Value) // an older controller wrote it
		}
		out = append(out, c)
	}
	return out, nil
}

// patienceEvery is the pause between two tries of what no member could take.
const patienceEvery = 100 * time.Millisecond

// patiently repeats what did surely not happen because no member led: with several that is so for a
// second or two after the one that led has gone. In a full store it makes room, once; it may find then that it was done.
func patiently[T any](ctx context.Context, s *Store, do func() (T, error)) (T, error) {
	for tidied := false; ; {
		out, err := do()
		if s.member != nil && !tidied && errors.Is(err, rpctypes.ErrNoSpace) && s.tidy(ctx, time.Now()) == nil {
			tidied = true
			continue
		}
		if err == nil || !s.Several() || !undone(err) || pause.For(ctx, patienceEvery) != nil {
			return out, err
		}
	}
}

// undone reports whether an error says that nobody led, so that nothing was done.
func undone(err error) bool {
	for _, is := range []error{raft.ErrProposalDropped, rpctypes.ErrNoLeader, rpctypes.ErrLeaderChanged} {
		if strings.Contains(err.Error(), is.Error()) {
			return true
		}
	}
	return false
}
