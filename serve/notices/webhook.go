package notices

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"pagurus/fleet"
)

// Webhook is a receiver that is told by HTTP. Requests are those of Standard Webhooks (https://www.standardwebhooks.com), for
// which there are libraries: the body is the notice, webhook-id its ID, and webhook-signature is HMAC-SHA256 of ID, time and body.
type Webhook struct {
	at     *url.URL
	key    []byte // empty: not signed
	client *http.Client
}

// answerBytes is how much of an answer is read.
const answerBytes = 64 << 10

// secretPrefix begins a secret as Standard Webhooks writes it, in base64.
const secretPrefix = "whsec_"

// leastKey is the shortest key, as the standard says.
const leastKey = 24

// RefusedURL says why nothing can be sent to an address; nil: it can.
func RefusedURL(address string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return fmt.Errorf("%q is not an address of HTTP: write it like https://chat.example.org/hooks/1", address)
	case u.User != nil:
		return errors.New("an address of a webhook has no user and password: requests are signed by --webhook-secret")
	case u.Scheme == "http" && !loopback(u.Hostname()):
		return fmt.Errorf("%q is not encrypted: write https, or name this machine (127.0.0.1)", address)
	}
	return nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// ReadKey gives the key in a secret: base64 after whsec_, or the text itself.
func ReadKey(secret string) ([]byte, error) {
	secret = strings.TrimSpace(secret)
	key := []byte(secret)
	if text, coded := strings.CutPrefix(secret, secretPrefix); coded {
		var err error
		if key, err = base64.StdEncoding.DecodeString(text); err != nil {
			return nil, fmt.Errorf("the secret of webhooks begins with %s, and what follows is not base64", secretPrefix)
		}
	}
	if len(key) < leastKey {
		return nil, fmt.Errorf("the secret of webhooks is shorter than %d bytes: make one with `openssl rand -base64 32`", leastKey)
	}
	return key, nil
}

// NewWebhook makes a receiver of an address that RefusedURL does not refuse.
func NewWebhook(address string, key []byte) (*Webhook, error) {
	if err := RefusedURL(address); err != nil {
		return nil, err
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	return &Webhook{at: u, key: key, client: &http.Client{
		Timeout:       tellLimit,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // an administrator named the receiver, and nobody else does
	}}, nil
}

// Name is the receiver's address. Its path and query may be a secret, so a digest stands for them.
func (w *Webhook) Name() string {
	sum := sha256.Sum256([]byte(w.at.RequestURI()))
	return "webhook " + w.at.Scheme + "://" + w.at.Host + " " + base64.RawURLEncoding.EncodeToString(sum[:6])
}

// Tell sends a notice.
func (w *Webhook) Tell(ctx context.Context, n fleet.Notice) error {
	body, err := json.Marshal(n)
	if err != nil {
		return fmt.Errorf("encoding a notice: %w", err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.at.String(), bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("calling %s: %w", w.Name(), err)
	}
	at := strconv.FormatInt(time.Now().Unix(), 10)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "pagurus")
	r.Header.Set("webhook-id", string(n.ID))
	r.Header.Set("webhook-timestamp", at)
	if len(w.key) > 0 {
		r.Header.Set("webhook-signature", Signature(w.key, string(n.ID), at, body))
	}
	answer, err := w.client.Do(r)
	if err != nil {
		if cause := (*url.Error)(nil); errors.As(err, &cause) { // which has the whole address
			err = cause.Err
		}
		return fmt.Errorf("calling %s: %w", w.Name(), err)
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, answerBytes))
	switch code := answer.StatusCode; {
	case code >= 200 && code < 300:
		return nil
	case code == http.StatusRequestTimeout || code == http.StatusTooManyRequests || code >= 500:
		return fmt.Errorf("%s answered with status %d", w.Name(), code)
	default:
		return fmt.Errorf("%s answered with status %d: %w", w.Name(), code, ErrUnwanted)
	}
}

// Signature is what webhook-signature says.
func Signature(key []byte, id, at string, body []byte) string {
	mac := hmac.New(sha256.New, key)
	_, _ = fmt.Fprintf(mac, "%s.%s.%s", id, at, body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}
