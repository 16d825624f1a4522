// This file keeps a member's certificate valid for as long as its client is used: a command
// may run for weeks, and a machine may sleep through the end of its certificate. It must not
// know what requests mean. Its tests let real certificates end under real connections.

package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"pagurus/serve/identity"
)

const (
	renewPath  = "/v1/renew"
	whoAmIPath = "/v1/whoami"

	needlessLimit = 5 * time.Second  // how long a request waits for a certificate that it does not need yet
	neededLimit   = 30 * time.Second // and for one that it needs
	needlessAgain = 10 * time.Minute // between two tries to get one that is not needed yet
)

// renewal is a member's transport. Before a request it renews a certificate that is past half of
// its time. If the controller no longer takes the certificate, it renews it and repeats the
// request, since the controller did nothing for it.
type renewal struct {
	client *Client
	under  atomic.Pointer[http.Transport]
	turn   chan struct{} // of capacity 1: full while a certificate is renewed
	tried  time.Time     // the last try that was not needed; for who has the turn
}

// renews makes the client renew its certificate.
func (c *Client) renews() {
	c.renewal = &renewal{client: c, turn: make(chan struct{}, 1)}
	c.renewal.under.Store(c.http.Transport.(*http.Transport))
	c.http = &http.Client{Transport: c.renewal}
}

// RoundTrip makes a request with a certificate that is valid, if one can be had.
func (n *renewal) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Path == renewPath || r.URL.Path == whoAmIPath { // for them any certificate is good
		return n.under.Load().RoundTrip(r)
	}
	n.inTime(r.Context())
	shown := n.client.RenewAt()
	answer, err := n.under.Load().RoundTrip(r)
	if err != nil || answer.StatusCode != http.StatusUnauthorized || time.Now().Before(shown) {
		return answer, err
	}
	err = n.instead(r.Context(), shown)
	if err != nil && !errors.Is(err, ErrNoController) {
		return answer, nil // it says why, and what to do
	}
	_ = answer.Body.Close() // unread
	if err != nil {
		return nil, err // a later try may succeed
	}
	again := r.Clone(r.Context())
	if r.GetBody != nil {
		if again.Body, err = r.GetBody(); err != nil {
			return nil, err
		}
	}
	return n.under.Load().RoundTrip(again)
}

// CloseIdleConnections is for http.Client.
func (n *renewal) CloseIdleConnections() { n.under.Load().CloseIdleConnections() }

// inTime renews a certificate that is still good, if it is due and no other request does so.
func (n *renewal) inTime(ctx context.Context) {
	due := func() bool { return !time.Now().Before(n.client.RenewAt()) }
	if !due() {
		return
	}
	select {
	case n.turn <- struct{}{}:
		defer func() { <-n.turn }()
	default:
		return
	}
	now := time.Now().Round(0) // the monotonic clock does not count while the machine is suspended
	if !due() || now.Sub(n.tried).Abs() < needlessAgain {
		return
	}
	n.tried = now
	ctx, stop := context.WithTimeout(ctx, needlessLimit)
	defer stop()
	_ = n.renew(ctx) // tried again, at the latest when it is needed
}

// instead renews the certificate that was to be renewed at shown, unless somebody has.
func (n *renewal) instead(ctx context.Context, shown time.Time) error {
	ctx, stop := context.WithTimeout(ctx, neededLimit)
	defer stop()
	return n.inTurn(ctx, func() error {
		if !n.client.RenewAt().Equal(shown) {
			return nil
		}
		return n.renew(ctx)
	})
}

func (n *renewal) inTurn(ctx context.Context, do func() error) error {
	select {
	case n.turn <- struct{}{}:
		defer func() { <-n.turn }()
		return do()
	case <-ctx.Done():
		return fmt.Errorf("renew the certificate: %w in time: %w", ErrNoController, ctx.Err())
	}
}

// renew is called by who has the turn.
func (n *renewal) renew(ctx context.Context) error {
	err := n.client.credentials.Renew(ctx, func(ctx context.Context, request []byte) ([]byte, error) {
		b, err := json.Marshal(Renewing{Request: string(request)})
		if err != nil {
			return nil, err
		}
		var out Renewed
		err = n.client.call(ctx, http.MethodPost, renewPath, b, &out)
		return []byte(out.Certificate), err
	})
	if err != nil {
		return fmt.Errorf("renew the certificate: %w", err)
	}
	// A connection shows one certificate for all its life. Those that are in use now would be
	// used again after that has ended, so they stay with a transport that keeps none.
	old := n.under.Load()
	n.under.Store(old.Clone())
	old.CloseIdleConnections()
	return nil
}

// RenewAt is when the certificate should be renewed; zero: there is none.
func (c *Client) RenewAt() time.Time {
	if c.credentials == nil {
		return time.Time{}
	}
	return c.credentials.RenewAt()
}

// Renew gets and keeps a new certificate. After an error the old one stands. It is for who
// makes no requests: with them the client renews by itself.
func (c *Client) Renew(ctx context.Context) error {
	switch {
	case c.renewal != nil:
	case c.credentials != nil:
		return c.recertify(ctx)
	default:
		return errors.New("there is no certificate to renew")
	}
	return c.renewal.inTurn(ctx, func() error { return c.renewal.renew(ctx) })
}

// Credentials are what the client shows to the controller, or by which a host shows others who it is; nil: it calls on the socket, and
// Certify has not got any.
func (c *Client) Credentials() *identity.Credentials { return c.credentials }
