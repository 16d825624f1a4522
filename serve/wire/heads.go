package wire

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"

	"pagurus/fleet"
	"pagurus/serve/identity"
)

const headsPath = "/v1/controllers"

// Head is one of the cluster's controllers.
type Head struct {
	Name    string `json:"name"`
	Address string `json:"address,omitempty"` // HOST:PORT at which agents and people call it
	Peer    string `json:"peer,omitempty"`    // HOST:PORT at which other controllers' stores call it
	Leads   bool   `json:"leads,omitempty"`
	Up      bool   `json:"up"`                // it leads, or could
	Joining bool   `json:"joining,omitempty"` // it does not yet have all of the store
	Trouble string `json:"trouble,omitempty"` // why it keeps no copies of output, for people
}

// Heads are the cluster's controllers.
type Heads interface {
	// List gives all of them.
	List(context.Context) ([]Head, error)
	// Admit lets one in, and returns what its store has to know of the others.
	Admit(ctx context.Context, name, peer string) (store string, err error)
	// Remove removes one, which then stops.
	Remove(ctx context.Context, name string) error
}

// alone is the answer of a controller that is reached by no other.
var alone = &Error{http.StatusNotImplemented, "this controller is the only one, and no other reaches it: start it with --peer ADDRESS:PORT, and others can join"}

func (s *server) heads(_ Peer, w http.ResponseWriter, r *http.Request) error {
	if s.Heads == nil {
		return alone
	}
	list, err := s.Heads.List(r.Context())
	if err != nil {
		return err
	}
	return reply(w, list)
}

func (s *server) removeHead(id Peer, w http.ResponseWriter, r *http.Request) error {
	if err := s.removesHead(r.Context(), id, r.URL.Query().Get("name")); err != nil {
		return err
	}
	return reply(w, struct{}{})
}

// removesHead removes a controller, and keeps that a caller did.
func (s *server) removesHead(ctx context.Context, id Peer, name string) error {
	if s.Heads == nil {
		return alone
	}
	err := s.Heads.Remove(ctx, name)
	s.record(id, fleet.AuditRecord{Did: "remove a controller", On: name}, err)
	return err
}

// admitHead completes the answer to a controller that joins.
func (s *server) admitHead(ctx context.Context, j Joining, joined *Joined) (err error) {
	if s.Heads == nil {
		return alone
	}
	if host, port, err := net.SplitHostPort(j.Peer); err != nil || host == "" || port == "" {
		return &Error{http.StatusBadRequest, fmt.Sprintf("%q is not an address at which other controllers reach this one: write ADDRESS:PORT", j.Peer)}
	}
	if fleet.HostID(j.Controller).Refused() != "" {
		return &Error{http.StatusBadRequest, fmt.Sprintf("%q cannot be the name of a controller: give letters, digits, dots and hyphens with --peer-name", j.Controller)}
	}
	joined.Store, err = s.Heads.Admit(ctx, j.Controller, j.Peer)
	return err
}

// Heads gives the cluster's controllers.
func (c *Client) Heads(ctx context.Context) ([]Head, error) {
	var out []Head
	err := c.call(ctx, http.MethodGet, headsPath, nil, &out)
	return out, err
}

// RemoveHead removes a controller.
func (c *Client) RemoveHead(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodPost, headsPath+"/remove?name="+url.QueryEscape(name), nil, &struct{}{})
}

// EnrolController shows a token to the controller at address, and keeps the cluster's authority in the state folder of
// a new controller. It returns what that one's store has to know of the others. After a failure it may be called again, and goes on with the same key, which costs the token no other use.
func EnrolController(ctx context.Context, address, token, state string, j Joining) (joined Joined, err error) {
	t, err := identity.ParseToken(token)
	if err != nil {
		return joined, err
	}
	if err := os.MkdirAll(state, 0o755); err != nil {
		return joined, fmt.Errorf("joining: %w", err)
	}
	folder := filepath.Join(state, "joining")
	c := joining(address, t)
	defer c.http.CloseIdleConnections()
	if err := c.meet(ctx); err != nil {
		return joined, err
	}
	request, err := identity.Request(folder)
	if err != nil {
		return joined, err
	}
	j.Request = string(request)
	if joined, err = c.join(ctx, j); err != nil {
		return joined, err
	}
	if joined.Store == "" || joined.Secret == "" {
		return joined, &Error{http.StatusNotImplemented, "the controller there does not let others join: upgrade it"}
	}
	if err := identity.SaveAuthority(state, []byte(joined.Authority), []byte(joined.Secret)); err != nil {
		return joined, err
	}
	return joined, os.RemoveAll(folder)
}

// understood decodes what a controller asks another.
func understood(w http.ResponseWriter, r *http.Request, into any) error {
	b, err := body(w, r, snapshotBytes)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, into); err != nil {
		return &Error{http.StatusBadRequest, "the request cannot be understood: " + err.Error()}
	}
	return nil
}
