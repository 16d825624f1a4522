// This file has a store of several members, each embedded in a controller. They reach each other
// over TLS, by certificates that the caller provides. A member joins without a vote, and gets
// one when it has all of the store. Its tests run three members over real sockets.

package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"pagurus/internal/pause"
)

// Peer says how a member reaches the others, and how it is reached.
type Peer struct {
	Name      string // unique in the cluster; the member keeps it for good
	Listen    string // HOST:PORT for the other members
	Advertise string // HOST:PORT at which they call this one
	Serves    string // HOST:PORT at which the member's controller is called: a note for other members
	Machine   string // the identity of its machine: a note for other members
	Files     PeerFiles
	Join      string // what Admit has given, at the first start of a member that joins; later it is not read
}

// PeerFiles are the certificates of a member, as PEM. They are read for each connection, so they
// may be renewed. The name that every peer's certificate must have is ServerName.
type PeerFiles struct {
	Certificate, Key, Authority string
	ServerName                  string
}

// Times of a store of several members. They are on machines that may be busy, with a network between.
const (
	peerElection = 1500 * time.Millisecond
	// gatherLimit bounds how long a member waits for most of the others; then its process should
	// say so, and start again.
	gatherLimit  = time.Minute
	admitLimit   = 20 * time.Second // etcd wants all members to have been connected for five seconds
	promoteLimit = 10 * time.Minute // a joining member has to fetch the whole store
	promoteEvery = 200 * time.Millisecond
)

var errAway = errors.New("most of the controllers are away: start them; jobs go on meanwhile")

// ErrRemoved: this member was removed from the cluster, for good.
var ErrRemoved = errors.New("this controller was removed from the cluster: `pagurus controller join` makes it one again, and puts aside what it has")

// removed is the fault of a member that is no longer one.
const removed = "removed"

// Away reports whether an error says that most members were away, which may pass.
func Away(err error) bool { return errors.Is(err, errAway) || errors.Is(err, context.DeadlineExceeded) }

// Member is a member of the store.
type Member struct {
	ID      uint64
	Name    string // empty: it has never started
	Peer    string // HOST:PORT
	Serves  string // HOST:PORT of its controller; empty: not yet known
	Machine string // the identity of its machine; empty: not yet known
	Learner bool   // it has no vote yet
}

// configure sets what a member with peers has besides.
func (p Peer) configure(c *embed.Config) {
	if p.Listen == "" {
		return
	}
	at := func(address string) []url.URL { return []url.URL{{Scheme: "https", Host: address}} }
	c.Name, c.ElectionMs = p.Name, uint(peerElection.Milliseconds())
	c.ListenPeerUrls, c.AdvertisePeerUrls = at(p.Listen), at(p.Advertise)
	if p.Serves != "" {
		c.AdvertiseClientUrls = at(p.Serves)
	}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	if p.Join != "" {
		c.InitialCluster, c.ClusterState = p.Join, embed.ClusterStateFlagExisting
	}
	c.PeerTLSInfo = transport.TLSInfo{
		CertFile: p.Files.Certificate, KeyFile: p.Files.Key, TrustedCAFile: p.Files.Authority, ClientCertAuth: true,
		// Hosts and users have certificates of the same authority, under other names.
		AllowedHostnames: []string{p.Files.ServerName}, ServerName: p.Files.ServerName, SkipClientSANVerify: true,
	}
}

// noticeStop makes the end of a member that was removed a fault.
func (m *member) noticeStop() {
	<-m.etcd.Server.StoppingNotify()
	if m.living.Err() == nil {
		m.fault.noteFault(removed)
	}
}

// takePart tells the others where this member is now, and gets its vote.
func (s *Store) takePart(ctx context.Context) error {
	p := s.member.peer
	if p.Listen == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, promoteLimit)
	defer cancel()
	me := uint64(s.member.etcd.Server.MemberID())
	here := url.URL{Scheme: "https", Host: p.Advertise}
	for {
		got, err := s.client.MemberList(ctx) // as all know it: this member may know itself only from before
		for _, m := range listed(got) {
			switch {
			case m.ID != me:
				continue
			case m.Peer != p.Advertise:
				_, err = s.client.MemberUpdate(ctx, me, []string{here.String()})
			case m.Learner:
				_, err = s.client.MemberPromote(ctx, me)
			default:
				if err = s.noteMachine(ctx, me); err == nil {
					return nil
				}
			}
		}
		if cause := s.member.fault.cause(); cause != nil {
			return cause
		}
		if pause.For(ctx, promoteEvery) != nil { // it has not caught up, or nobody leads
			return fmt.Errorf("waiting for a vote among the controllers: %w", errors.Join(err, ctx.Err()))
		}
	}
}

// noteMachine notes which machine a member is on. Nobody keeps the store tidy yet: where it is full, this makes room.
func (s *Store) noteMachine(ctx context.Context, me uint64) error {
	_, err := patiently(ctx, s, func() (*clientv3.PutResponse, error) {
		return s.client.Put(ctx, machineKey(me), s.member.peer.Machine)
	})
	return err
}

// Several reports whether the store may have several members; each is embedded in a controller.
func (s *Store) Several() bool { return s.member != nil && s.member.peer.Listen != "" }

// Self is this process's member; 0 if the store is external.
func (s *Store) Self() uint64 {
	if s.member == nil {
		return 0
	}
	return uint64(s.member.etcd.Server.MemberID())
}

// Members are the members of the store, by name; none if it is external. They are what this
// member knows: that is also answered while most are away.
func (s *Store) Members(ctx context.Context) ([]Member, error) {
	if s.member == nil {
		return nil, nil
	}
	ctx, cancel := s.limited(ctx)
	defer cancel()
	got, err := s.client.MemberList(ctx, clientv3.WithSerializable())
	if err != nil {
		return nil, s.explained(ctx, "reading who the controllers are", err)
	}
	out := listed(got)
	noted, err := s.client.Get(ctx, machines, clientv3.WithPrefix(), clientv3.WithSerializable())
	if err != nil {
		return nil, s.explained(ctx, "reading which machines the controllers are", err)
	}
	for _, kv := range noted.Kvs {
		if i := slices.IndexFunc(out, func(m Member) bool { return machineKey(m.ID) == string(kv.Key) }); i >= 0 { // else it was removed
			out[i].Machine = string(kv.Value)
		}
	}
	return out, nil
}

// machineKey is where a member's machine is noted.
func machineKey(member uint64) string { return fmt.Sprintf("%s%x", machines, member) }

func listed(got *clientv3.MemberListResponse) (out []Member) {
	if got == nil {
		return nil
	}
	for _, m := range got.Members {
		out = append(out, Member{ID: m.ID, Name: m.Name, Peer: hostOf(m.PeerURLs), Serves: hostOf(m.ClientURLs), Learner: m.IsLearner})
	}
	slices.SortFunc(out, func(a, b Member) int { return strings.Compare(a.Name+" "+a.Peer, b.Name+" "+b.Peer) })
	return out
}

// nowhere is the address of a member that listens nowhere.
const nowhere = "127.0.0.1:1"

// hostOf is the HOST:PORT of the first URL; empty: there is none.
func hostOf(urls []string) string {
	if len(urls) == 0 {
		return ""
	}
	if u, err := url.Parse(urls[0]); err == nil && u.Host != nowhere {
		return u.Host
	}
	return ""
}

// Admit lets a new member in, and returns the Join of its Peer. Called again for one that has never
// started, it lets it in once. The member that calls must have peers itself.
func (s *Store) Admit(ctx context.Context, name, peer string) (join string, err error) {
	if !s.Several() {
		return "", errors.New("this controller is not reached by others: start it with --peer ADDRESS:PORT first")
	}
	had, err := s.Members(ctx)
	if err != nil {
		return "", err
	}
	for _, m := range had {
		switch {
		case m.Name == "" && m.Peer == peer:
			if err := s.Remove(ctx, m.ID); err != nil {
				return "", err
			}
		case m.Name == name || m.Peer == peer:
			return "", fmt.Errorf("controller %s at %s is in the cluster already: `pagurus controller remove %s` removes it", m.Name, m.Peer, m.Name)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, admitLimit)
	defer cancel()
	at := url.URL{Scheme: "https", Host: peer}
	got, err := s.client.MemberAddAsLearner(ctx, []string{at.String()})
	// A member that is let in within the second in which one at the same place was removed has the same ID.
	for (unhealthy(err) || errors.Is(err, rpctypes.ErrMemberNotFound)) && pause.For(ctx, promoteEvery) == nil { // all have to have heard each other for some seconds
		got, err = s.client.MemberAddAsLearner(ctx, []string{at.String()})
	}
	switch {
	case unhealthy(err):
		return "", errors.New("some controllers do not reach each other: `pagurus controller ls` shows which; start them, or remove those that do not come back, and try again")
	case errors.Is(err, rpctypes.ErrTooManyLearners):
		return "", errors.New("another controller is joining: wait until `pagurus controller ls` shows that it takes part, or remove it")
	case err != nil:
		return "", s.explained(ctx, "letting a controller in", err)
	}
	var all []string
	for _, m := range got.Members {
		is := m.Name
		if m.ID == got.Member.ID {
			is = name
		}
		if is != "" {
			all = append(all, is+"="+m.PeerURLs[0])
		}
	}
	return strings.Join(all, ","), nil
}

func unhealthy(err error) bool {
	return err != nil && strings.Contains(err.Error(), rpctypes.ErrUnhealthy.Error())
}

// Remove removes a member; one that runs stops. The last one stays.
func (s *Store) Remove(ctx context.Context, id uint64) error {
	ctx, cancel := context.WithTimeout(ctx, admitLimit)
	defer cancel()
	_, err := s.client.MemberRemove(ctx, id)
	for unhealthy(err) && pause.For(ctx, promoteEvery) == nil {
		_, err = s.client.MemberRemove(ctx, id)
	}
	switch {
	case err == nil, errors.Is(err, rpctypes.ErrMemberNotFound):
		_, _ = s.client.Delete(ctx, machineKey(id)) // nobody reads that of one who is no member
		return nil
	case errors.Is(err, rpctypes.ErrMemberNotEnoughStarted), unhealthy(err):
		return errors.New("without that one most controllers would be away, and nothing could be changed: start those that are away, or remove them first")
	}
	return s.explained(ctx, "removing a controller", err)
}
