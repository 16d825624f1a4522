// This file lets both sides of a connection say which version of the protocol they speak, and
// refuses the other side if it is too far apart. It must not know what messages mean. Its
// tests run clients and servers of different numbers over real sockets.

package wire

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"pagurus/fleet"
)

// Every request and every answer has the first. Without it, 0 is meant. The controller's
// answers also have the second, its build.
const (
	protocolHeader = "Pagurus-Protocol"
	versionHeader  = "Pagurus-Version"
)

const agentPath = "/v1/agent"

// Spoken is what one side of a connection says about itself.
type Spoken struct {
	Protocol int    `json:"protocol"`          // as fleet.Protocol
	Version  string `json:"version,omitempty"` // its build
}

// heardIn reads what the other side says about itself.
func heardIn(h http.Header) (Spoken, error) {
	said := h.Get(protocolHeader)
	if said == "" {
		return Spoken{}, nil
	}
	n, err := strconv.ParseUint(said, 10, 31)
	if err != nil {
		return Spoken{}, &Error{http.StatusBadRequest, "the header " + protocolHeader + " is not a number"}
	}
	return Spoken{int(n), h.Get(versionHeader)}, nil
}

// theController is what it is called in sentences about versions.
const theController = "the controller"

// apart is an *Error if a caller and the controller are too far apart.
func apart(path string, caller, controller int) error {
	name := "this pagurus"
	if path == agentPath {
		name = "this agent"
	}
	says := fleet.Apart(fleet.Speaker{Name: name, Protocol: caller}, fleet.Speaker{Name: theController, Protocol: controller})
	if says == "" {
		return nil
	}
	return &Error{http.StatusUnprocessableEntity, says}
}

// ours is the number that the server speaks.
func (s *server) ours() int {
	if s.protocol != nil {
		return *s.protocol
	}
	return fleet.Protocol()
}

// greet tells a caller what the server speaks, and refuses one that is too far apart.
func (s *server) greet(w http.ResponseWriter, r *http.Request) error {
	w.Header().Set(protocolHeader, strconv.Itoa(s.ours()))
	if s.Version != "" {
		w.Header().Set(versionHeader, s.Version)
	}
	s.tellControllers(w)
	if strings.HasPrefix(r.URL.Path, FacePath) { // it has versions of its own
		return nil
	}
	said, err := heardIn(r.Header)
	if err != nil {
		return err
	}
	err = apart(r.URL.Path, said.Protocol, s.ours())
	if err != nil && r.URL.Path == agentPath && s.Refused != nil {
		if id, unknown := s.caller(r); unknown == nil && id.Host != "" {
			agent := fleet.Speaker{Name: fmt.Sprintf("the agent of %s", id.Host), Protocol: said.Protocol}
			s.Refused(r.Context(), id.Host, fleet.Apart(agent, fleet.Speaker{Name: theController, Protocol: s.ours()}))
		}
	}
	return err
}

// newer reports whether a caller that was greeted speaks a newer version than the server.
func (s *server) newer(r *http.Request) bool {
	said, err := heardIn(r.Header)
	return err == nil && said.Protocol > s.ours()
}

// ours is the number that the client speaks.
func (c *Client) ours() int {
	if c.protocol != nil {
		return *c.protocol
	}
	return fleet.Protocol()
}

// hears keeps what the controller says about itself. An error means that it is too far apart.
func (c *Client) hears(path string, h http.Header) error {
	said, err := heardIn(h)
	if err != nil {
		return err
	}
	c.controller.Store(&said)
	if c.addresses != nil {
		c.addresses.learn(h.Get(controllersHeader))
	}
	return apart(path, c.ours(), said.Protocol)
}

// newerThere reports whether the controller speaks a newer version than the client.
func (c *Client) newerThere() bool {
	said := c.controller.Load()
	return said != nil && said.Protocol > c.ours()
}

// Controller asks the controller what it speaks. It answers also when it refuses everything
// else.
func (c *Client) Controller(ctx context.Context) (Spoken, error) {
	err := c.listen(ctx)
	if said := c.controller.Load(); said != nil {
		return *said, nil
	}
	return Spoken{}, err
}

// meet has the client know what the controller speaks, before it asks for a change: a
// controller that knows nothing of versions would make the change, and be refused after it.
func (c *Client) meet(ctx context.Context) error {
	if c.controller.Load() != nil {
		return nil
	}
	return c.listen(ctx)
}

// listen makes a request; only the headers of its answer count.
func (c *Client) listen(ctx context.Context) error {
	r, err := c.exchange(ctx, http.MethodGet, whoAmIPath, nil)
	if err != nil {
		return err
	}
	return r.Body.Close()
}
