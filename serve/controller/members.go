package controller

import (
	"cmp"
	"context"
	"crypto/subtle"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"pagurus/decide/access"
	"pagurus/fleet"
	"pagurus/serve/identity"
	"pagurus/serve/wire"
)

// Members are those who belong to the cluster, by its authority and its store.
type Members struct{ c *Controller }

// Members gives the cluster's members.
func (c *Controller) Members() Members { return Members{c} }

func unknown(format string, args ...any) error {
	return &wire.Error{Status: http.StatusUnauthorized, Reason: fmt.Sprintf(format, args...)}
}

// Identify says who shows a certificate: one that this cluster made, for a member that it
// still has, with the key by which the member is known.
func (m Members) Identify(ctx context.Context, c *x509.Certificate, from string) (wire.Peer, error) {
	who, err := m.c.Authority.Verify(c, now())
	expired := errors.Is(err, identity.ErrExpired)
	if err != nil && !expired {
		return wire.Peer{}, unknown("%s", err)
	}
	s, err := m.c.Snapshot(ctx)
	if err != nil {
		return wire.Peer{}, err
	}
	key := identity.Key(c)
	switch who.Role {
	case identity.Host:
		if h, known := s.Hosts[fleet.HostID(who.Name)]; known && h.Credential.Key == key {
			return wire.Peer{Caller: fleet.Caller{Host: h.ID}, Expired: expired}, nil
		}
		return wire.Peer{}, unknown("host %s was removed from this cluster: `pagurus join` it again with a new token", who.Name)
	case identity.User:
		if u, known := s.Users[fleet.UserID(who.Name)]; known && slices.Contains(u.Keys, key) {
			return wire.Peer{Caller: callerOf(u), Groups: u.Groups, Files: machinesAt(s, from), Expired: expired}, nil
		}
		return wire.Peer{}, unknown("this login of %s has ended: `pagurus login` again with a new token", who.Name)
	}
	return wire.Peer{}, unknown("a controller's certificate opens nothing")
}

// machinesAt names the machines of the hosts at an address, which call from there or joined with it. What a host behind NAT says
// is an address in another network, where somebody else may have it.
func machinesAt(s fleet.Snapshot, address string) []string {
	var out []string
	for _, h := range s.Hosts {
		if h.Facts.Machine != "" && h.Facts.Address == address && (h.Facts.From == "" || h.Facts.From == address || h.Credential.Address == address) {
			out = append(out, h.Facts.Machine)
		}
	}
	return out
}

func callerOf(u fleet.User) fleet.Caller {
	return fleet.Caller{UID: u.UID, GID: u.GID, Admin: u.Role == fleet.AdminRole, User: u.ID}
}

// Bearer says who shows a token for programs: the user whose it is, as long as the cluster has both. An administrator's token
// may make less of them.
func (m Members) Bearer(ctx context.Context, text, from string) (wire.Peer, error) {
	t, err := identity.ParseToken(text)
	if err != nil {
		return wire.Peer{}, unknown("%s", err)
	}
	s, err := m.c.Snapshot(ctx)
	if err != nil {
		return wire.Peer{}, err
	}
	kept, known := s.Tokens[fleet.TokenID(t.ID)]
	if !known || subtle.ConstantTimeCompare([]byte(kept.Hash), []byte(t.Hash())) != 1 {
		return wire.Peer{}, unknown("this cluster does not know the token: it was removed, or it is another cluster's; `pagurus token create --access` makes one")
	}
	u, there := s.Users[kept.User]
	switch {
	case !kept.Access:
		return wire.Peer{}, unknown("the token is for joining, not for programs: `pagurus token create --access` makes one for these")
	case !kept.Expires.After(now()):
		return wire.Peer{}, unknown("the token expired on %s: `pagurus token create --access` makes another", kept.Expires.UTC().Format(time.DateTime))
	case !there:
		return wire.Peer{}, unknown("user %s of this token was removed", kept.User)
	}
	by := callerOf(u)
	by.Admin = by.Admin && kept.Role == fleet.AdminRole
	return wire.Peer{Caller: by, Groups: u.Groups, Files: machinesAt(s, from), Token: kept.ID}, nil
}

// Local adds the user that has the uid which the kernel has told. Root is an
// administrator without being a user.
func (m Members) Local(p wire.Peer) wire.Peer {
	s := m.c.current.Load()
	if s == nil || p.UID == 0 {
		return p
	}
	for _, u := range s.Users {
		if u.UID == p.UID {
			p.User, p.Admin = u.ID, u.Role == fleet.AdminRole
		}
	}
	return p
}

// Join lets in whoever shows a token, and signs a certificate for the key of the request.
func (m Members) Join(ctx context.Context, t identity.Token, j wire.Joining, foreign bool) (wire.Joined, error) {
	if err := m.c.leads(ctx); err != nil {
		return wire.Joined{}, err
	}
	key, err := identity.RequestKey([]byte(j.Request))
	if err != nil {
		return wire.Joined{}, &wire.Error{Status: http.StatusBadRequest, Reason: err.Error()}
	}
	e := fleet.Enrolment{
		Token: fleet.TokenID(t.ID), Hash: t.Hash(), Key: key, Host: j.Host, Machine: j.Machine, Foreign: foreign, Address: j.Address, Controller: j.Controller,
	}
	site, cluster := "", ""
	answer, err := m.enrol(ctx, e, func(s fleet.Snapshot) { site, cluster = s.Tokens[e.Token].Site, s.Cluster.ID })
	if err != nil {
		return wire.Joined{}, err
	}
	if j.Controller != "" { // it makes its own certificates
		secret, err := m.c.Authority.Secret()
		return wire.Joined{Cluster: cluster, At: now(), Authority: string(m.c.Authority.Certificate()), Secret: string(secret)}, err
	}
	who := identity.Subject{Role: identity.Host, Name: string(j.Host)}
	if answer.User != "" {
		who = identity.Subject{Role: identity.User, Name: string(answer.User)}
	}
	certificate, err := m.c.Authority.Sign([]byte(j.Request), who, now())
	if err != nil {
		return wire.Joined{}, err
	}
	m.c.Log.Info("joined", "member", who.String(), "token", t.ID)
	return wire.Joined{
		User: answer.User, Site: site, Cluster: cluster, At: now(),
		Certificate: string(certificate), Authority: string(m.c.Authority.Certificate()),
	}, nil
}

// enrol has the planner decide about who joins; before is called with the state in which it does.
func (m Members) enrol(ctx context.Context, e fleet.Enrolment, before func(fleet.Snapshot)) (answer fleet.Answer, err error) {
	var failure error
	err = m.c.do(ctx, forJoins, func(ctx context.Context) {
		before(m.c.snap())
		answer, failure = m.c.step(ctx, fleet.Observation{At: now(), Enrolment: &e})
		m.c.noteStoreError(failure)
	})
	if err != nil {
		return answer, unasked(err)
	}
	return answer, answerable(failure)
}

// NotLetIn gives a controller that the others did not take its use of the token back.
func (m Members) NotLetIn(ctx context.Context, t identity.Token, j wire.Joining) error {
	key, err := identity.RequestKey([]byte(j.Request))
	if err != nil {
		return err
	}
	e := fleet.Enrolment{Token: fleet.TokenID(t.ID), Hash: t.Hash(), Key: key, Controller: j.Controller, NotLetIn: true}
	_, err = m.enrol(ctx, e, func(fleet.Snapshot) {})
	return err
}

// Renew makes a certificate for the same key.
func (m Members) Renew(ctx context.Context, p wire.Peer, q wire.Renewing) (wire.Renewed, error) {
	if q.Host != "" && p.From == "" && p.Key == "" {
		return m.certify(ctx, p, q)
	}
	request := []byte(q.Request)
	key, err := identity.RequestKey(request)
	switch {
	case err != nil:
		return wire.Renewed{}, &wire.Error{Status: http.StatusBadRequest, Reason: err.Error()}
	case p.Key == "" || key != p.Key:
		return wire.Renewed{}, &wire.Error{Status: http.StatusForbidden, Reason: "a certificate is renewed for its own key only: log in or join again for another"}
	}
	who := identity.Subject{Role: identity.User, Name: string(p.User)}
	if p.Host != "" {
		who = identity.Subject{Role: identity.Host, Name: string(p.Host)}
	}
	certificate, err := m.c.Authority.Sign(request, who, now())
	return wire.Renewed{Certificate: string(certificate)}, err
}

// certify makes a certificate for a host whose agent calls on the socket, as which it is believed. Other hosts take it; the controller
// does not, since no token was shown.
func (m Members) certify(ctx context.Context, p wire.Peer, q wire.Renewing) (none wire.Renewed, err error) {
	s, err := m.c.Snapshot(ctx)
	if err != nil {
		return none, err
	}
	refused := cmp.Or(access.MayCall(p.Caller, access.Attach), q.Host.Refused())
	if s.Hosts[q.Host].Credential.Key != "" {
		refused = cmp.Or(refused, fmt.Sprintf("host %s has joined with a certificate of its own", q.Host))
	}
	switch {
	case refused != "":
		return none, &wire.Error{Status: http.StatusForbidden, Reason: refused}
	case m.c.Authority == nil:
		return none, &wire.Error{Status: http.StatusNotImplemented, Reason: "this controller makes no certificates: it listens on its socket only"}
	}
	if _, err := identity.RequestKey([]byte(q.Request)); err != nil {
		return none, &wire.Error{Status: http.StatusBadRequest, Reason: err.Error()}
	}
	certificate, err := m.c.Authority.Sign([]byte(q.Request), identity.Subject{Role: identity.Host, Name: string(q.Host)}, now())
	return wire.Renewed{Certificate: string(certificate), Authority: string(m.c.Authority.Certificate())}, err
}

// namedToken gives a token that is asked for its ID and its secret.
func (c *Controller) namedToken(q *fleet.Request) (text string, err error) {
	if q.Verb != fleet.AddToken || q.Token == nil {
		return "", nil
	}
	if c.Authority == nil {
		return "", &wire.Error{Status: http.StatusNotImplemented, Reason: "nobody can join this controller: it listens on its socket only"}
	}
	t, record := c.Authority.NewToken(), *q.Token
	record.Salt = ""
	if q.Asks != "" { // it may be asked for again
		if t, record.Salt, err = c.Authority.NewDerivedToken(); err != nil {
			return "", err
		}
	}
	record.ID, record.Hash = fleet.TokenID(t.ID), t.Hash()
	q.Token = &record
	return t.String(), nil
}

// madeToken is the token that a request has, which may have been made when it was asked for before; text is the one that was made for it now.
func (c *Controller) madeToken(q fleet.Request, text string) (string, error) {
	if text == "" || q.Asks == "" {
		return text, nil
	}
	for id, is := range c.snap().Tokens {
		switch {
		case is.Request != q.ID:
		case id == q.Token.ID:
			return text, nil
		default:
			t, err := c.Authority.DeriveToken(string(id), is.Salt)
			if err == nil && t.Hash() != is.Hash {
				return "", &wire.Error{Status: http.StatusConflict, Reason: fmt.Sprintf("token %s was made for this request with another key of the cluster, and cannot be told again; ask with an Idempotency-Key of its own", id)}
			}
			return t.String(), err
		}
	}
	return "", &wire.Error{Status: http.StatusConflict, Reason: "the token that was made for this request has been removed meanwhile; ask with an Idempotency-Key of its own"}
}

// claims says why an agent is not what it says that it is; nil: it may be.
func (c *Controller) claims(by wire.Peer, id fleet.HostID, f fleet.Facts) error {
	h, known := c.snap().Hosts[id]
	if !known {
		h = fleet.Host{ID: id}
	}
	if reason := access.MayBe(by.Caller, h, f, c.snap().Hosts, c.snap().Cluster.Encryption); reason != "" {
		return errors.New(reason)
	}
	return nil
}

// dismiss ends the sessions of hosts that are no longer in the cluster.
func (c *Controller) dismiss(gone []fleet.HostID) {
	for _, id := range gone {
		if h := c.hosts[id]; h != nil {
			go h.session.End("this host was removed from the cluster")
		}
	}
}
