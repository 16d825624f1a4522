package wire

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"pagurus/decide/access"
	"pagurus/fleet"
	"pagurus/serve/identity"
)

// Peer is who is at the other end of a connection.
type Peer struct {
	fleet.Caller
	Groups  []uint32 // as whom jobs run, too
	From    string   // the IP address that the connection comes from; empty: this machine's socket
	Key     string   // fingerprint of the key that the peer has shown; empty: none
	Files   []string // over TCP: machines whose files its jobs may use, Facts.Machine of hosts at From
	Machine string   // whose socket it is, if another controller passed the request on; empty: this machine's
	Expired bool     // its certificate may only be renewed

	Token fleet.TokenID // that the peer has shown to Bearer; empty: none
}

// Members knows who belongs to the cluster.
type Members interface {
	// Identify says who shows a certificate. An *Error says why nobody does.
	Identify(ctx context.Context, shown *x509.Certificate, from string) (Peer, error)
	// Bearer says who shows a token for programs. An *Error says why nobody does.
	Bearer(ctx context.Context, token, from string) (Peer, error)
	// Local adds what the cluster knows of a caller whose uid the kernel has told.
	Local(Peer) Peer
	// Join lets in whoever shows a token.
	Join(ctx context.Context, t identity.Token, j Joining, foreign bool) (Joined, error)
	// NotLetIn takes a Join of a controller back, which then did not get a place among the others.
	NotLetIn(ctx context.Context, t identity.Token, j Joining) error
	// Renew makes a certificate for the key that the peer has shown, or for a host whose agent calls on the socket.
	Renew(context.Context, Peer, Renewing) (Renewed, error)
}

// Joining is what a machine or a person that joins says.
type Joining struct {
	Host    fleet.HostID `json:"host,omitempty"`    // what the host wants to be called; empty: a user logs in
	Machine string       `json:"machine,omitempty"` // of a host: its Facts.Machine
	Address string       `json:"address,omitempty"` // of a host that does not use the one it calls from
	Request string       `json:"request"`           // certificate request, PEM

	Controller string `json:"controller,omitempty"` // what a controller wants to be called that joins the others
	Peer       string `json:"peer,omitempty"`       // ADDRESS:PORT at which they reach it
}

// Joined is the answer.
type Joined struct {
	User        fleet.UserID `json:"user,omitempty"` // whose login it is
	Site        string       `json:"site,omitempty"` // the token's
	Cluster     string       `json:"cluster"`
	Certificate string       `json:"certificate"` // PEM
	Authority   string       `json:"authority"`   // PEM
	At          time.Time    `json:"at"`          // the controller's clock

	Secret string `json:"secret,omitempty"` // of the authority, PEM: for a controller
	Store  string `json:"store,omitempty"`  // what a controller's store has to know of the others
}

// Renewed is a new certificate.
type Renewed struct {
	Certificate string `json:"certificate"`         // PEM
	Authority   string `json:"authority,omitempty"` // PEM; for a host whose agent calls on the socket
}

// Renewing asks for one.
type Renewing struct {
	Request string       `json:"request"`
	Host    fleet.HostID `json:"host,omitempty"` // whose agent calls on the socket, which shows no key
}

// Who is how a caller is known, and to which cluster.
type Who struct {
	fleet.Caller
	Cluster string   `json:"cluster,omitempty"` // what people call it; empty: nothing
	Pages   []string `json:"pages,omitempty"`   // where a browser finds the controller's page; localhost: at any address of its machine
}

// whoAmI is how a caller is known.
func (s *server) whoAmI(id Peer, w http.ResponseWriter, _ *http.Request) error {
	return reply(w, Who{id.Caller, s.Cluster, s.pages()})
}

// join is the only call for which nothing but a token is needed.
func (s *server) join(w http.ResponseWriter, r *http.Request) error {
	if s.Members == nil {
		return &Error{http.StatusNotImplemented, "nobody can join this controller"}
	}
	token, err := identity.ParseToken(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
	if err != nil {
		return &Error{http.StatusUnauthorized, err.Error()}
	}
	if err := s.strange(r); err != nil {
		return err
	}
	var j Joining
	if err := s.told(w, r, &j); err != nil {
		return err
	}
	if len(j.Controller) > nameBytes || len(j.Peer) > nameBytes || len(j.Host) > nameBytes || len(j.Machine) > nameBytes || len(j.Address) > nameBytes {
		return &Error{http.StatusBadRequest, fmt.Sprintf("the name, the machine identity and the address of a host have at most %d bytes each", nameBytes)}
	}
	joined, err := s.Members.Join(r.Context(), token, j, s.feigns(r, j))
	if err == nil && j.Controller != "" {
		if err = s.admitHead(r.Context(), j, &joined); err != nil {
			err = errors.Join(err, s.Members.NotLetIn(context.WithoutCancel(r.Context()), token, j))
		}
	}
	s.record(Peer{From: hostOf(r.RemoteAddr)}, fleet.AuditRecord{Did: "join", On: who(j, joined) + " by token " + token.ID}, err)
	if err != nil {
		return err
	}
	return reply(w, joined)
}

// who is the member that somebody became, or wanted to become.
func who(j Joining, joined Joined) string {
	switch {
	case j.Controller != "":
		return "controller " + j.Controller
	case j.Host != "":
		return "host " + string(j.Host)
	case joined.User != "":
		return "user " + string(joined.User)
	}
	return "a user"
}

// feigns reports whether what joins as a host says that it is the machine of a controller, and is another. The files
// of jobs that are submitted at a controller are on its machine: only that may claim to be it, by its own controller.
func (s *server) feigns(r *http.Request, j Joining) bool {
	machine, here := s.Machine, false
	if p, passedOn := r.Context().Value(passedKey{}).(passed); passedOn {
		machine, here = p.Machine, p.Here
	} else {
		here = fromHere(r)
	}
	heads := []string{s.Machine}
	if s.Passing != nil && s.Passing.Machines != nil {
		heads = append(heads, s.Passing.Machines()...)
	}
	return j.Host != "" && slices.Contains(heads, j.Machine) && !(here && machine == j.Machine)
}

// fromHere reports whether a request comes from this machine: from loopback, or from the
// very address that it came to. No kernel takes a packet from outside that says so.
func fromHere(r *http.Request) bool {
	ip := net.ParseIP(hostOf(r.RemoteAddr))
	to, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ip != nil && (ip.IsLoopback() || to != nil && ip.Equal(net.ParseIP(hostOf(to.String()))))
}

func (s *server) renew(id Peer, w http.ResponseWriter, r *http.Request) error {
	var q Renewing
	if err := s.told(w, r, &q); err != nil {
		return err
	}
	if s.Members == nil {
		return &Error{http.StatusNotImplemented, "this controller makes no certificates"}
	}
	renewed, err := s.Members.Renew(r.Context(), id, q)
	if err != nil {
		return err
	}
	return reply(w, renewed)
}

// told reads a small object.
func (s *server) told(w http.ResponseWriter, r *http.Request, into any) error {
	b, err := body(w, r, toldBytes)
	if err != nil {
		return err
	}
	return s.understand(r, b, into)
}

// caller says who makes the request: by the socket, or by a certificate.
func (s *server) caller(r *http.Request) (Peer, error) {
	if c, ok := r.Context().Value(connectionKey{}).(*counted); ok {
		if c.over {
			return Peer{}, &Error{http.StatusTooManyRequests, "you hold too many connections to the controller at once: end some of your programs that use it"}
		}
		if c.id != nil && s.Members != nil {
			return s.Members.Local(*c.id), nil
		}
		if c.id != nil {
			return *c.id, nil
		}
	}
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 || s.Members == nil {
		return Peer{}, &Error{http.StatusUnauthorized, "the controller does not know you: `pagurus login` makes you known, `pagurus join` a machine"}
	}
	shown := r.TLS.PeerCertificates[0]
	from := hostOf(r.RemoteAddr)
	id, err := s.Members.Identify(r.Context(), shown, from)
	id.Key, id.From = identity.Key(shown), from
	return id, err
}

// allowed says why a caller may not do something.
func allowed(id Peer, what access.Call) error {
	if id.Expired && what != access.Renew {
		return &Error{http.StatusUnauthorized, "your certificate has expired: `pagurus login` or `pagurus join` again, or set the clock right"}
	}
	if reason := access.MayCall(id.Caller, what); reason != "" {
		return &Error{http.StatusForbidden, reason}
	}
	return nil
}

// certificates makes the controller's own, and the next in time.
type certificates struct {
	authority *identity.Authority

	mu   sync.Mutex
	pair *tls.Certificate
}

func (c *certificates) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	// A clock that was set back leaves a certificate from the future.
	if c.pair == nil || now.Add(identity.Lifetime/2).After(c.pair.Leaf.NotAfter) || now.Before(c.pair.Leaf.NotBefore) {
		pair, err := c.authority.Serving(now)
		if err != nil {
			return nil, err
		}
		c.pair = &pair
	}
	return c.pair, nil
}

// Enrol shows a token to the controller at address, and keeps the credentials that it
// gets in folder. After a failure it may be called again, and goes on with the same key.
func Enrol(ctx context.Context, address, token, folder string, j Joining) (Joined, error) {
	none := Joined{}
	t, err := identity.ParseToken(token)
	if err != nil {
		return none, err
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return none, fmt.Errorf("%q is not a controller address: write HOST:PORT, like head:7461%s", address, Bracketed(address))
	}
	if err := joinedBefore(folder, t, j.Host); err != nil {
		return none, err
	}
	c := joining(address, t)
	defer c.http.CloseIdleConnections()
	if err := c.meet(ctx); err != nil { // before anything is made here
		return none, err
	}
	request, err := identity.Request(folder)
	if err != nil {
		return none, err
	}
	j.Request = string(request)
	joined, err := c.join(ctx, j)
	if err != nil {
		return none, err
	}
	if off := time.Since(joined.At).Abs(); off > identity.ClockSkew {
		return none, fmt.Errorf("the clocks of this machine and of the controller differ by %s: set them right, for example with `timedatectl set-ntp true`, and try again", off.Round(time.Second))
	}
	l := Login{Controller: address, Host: j.Host, User: joined.User, Site: joined.Site}
	return joined, identity.Save(folder, []byte(joined.Certificate), []byte(joined.Authority), l)
}

// joinedBefore refuses to make another host of a machine that is one: its guests run for the
// first, and its certificate would be overwritten. Credentials that cannot be read do not bind the machine.
func joinedBefore(folder string, t identity.Token, name fleet.HostID) error {
	before, err := identity.Load(folder)
	if err != nil || name == "" { // a login may be replaced
		return nil
	}
	who, err := before.Subject()
	leave := fmt.Sprintf("have it removed there with `pagurus host rm %s`, then end its agent and run `pagurus agent --sweep && rm -r %s` here, and join again", who.Name, folder)
	switch {
	case err != nil || who.Role != identity.Host:
		return nil
	case !before.Of(t.Fingerprint):
		return fmt.Errorf("this machine is host %s of another cluster: to leave that, %s", who.Name, leave)
	case who.Name != string(name):
		return fmt.Errorf("this machine is host %s of this cluster already: to rename it, %s", who.Name, leave)
	}
	return nil
}

// joining makes a client of the controller at address that has nothing but a token.
func joining(address string, token identity.Token) *Client {
	c := &Client{address: address, base: "https://" + identity.ServerName, token: token.String(), addresses: &addresses{own: address, all: []string{address}}}
	c.http = c.over("tcp", identity.Joining(token.Fingerprint))
	return c
}

// join asks the controller for a certificate.
func (c *Client) join(ctx context.Context, j Joining) (Joined, error) {
	var out Joined
	b, err := json.Marshal(j)
	if err != nil {
		return out, fmt.Errorf("encode the request: %w", err)
	}
	err = c.call(ctx, http.MethodPost, "/v1/join", b, &out)
	return out, err
}

// Login says whose credentials are in a folder, and for which controller.
type Login = identity.Login

// ReadLogin reads the login in a folder. No login is not an error.
func ReadLogin(folder string) (Login, error) { return identity.ReadLogin(folder) }

// ClusterOf is the name of the cluster that the credentials in a folder are for; empty: it has
// none, or there are none.
func ClusterOf(folder string) string {
	c, err := identity.Load(folder)
	if err != nil {
		return ""
	}
	return c.Cluster()
}

// RemoveLogin removes the credentials in a folder. No credentials are not an error.
func RemoveLogin(folder string) error { return identity.Remove(folder) }

// WhoAmI says as whom the controller knows this client.
func (c *Client) WhoAmI(ctx context.Context) (Who, error) {
	var by Who
	err := c.call(ctx, http.MethodGet, whoAmIPath, nil, &by)
	return by, err
}

// certificateTrouble makes a sentence of a handshake that failed; empty: it was none.
func certificateTrouble(err error, address string) string {
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	var otherName x509.HostnameError
	var noTLS tls.RecordHeaderError
	switch {
	case errors.Is(err, identity.ErrForeign):
		return fmt.Sprintf("what answers at %s is not the controller that the token is of: check the address, or get a token of that cluster; `pagurus token create` makes one", address)
	case errors.As(err, &otherName), errors.As(err, &noTLS), errors.Is(err, http.ErrSchemeMismatch):
		return fmt.Sprintf("what answers at %s is not a Pagurus controller: check the address and the port", address)
	case errors.As(err, &unknown):
		return fmt.Sprintf("the controller at %s is not the one that these credentials are for: log in or join again with a token of it", address)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Sprintf("the certificate of the controller at %s is not valid at this machine's time: set the clocks of both machines right", address)
	}
	return ""
}
