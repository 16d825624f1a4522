// This file is the protocol between two hosts about a vault, HTTP over the cluster's mutual TLS. What one host may
// do with another's vault the controller says, one part at a time. It must not know what chunks are made of.
//
//	POST /v1/vault/CHECKPOINT/GUEST/missing        digests → those to put
//	PUT  /v1/vault/CHECKPOINT/GUEST/chunks/DIGEST
//	GET  /v1/vault/CHECKPOINT/GUEST/chunks/DIGEST
//	PUT  /v1/vault/CHECKPOINT/GUEST/manifest
//	GET  /v1/vault/CHECKPOINT/GUEST/manifest

package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"pagurus/fleet"
)

// What is accepted at most from another host.
const (
	mostNames    = 1 << 20
	mostChunk    = 2 << 20
	mostManifest = 256 << 20
	mostReason   = 4 << 10
)

// Limits of a connection about a vault.
const (
	vaultConnect = 5 * time.Second
	vaultAnswer  = time.Minute     // until an answer begins; a busy disk has to sync all chunks of a guest
	vaultBody    = 2 * time.Minute // and longer for more than a MiB
	vaultIdle    = time.Minute
)

// vaultErrors are those that keep their meaning between hosts.
var vaultErrors = map[int]error{
	http.StatusInsufficientStorage: fleet.ErrNoRoom,
	http.StatusNotFound:            fleet.ErrNotKept,
	http.StatusGone:                fleet.ErrDamaged,
}

// serveVault lets other hosts reach this host's vault until ctx ends.
func (a *Agent) serveVault(ctx context.Context) {
	v := a.Vaults
	if v.Own == nil || v.Listener == nil || v.Credentials == nil {
		return
	}
	s := http.Server{
		Handler: a.vaultRoutes(), ReadHeaderTimeout: vaultConnect, ReadTimeout: vaultBody, IdleTimeout: vaultIdle,
		ErrorLog: slog.NewLogLogger(a.Log.Handler(), slog.LevelDebug),
	}
	context.AfterFunc(ctx, func() { _ = s.Close() }) // who saves tries again
	if err := s.Serve(tls.NewListener(newVaultListener(v.Listener, v.Inside), v.Credentials.Serving())); ctx.Err() == nil {
		a.trouble("serving the vault to other hosts", err)
	}
}

// vaultCall is one request of another host about a part.
type vaultCall struct {
	part  fleet.PartName
	grant fleet.VaultGrant
	r     *http.Request
	body  []byte
}

// vaultRoute is one kind of them.
type vaultRoute struct {
	pattern      string
	write        bool
	most, answer int64         // bytes of a request, and of an answer that is kept until the other host has it
	alone        chan struct{} // nil: many are carried out at once
	do           func(vaultCall) ([]byte, error)
}

func (a *Agent) vaultRoutes() http.Handler {
	own, mux := a.Vaults.Own.Own, http.NewServeMux()
	manifests := make(chan struct{}, 1) // one at a time is looked at: it may take a GiB of memory
	const part = " /v1/vault/{checkpoint}/{guest}/"
	for _, v := range []vaultRoute{
		{"POST" + part + "missing", true, mostNames, mostNames, nil, func(c vaultCall) ([]byte, error) {
			var names []fleet.Digest
			if err := json.Unmarshal(c.body, &names); err != nil {
				return nil, fmt.Errorf("read the chunks' names: %w", err)
			}
			missing, err := own(0).Missing(c.r.Context(), c.part, names)
			if err != nil {
				return nil, err
			}
			return json.Marshal(missing)
		}},
		{"PUT" + part + "chunks/{digest}", true, mostChunk, 0, nil, func(c vaultCall) ([]byte, error) {
			return nil, own(c.grant.MostBytes).PutChunk(c.r.Context(), c.part, fleet.Digest(c.r.PathValue("digest")), c.body)
		}},
		{"PUT" + part + "manifest", true, mostManifest, 0, manifests, func(c vaultCall) ([]byte, error) {
			return nil, a.takeManifest(c)
		}},
		{"GET" + part + "chunks/{digest}", false, 0, mostChunk, nil, func(c vaultCall) ([]byte, error) {
			return own(0).Chunk(c.r.Context(), c.part, fleet.Digest(c.r.PathValue("digest")))
		}},
		{"GET" + part + "manifest", false, 0, shareEach, manifests, func(c vaultCall) ([]byte, error) {
			text, err := own(0).Manifest(c.r.Context(), c.part)
			if sum := sha256.Sum256(text); err == nil && c.grant.Manifest != fleet.Digest("sha256-"+hex.EncodeToString(sum[:])) {
				return nil, fmt.Errorf("%w: another manifest is here than was ordered", fleet.ErrDamaged)
			}
			return text, err
		}},
	} {
		mux.HandleFunc(v.pattern, func(out http.ResponseWriter, r *http.Request) { a.serveVaultCall(v, out, r) })
	}
	a.addFileRoutes(mux)
	return mux
}

// serveVaultCall answers one request.
func (a *Agent) serveVaultCall(v vaultRoute, out http.ResponseWriter, r *http.Request) {
	c := vaultCall{part: fleet.PartName{Checkpoint: fleet.CheckpointID(r.PathValue("checkpoint")), Guest: fleet.GuestID(r.PathValue("guest"))}, r: r}
	host, err := a.Vaults.Credentials.Peer(*r.TLS)
	if err != nil {
		http.Error(out, err.Error(), http.StatusUnauthorized)
		return
	}
	is := false
	if c.grant, is = a.granted(host, c.part, v.write); !is {
		http.Error(out, fmt.Sprintf("host %s has no order about %s of %s with the vault of %s", host, c.part.Guest, c.part.Checkpoint, a.Host), http.StatusForbidden)
		return
	}
	q := a.vaultAsked(host, out, r)
	if c.body, err = q.body(mostOf(v.most, c.grant), v.answer); err == nil {
		defer q.give()
		var answer []byte
		if answer, err = a.doVaultCall(v, host, c); err == nil && len(answer) > shareEach {
			answer = nil // until there is a place for it
			if err = q.widen(); err == nil {
				answer, err = a.doVaultCall(v, host, c)
			}
		}
		if err == nil {
			q.answer(answer)
			return
		}
	}
	http.Error(out, err.Error(), vaultStatus(err))
}

// mostOf is how long a request may be of a host that may put so much.
func mostOf(most int64, g fleet.VaultGrant) int64 {
	if g.MostBytes > 0 {
		return min(most, g.MostBytes+packedMore)
	}
	return most
}

// doVaultCall carries a request out, if its order is not over by now.
func (a *Agent) doVaultCall(v vaultRoute, host fleet.HostID, c vaultCall) (_ []byte, err error) {
	if v.alone != nil {
		select {
		case v.alone <- struct{}{}:
			defer func() { <-v.alone }()
		case <-c.r.Context().Done():
			return nil, c.r.Context().Err()
		}
	}
	is := false
	if c.grant, is = a.granted(host, c.part, v.write); !is {
		return nil, fmt.Errorf("%w: the order about %s of %s is over", fleet.ErrNotKept, c.part.Guest, c.part.Checkpoint)
	}
	return v.do(c)
}

// takeManifest finishes a part in this host's vault.
func (a *Agent) takeManifest(c vaultCall) error {
	err := a.Vaults.Own.Own(c.grant.MostBytes).PutManifest(c.r.Context(), c.part, c.body)
	if err == nil {
		a.noteKept(c.part.Checkpoint)
	}
	return err
}

func vaultStatus(err error) int {
	for status, is := range vaultErrors {
		if errors.Is(err, is) {
			return status
		}
	}
	if errors.Is(err, errBusy) {
		return http.StatusServiceUnavailable
	}
	return http.StatusBadRequest
}

// vaultClient reaches another host's vault. It satisfies Chunks.
type vaultClient struct {
	host fleet.HostID
	http *http.Client
	end  *http.Transport
}

// newVaultClient reaches the vault of a host at what it says its address is.
func (a *Agent) newVaultClient(host fleet.HostID, address string) *vaultClient {
	return newVaultClient(a.Vaults.Credentials.Calling(host), host, func() (string, error) {
		at, err := netip.ParseAddrPort(address)
		if err != nil || a.Vaults.Toward == nil {
			return address, nil // a name of DNS
		}
		at, err = a.Vaults.Toward(at)
		return at.String(), err
	})
}

func newVaultClient(c *tls.Config, host fleet.HostID, address func() (string, error)) *vaultClient {
	dial := net.Dialer{Timeout: vaultConnect}
	end := &http.Transport{
		TLSClientConfig: c, TLSHandshakeTimeout: vaultConnect, ResponseHeaderTimeout: vaultAnswer, IdleConnTimeout: vaultIdle, MaxIdleConnsPerHost: 8,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			at, err := address()
			if err != nil {
				return nil, err
			}
			return dial.DialContext(ctx, network, at)
		},
	}
	return &vaultClient{host: host, http: &http.Client{Transport: end, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, end: end}
}

func (v *vaultClient) close() { v.end.CloseIdleConnections() }

// Missing satisfies Chunks.
func (v *vaultClient) Missing(ctx context.Context, p fleet.PartName, of []fleet.Digest) (missing []fleet.Digest, err error) {
	names, err := json.Marshal(of)
	if err != nil {
		return nil, err
	}
	answer, err := v.ask(ctx, asking{http.MethodPost, p, "missing", names, mostNames})
	if err == nil {
		err = json.Unmarshal(answer, &missing)
	}
	return missing, err
}

// PutChunk satisfies Chunks.
func (v *vaultClient) PutChunk(ctx context.Context, p fleet.PartName, d fleet.Digest, packed []byte) error {
	_, err := v.ask(ctx, asking{http.MethodPut, p, "chunks/" + url.PathEscape(string(d)), packed, 0})
	return err
}

// PutManifest satisfies Chunks.
func (v *vaultClient) PutManifest(ctx context.Context, p fleet.PartName, text []byte) error {
	_, err := v.ask(ctx, asking{http.MethodPut, p, "manifest", text, 0})
	return err
}

// Manifest satisfies Chunks.
func (v *vaultClient) Manifest(ctx context.Context, p fleet.PartName) ([]byte, error) {
	return v.ask(ctx, asking{http.MethodGet, p, "manifest", nil, mostManifest})
}

// Chunk satisfies Chunks.
func (v *vaultClient) Chunk(ctx context.Context, p fleet.PartName, d fleet.Digest) ([]byte, error) {
	return v.ask(ctx, asking{http.MethodGet, p, "chunks/" + url.PathEscape(string(d)), nil, mostChunk})
}

// asking is a request about a part.
type asking struct {
	method string
	part   fleet.PartName
	what   string
	body   []byte
	most   int64 // bytes of the answer
}

func (v *vaultClient) ask(ctx context.Context, q asking) ([]byte, error) {
	at := "vault/" + url.PathEscape(string(q.part.Checkpoint)) + "/" + url.PathEscape(string(q.part.Guest)) + "/" + q.what
	r, err := http.NewRequestWithContext(ctx, q.method, vaultURL+at, bytes.NewReader(q.body))
	if err != nil {
		return nil, err
	}
	return v.answer(r, q.most)
}

// vaultURL is before the paths of requests, which a connection to the right host gets.
const vaultURL = "https://vault/v1/"

// post asks about something else than a part.
func (v *vaultClient) post(ctx context.Context, path string, body []byte, most int64) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, vaultURL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return v.answer(r, most)
}

func (v *vaultClient) answer(r *http.Request, most int64) ([]byte, error) {
	got, err := v.http.Do(r)
	if err != nil {
		if why := (*url.Error)(nil); errors.As(err, &why) {
			err = why.Err // the address in it means nothing to people
		}
		return nil, fmt.Errorf("asking host %s: %w", v.host, err)
	}
	defer got.Body.Close()
	if got.StatusCode != http.StatusOK {
		reason, _ := io.ReadAll(io.LimitReader(got.Body, mostReason))
		said := strings.TrimSpace(string(reason))
		if is := vaultErrors[got.StatusCode]; is != nil {
			return nil, fmt.Errorf("%w: host %s: %s", is, v.host, said)
		}
		return nil, fmt.Errorf("host %s refuses: %s", v.host, said)
	}
	text, err := io.ReadAll(io.LimitReader(got.Body, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("it is longer than %d bytes", most)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the answer of host %s: %w", v.host, err)
	}
	return text, nil
}
