// This file passes requests on to the controller that leads. A controller that does not lead checks
// nothing: it tells the one that leads who called, and how it knows. That one believes it, since every
// controller has the cluster's authority and could be anybody. Its tests run three servers.

package wire

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"time"

	"pagurus/fleet"
)

// Passing is how a controller among several passes requests on.
type Passing struct {
	// Leads says where the controller that leads is called; here: it is this one. An empty address: nobody
	// leads now.
	Leads func(context.Context) (address string, here bool)
	// Calling is for connections to other controllers.
	Calling *tls.Config
	// IsController reports whether a certificate is that of a controller of this cluster.
	IsController func(*x509.Certificate) bool
	// Serves is the IP address of this controller, as others call it.
	Serves string
	// Known are the addresses of all controllers.
	Known func() []string
	// Machines are the identities of all controllers' machines, as ServeConfig.Machine.
	Machines func() []string
}

const (
	// passedHeader says who made a request that another controller passes on.
	passedHeader = "Pagurus-Caller"
	// controllersHeader has the addresses of all controllers.
	controllersHeader = "Pagurus-Controllers"
	// betweenPath begins what controllers ask each other, which is not passed on.
	betweenPath = "/v1/between/"
)

// passed is who made a request, as the controller saw it that the request came to.
type passed struct {
	From    string        `json:"from,omitempty"`    // IP address; empty: its socket
	Shown   []byte        `json:"shown,omitempty"`   // certificate, DER
	Local   *fleet.Caller `json:"local,omitempty"`   // whom the kernel named on its socket
	Groups  []uint32      `json:"groups,omitempty"`  // of Local
	Machine string        `json:"machine,omitempty"` // of that controller
	Here    bool          `json:"here,omitempty"`    // it was made on that machine
}

// passedKey is where a request's context has what the controller saw that passed it on.
type passedKey struct{}

// nobodyLeads is the answer while the controllers elect one.
var nobodyLeads = &Error{NotLeading, "no controller leads at the moment: most of them are away, or one is being chosen; try again in a few seconds"}

// passes serves requests by next where this controller leads, and passes them on where another does.
func (s *server) passes(next http.Handler) http.Handler {
	if s.Passing == nil {
		return next
	}
	transport := &http.Transport{
		TLSClientConfig: s.Passing.Calling, TLSHandshakeTimeout: connectLimit, IdleConnTimeout: keepIdle, MaxIdleConnsPerHost: 64,
		ResponseHeaderTimeout: answerLimit, DialContext: (&net.Dialer{Timeout: connectLimit, KeepAliveConfig: lostAfter, Control: unheard}).DialContext,
	}
	type to struct{}
	type who struct{}
	proxy := &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1, ErrorLog: nil,
		Rewrite: func(p *httputil.ProxyRequest) {
			address, _ := p.In.Context().Value(to{}).(string)
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "https", address, address
			caller, _ := p.In.Context().Value(who{}).(string)
			p.Out.Header.Set(passedHeader, caller) // here, since the caller's Connection may name headers to be left out
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			s.answer(w, r, func(http.ResponseWriter, *http.Request) error {
				return &Error{NotLeading, fmt.Sprintf("the controller that leads does not answer: %v; try again in a few seconds", err)}
			})
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		said := r.Header.Get(passedHeader)
		r.Header.Del(passedHeader)
		if said != "" {
			r = s.believed(r, said)
		}
		if strings.HasPrefix(r.URL.Path, betweenPath) {
			next.ServeHTTP(w, r)
			return
		}
		address, here := s.Passing.Leads(r.Context())
		switch {
		case here:
			next.ServeHTTP(w, r)
		case said != "" || address == "": // never passed on twice
			s.answer(w, r, func(http.ResponseWriter, *http.Request) error { return nobodyLeads })
		case strings.HasPrefix(r.URL.Path, FacePath) && s.sameSite(r) != nil:
			s.answer(w, r, func(http.ResponseWriter, *http.Request) error { return s.sameSite(r) })
		default:
			caller, err := json.Marshal(s.callerOf(r))
			if err != nil {
				s.answer(w, r, func(http.ResponseWriter, *http.Request) error { return err })
				return
			}
			ctx := context.WithValue(r.Context(), to{}, address)
			r = r.WithContext(context.WithValue(ctx, who{}, base64.StdEncoding.EncodeToString(caller)))
			_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // as long as the one that leads likes
			proxy.ServeHTTP(patient{ResponseWriter: w, limit: pieceLimit}, r)
		}
	})
}

// callerOf says how this controller knows who calls.
func (s *server) callerOf(r *http.Request) passed {
	p := passed{Machine: s.Machine, Here: true}
	if c, ok := r.Context().Value(connectionKey{}).(*counted); ok && c.id != nil {
		p.Local, p.Groups = &c.id.Caller, c.id.Groups
		return p
	}
	p.Here = fromHere(r)
	p.From = hostOf(r.RemoteAddr)
	if ip := net.ParseIP(p.From); ip != nil && ip.IsLoopback() { // which means another machine where it is told
		p.From = s.Passing.Serves
	}
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		p.Shown = r.TLS.PeerCertificates[0].Raw
	}
	return p
}

// believed makes a request that was passed on look as if it had come here, if a controller says so.
func (s *server) believed(r *http.Request, said string) *http.Request {
	refused := func() *http.Request { // as if nothing were known of the caller
		out := r.Clone(context.WithValue(r.Context(), connectionKey{}, nil))
		out.TLS = nil
		return out
	}
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 || !s.Passing.IsController(r.TLS.PeerCertificates[0]) {
		return refused()
	}
	var p passed
	text, err := base64.StdEncoding.DecodeString(said)
	if err = errors.Join(err, json.Unmarshal(text, &p)); err != nil {
		return refused()
	}
	r = r.WithContext(context.WithValue(r.Context(), passedKey{}, p))
	if p.Local != nil {
		id := &Peer{Caller: *p.Local, Groups: p.Groups, Machine: p.Machine}
		out := r.Clone(context.WithValue(r.Context(), connectionKey{}, &counted{id: id}))
		out.TLS, out.RemoteAddr = nil, ""
		return out
	}
	out := r.Clone(context.WithValue(r.Context(), connectionKey{}, nil))
	out.RemoteAddr, out.TLS = net.JoinHostPort(p.From, "0"), &tls.ConnectionState{}
	if p.Shown != nil {
		shown, err := x509.ParseCertificate(p.Shown)
		if err != nil {
			return refused()
		}
		out.TLS.PeerCertificates = []*x509.Certificate{shown}
	}
	return out
}

// tellControllers has the caller know all controllers.
func (s *server) tellControllers(w http.ResponseWriter) {
	if s.Passing == nil || s.Passing.Known == nil {
		return
	}
	if all := s.Passing.Known(); len(all) > 0 {
		w.Header().Set(controllersHeader, strings.Join(all, ","))
	}
}

// fromController refuses who is not another controller.
func (s *server) fromController(r *http.Request) error {
	if s.Passing == nil || r.TLS == nil || len(r.TLS.PeerCertificates) == 0 || !s.Passing.IsController(r.TLS.PeerCertificates[0]) {
		return &Error{http.StatusForbidden, "only controllers of the cluster ask each other this"}
	}
	return nil
}
