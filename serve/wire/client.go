package wire

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/serve/identity"
)

// DefaultSocket is the socket of a machine's controller.
const DefaultSocket = "/run/pagurus/controller.sock"

// ErrNoController: no controller answers at the address, or it does not lead. A later try
// may succeed.
var ErrNoController = errors.New("no controller answers")

// Error is a Problem with its HTTP status: the answer of a Controller and the error of a
// Client.
type Error struct {
	Status int
	Reason string
}

// Error is the reason.
func (e *Error) Error() string { return e.Reason }

// NotLeading is the status of a controller that does not lead, or not yet.
const NotLeading = http.StatusServiceUnavailable

// Is treats a controller that does not lead as ErrNoController.
func (e *Error) Is(target error) bool { return target == ErrNoController && e.Status == NotLeading }

// Config locates the controller.
type Config struct {
	Address     string // "unix:/run/pagurus/controller.sock" or "host:port"
	Credentials string // for "host:port": the folder of the certificate and its key
}

// Variables of the environment that say where the controller is and who asks it.
const (
	ControllerVariable  = "PAGURUS_CONTROLLER"
	CredentialsVariable = "PAGURUS_CREDENTIALS"
)

// UserCredentials is the folder of this account's certificate; empty if it has no home.
func UserCredentials() string {
	config, err := os.UserConfigDir()
	if err != nil {
		return ""
	}
	return filepath.Join(config, "pagurus")
}

// Resolve completes what a command line says of the controller: from the environment,
// then from the credentials in folder, and otherwise it is this machine's.
func Resolve(c Config, folder string) (Config, error) {
	c.Address = cmp.Or(c.Address, os.Getenv(ControllerVariable))
	c.Credentials = cmp.Or(c.Credentials, os.Getenv(CredentialsVariable), folder)
	if c.Address != "" {
		return c, nil
	}
	known, err := identity.ReadLogin(c.Credentials)
	c.Address = cmp.Or(known.Controller, "unix:"+DefaultSocket)
	return c, err
}

// Client talks to one controller. Its methods may be called concurrently.
type Client struct {
	address string // as the user wrote it
	base    string // scheme and host of every URL
	http    *http.Client

	here atomic.Pointer[netip.Addr] // from which the last connection went; nil: none, or on the socket

	credentials *identity.Credentials // nil: on the socket
	certified   fleet.HostID          // whose they are, of an agent on the socket; empty: they are shown to the controller
	renewal     *renewal              // of the credentials
	token       string                // of one that joins

	addresses *addresses // of the controllers

	controller atomic.Pointer[Spoken] // what the last answer said; nil: no answer yet
	protocol   *int                   // nil: as this program
}

// Limits of the client.
const (
	connectLimit  = 5 * time.Second
	shakeLimit    = 15 * time.Second             // for TLS; what answers may not be a controller
	answerLimit   = streamLimit + 20*time.Second // until an answer begins
	keepIdle      = time.Minute
	problemBytes  = 64 << 10
	downBytes     = 8 << 20
	snapshotBytes = 256 << 20
	firstPause    = 50 * time.Millisecond // between two tries to reconnect; doubled up to lastPause
	lastPause     = time.Second
)

// Dial makes a client. It connects at first use, and again when necessary. An error means a
// bad address or token.
func Dial(c Config) (*Client, error) {
	client := &Client{address: c.Address}
	if path, is := strings.CutPrefix(c.Address, "unix:"); is {
		if path == "" {
			return nil, fmt.Errorf("%q is not a controller address: the path of the socket is missing", c.Address)
		}
		client.addresses = sockets(path)
		client.base, client.http = "http://"+identity.ServerName, client.over("unix", nil)
		return client, nil
	}
	if _, _, err := net.SplitHostPort(c.Address); err != nil {
		return nil, fmt.Errorf("%q is not a controller address: write unix:/path/of/controller.sock or host:port%s", c.Address, Bracketed(c.Address))
	}
	credentials, err := identity.Load(c.Credentials)
	if errors.Is(err, identity.ErrNotJoined) {
		return nil, fmt.Errorf("the controller at %s does not know you: `pagurus login %s --token TOKEN` makes you known, `pagurus join` a machine (%w)", c.Address, c.Address, err)
	}
	if err != nil {
		return nil, err
	}
	client.addresses = remembered(c.Address, c.Credentials)
	client.base, client.credentials, client.http = "https://"+identity.ServerName, credentials, client.over("tcp", credentials.Client())
	client.renews()
	return client, nil
}

// Here is this machine's address from which the last connection to the controller went; not
// valid before the first, and on the socket.
func (c *Client) Here() netip.Addr {
	if here := c.here.Load(); here != nil {
		return *here
	}
	return netip.Addr{}
}

// lostAfter notices within some 15 seconds that a peer is gone: after this machine was
// suspended or has got another address, nothing else ends a connection that waits for an answer.
var lostAfter = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 3 * time.Second, Count: 3}

// unheard does the same where what was sent is not acknowledged: then the kernel sends no
// probes, and repeats what it sent for a quarter of an hour (tcp(7), TCP_USER_TIMEOUT).
func unheard(_, _ string, c syscall.RawConn) error {
	const limit = 14 * time.Second
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(limit.Milliseconds()))
	})
	return errors.Join(err, failed)
}

// over makes an HTTP client for the controllers' addresses, which are tried in turn.
func (c *Client) over(network string, config *tls.Config) *http.Client {
	dialer := &net.Dialer{Timeout: connectLimit, KeepAliveConfig: lostAfter}
	if network == "tcp" {
		dialer.Control = unheard
	}
	return &http.Client{Transport: &http.Transport{
		TLSHandshakeTimeout: shakeLimit, ResponseHeaderTimeout: answerLimit, IdleConnTimeout: keepIdle, MaxIdleConnsPerHost: 8, TLSClientConfig: config,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := c.addresses.dial(ctx, network, dialer)
			if err != nil {
				return nil, err
			}
			if at, err := netip.ParseAddrPort(conn.LocalAddr().String()); err == nil {
				from := at.Addr().Unmap()
				c.here.Store(&from)
			}
			return conn, nil
		},
	}}
}

// Close lets idle connections go.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// Ask makes a request and returns its result. An *Error with status 422 is a refusal; its
// reason is for people.
func (c *Client) Ask(ctx context.Context, q fleet.Request) (fleet.Answer, error) {
	var a fleet.Answer
	b, err := json.Marshal(q)
	if err != nil {
		return a, fmt.Errorf("encoding the request: %w", err)
	}
	err = c.call(ctx, http.MethodPost, "/v1/ask", b, &a)
	return a, err
}

// Snapshot gives the present cluster state.
func (c *Client) Snapshot(ctx context.Context) (fleet.Snapshot, error) {
	var s fleet.Snapshot
	err := c.call(ctx, http.MethodGet, "/v1/snapshot", nil, &s)
	return s, err
}

// Explain says why something is as it is, one sentence per line.
func (c *Client) Explain(ctx context.Context, about About) ([]string, error) {
	q := url.Values{}
	for name, value := range map[string]string{"guest": string(about.Guest), "job": string(about.Job), "host": string(about.Host)} {
		if value != "" {
			q.Set(name, value)
		}
	}
	var e Explanation
	err := c.call(ctx, http.MethodGet, "/v1/explain?"+q.Encode(), nil, &e)
	return e.Lines, err
}

// Trace gives the MPI traces of a job's ranks, by rank.
func (c *Client) Trace(ctx context.Context, job fleet.JobID) ([]fleet.Trace, error) {
	var traces []fleet.Trace
	err := c.call(ctx, http.MethodGet, "/v1/jobs/"+url.PathEscape(string(job))+"/trace", nil, &traces)
	return traces, err
}

// ReadStream gives a stream's bytes from an offset, and waits some time for new ones. ended:
// nothing follows data.
func (c *Client) ReadStream(ctx context.Context, at Place) (data []byte, ended bool, err error) {
	r, err := c.send(ctx, http.MethodGet, at.path()+"&wait=1", nil)
	if err != nil {
		return nil, false, err
	}
	defer r.Body.Close()
	if data, err = io.ReadAll(r.Body); err != nil {
		return nil, false, c.explained(err)
	}
	return data, r.Header.Get(endedHeader) == "1", nil
}

// WriteStream adds bytes to a stream and returns the next offset. It may take only some
// bytes, or none while the reader is behind. eof: nothing follows data.
func (c *Client) WriteStream(ctx context.Context, at Place, data []byte, eof bool) (next int64, err error) {
	path := at.path()
	if len(data) > pieceBytes {
		data, eof = data[:pieceBytes], false
	}
	if eof {
		path += "&eof=1"
	}
	var o Offset
	err = c.call(ctx, http.MethodPost, path, data, &o)
	return o.Offset, err
}

func (p Place) path() string {
	path := fmt.Sprintf("/v1/jobs/%s/%s?offset=%d", url.PathEscape(string(p.Job)), url.PathEscape(p.Stream), p.Offset)
	if p.Incarnation > 0 {
		path += fmt.Sprintf("&incarnation=%d", p.Incarnation)
	}
	return path
}

// Watch gives the cluster state now and after every change until ctx ends. It reconnects by
// itself. An error means that the controller cannot be reached now.
func (c *Client) Watch(ctx context.Context) (<-chan fleet.Snapshot, error) {
	s, err := c.watching(ctx)
	if err != nil {
		return nil, err
	}
	out := make(chan fleet.Snapshot)
	go func() {
		defer close(out)
		for pause := firstPause; ctx.Err() == nil; {
			if s != nil {
				pause = firstPause
				followSession(ctx, s, out)
			}
			rest(ctx, &pause)
			s, _ = c.watching(ctx) // tried again after a pause
		}
		if s != nil {
			s.Close()
		}
	}()
	return out, nil
}

type watchSession = Session[struct{}, fleet.Snapshot]

func (c *Client) watching(ctx context.Context) (*watchSession, error) {
	conn, err := c.connect(ctx, watchPath)
	if err != nil {
		return nil, err
	}
	return newSession[struct{}](ctx, conn, sessionConfig[fleet.Snapshot]{messageBytes: snapshotBytes, out: 1, in: 1, peer: "the controller"}), nil
}

// followSession passes on snapshots until the session ends.
func followSession(ctx context.Context, s *watchSession, out chan<- fleet.Snapshot) {
	defer s.Close()
	for {
		snap, err := s.Receive(ctx)
		if err != nil {
			return
		}
		select {
		case out <- snap:
		case <-ctx.Done():
			return
		}
	}
}

// Attach opens an agent's session and returns after the controller's first message, which
// Receive gives first. If the controller ended the session, the error holds its reason.
func (c *Client) Attach(ctx context.Context, hello Hello) (*AgentSession, error) {
	conn, err := c.connect(ctx, agentPath)
	if err != nil {
		return nil, err
	}
	s := newSession[Up](context.WithoutCancel(ctx), conn, sessionConfig[Down]{check: checkDown, newer: c.newerThere(), messageBytes: downBytes, most: upBytes, out: upQueue, in: downQueue, peer: "the controller"})
	if err := s.Send(ctx, Up{Hello: &hello}); err != nil {
		s.Close()
		return nil, err
	}
	first, err := s.Receive(ctx)
	if err != nil {
		s.Close()
		return nil, err
	}
	s.first = &first
	return s, nil
}

// connectOnce opens a WebSocket.
func (c *Client) connectOnce(ctx context.Context, path string) (*websocket.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	o := &websocket.DialOptions{HTTPClient: c.http, HTTPHeader: http.Header{}}
	c.authorize(o.HTTPHeader)
	asked := c.asked()
	conn, r, err := websocket.Dial(ctx, c.base+path, o)
	if r != nil {
		if err := c.hears(path, r.Header); err != nil {
			if conn != nil {
				_ = conn.CloseNow() // nothing was said on it
			}
			return nil, err
		}
	}
	if err == nil {
		return conn, nil
	}
	if r != nil && r.StatusCode != http.StatusSwitchingProtocols {
		err := c.problem(r)
		c.turn(asked, err)
		return nil, err
	}
	c.http.CloseIdleConnections() // they may be as dead, from an address that is gone
	err = c.explained(err)
	c.turn(asked, err)
	return nil, err
}

func (c *Client) authorize(h http.Header) {
	h.Set(protocolHeader, strconv.Itoa(c.ours()))
	if c.token != "" {
		h.Set("Authorization", "Bearer "+c.token)
	}
}

func (c *Client) call(ctx context.Context, method, path string, body []byte, into any) error {
	r, err := c.send(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if err := json.NewDecoder(io.LimitReader(r.Body, snapshotBytes)).Decode(into); err != nil {
		if syntax, kind := (*json.SyntaxError)(nil), (*json.UnmarshalTypeError)(nil); errors.As(err, &syntax) || errors.As(err, &kind) {
			return fmt.Errorf("cannot understand the answer of the controller at %s: %w; does its version differ from yours?", c.address, err)
		}
		return c.explained(err) // the connection broke
	}
	return nil
}

// send makes a request; an answer other than 200 is an *Error.
func (c *Client) send(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	return c.untilOneLeads(ctx, func() (*http.Response, error) { return c.sendOnce(ctx, method, path, body) })
}

func (c *Client) sendOnce(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	if method != http.MethodGet {
		if err := c.meet(ctx); err != nil {
			return nil, err
		}
	}
	answer, err := c.exchange(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		defer answer.Body.Close()
		return nil, c.problem(answer)
	}
	return answer, nil
}

// exchange makes a request; the answer may have any status.
func (c *Client) exchange(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	return c.exchangeWith(ctx, request{method, path, body, nil})
}

// request is what is sent.
type request struct {
	method, path string
	body         []byte
	header       http.Header
}

func (c *Client) exchangeWith(ctx context.Context, q request) (*http.Response, error) {
	method, path, body := q.method, q.path, q.body
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("asking the controller: %w", err)
	}
	maps.Copy(r.Header, q.header)
	c.authorize(r.Header)
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	answer, err := c.http.Do(r)
	if err != nil {
		return nil, c.explained(err)
	}
	if err := c.hears(path, answer.Header); err != nil {
		_ = answer.Body.Close() // unread
		return nil, err
	}
	return answer, nil
}

func (c *Client) problem(r *http.Response) error {
	b, _ := io.ReadAll(io.LimitReader(r.Body, problemBytes))
	var p Problem
	if json.Unmarshal(b, &p) != nil || p.Error == "" {
		p.Error = fmt.Sprintf("%s is not a pagurus controller: it answers %s", c.address, r.Status)
	}
	if after := askAgainAfter(r.Header); r.StatusCode == http.StatusTooManyRequests && after > 0 {
		return AskAgain(after, p.Error)
	}
	return &Error{r.StatusCode, p.Error}
}

// explained turns a failed connection into a sentence for people.
func (c *Client) explained(err error) error {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e
	}
	if trouble := certificateTrouble(err, c.address); trouble != "" {
		return &Error{http.StatusUnauthorized, trouble}
	}
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("not allowed to open the controller's socket at %s: %w", c.address, err)
	case strings.HasPrefix(c.address, "unix:") && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)):
		return fmt.Errorf("%w at %s: start one with `pagurus up` or `pagurus lab up`", ErrNoController, c.address)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w at %s: check the address, and that `pagurus controller` runs there and listens for other machines", ErrNoController, c.address)
	}
	if name := (*net.DNSError)(nil); errors.As(err, &name) {
		return fmt.Errorf("%w at %s: the name %s is not found: check it, or write the machine's IP address", ErrNoController, c.address, name.Name)
	}
	if late := (net.Error)(nil); errors.As(err, &late) && late.Timeout() && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w at %s in time: check the address, and the network between", ErrNoController, c.address)
	}
	if u := (*url.Error)(nil); errors.As(err, &u) {
		err = u.Err // its URL is not what the user wrote
	}
	return fmt.Errorf("%w at %s: %w", ErrNoController, c.address, err)
}
