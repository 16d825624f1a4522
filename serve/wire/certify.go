package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"pagurus/fleet"
	"pagurus/serve/identity"
)

// Certify gets a certificate for a host whose agent calls on the socket, and keeps it in folder, where it is renewed. The controller believes
// the socket who calls; the certificate is for other hosts, which the agent asks and answers about checkpoints and files. Where no controller
// answers, an earlier one is used. After an error there is none.
func (c *Client) Certify(ctx context.Context, folder string, host fleet.HostID) error {
	earlier, err := earlierOf(folder, host)
	if err != nil {
		return err
	}
	request, err := identity.Request(folder)
	if err != nil {
		return err
	}
	switch got, err := c.certificate(ctx, host, request); {
	case err == nil:
		if err := identity.Save(folder, []byte(got.Certificate), []byte(got.Authority), Login{Controller: c.address, Host: host}); err != nil {
			return err
		}
		if earlier, err = identity.Load(folder); err != nil {
			return err
		}
	case earlier == nil || errors.As(err, new(*Error)):
		return err
	}
	c.credentials, c.certified = earlier, host
	return nil
}

// earlierOf is the certificate that a host has in a folder; nil: none. One of another name is removed.
func earlierOf(folder string, host fleet.HostID) (*identity.Credentials, error) {
	c, err := identity.Load(folder)
	if errors.Is(err, identity.ErrNotJoined) {
		return nil, nil
	}
	if err == nil {
		if who, e := c.Subject(); e == nil && who.Name == string(host) {
			return c, nil
		}
	}
	return nil, identity.Remove(folder) // damaged, or the machine had another name
}

// recertify renews what Certify got.
func (c *Client) recertify(ctx context.Context) error {
	return c.credentials.Renew(ctx, func(ctx context.Context, request []byte) ([]byte, error) {
		got, err := c.certificate(ctx, c.certified, request)
		return []byte(got.Certificate), err
	})
}

func (c *Client) certificate(ctx context.Context, host fleet.HostID, request []byte) (got Renewed, err error) {
	b, err := json.Marshal(Renewing{Request: string(request), Host: host})
	if err != nil {
		return got, err
	}
	if err = c.call(ctx, http.MethodPost, renewPath, b, &got); err == nil && got.Authority == "" {
		err = errors.New("the controller gives none on its socket: upgrade it")
	}
	if err != nil {
		return got, fmt.Errorf("get a certificate for host %s: %w", host, err)
	}
	return got, nil
}
