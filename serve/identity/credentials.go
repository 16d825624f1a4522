package identity

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"pagurus/fleet"
	"pagurus/internal/note"
)

// Files of a member's credentials, in a folder that only the member reads.
const (
	keyFile         = "member.key"
	certificateFile = "member.crt"
	clusterFile     = "cluster.crt" // the authority's certificate
	loginFile       = "login.json"
)

// Login says whose credentials are in a folder, and for which controller.
type Login struct {
	Controller string       `json:"controller"` // HOST:PORT
	Host       fleet.HostID `json:"host,omitempty"`
	User       fleet.UserID `json:"user,omitempty"`
	Site       string       `json:"site,omitempty"` // where the host stands, as its token had it
}

// ReadLogin says whose credentials are in a folder. There being none is not an error.
func ReadLogin(dir string) (Login, error) {
	var l Login
	err := note.Load(filepath.Join(dir, loginFile), &l)
	if dir == "" || errors.Is(err, fs.ErrNotExist) {
		return Login{}, nil
	}
	if err != nil {
		return Login{}, damaged(dir, err)
	}
	return l, nil
}

// ErrNotJoined is wrapped by the error of a folder without credentials.
var ErrNotJoined = errors.New("no credentials")

// Credentials are a member's key, its certificate, and that of the cluster's authority.
// The methods may be called side by side.
type Credentials struct {
	dir       string
	authority *x509.Certificate
	roots     *x509.CertPool

	mu   sync.Mutex
	pair tls.Certificate
}

// Request makes a key in dir, or takes the one that an earlier try left, and gives the
// request for its certificate as PEM. A try that is cut off can so be repeated and is the
// same member.
func Request(dir string) ([]byte, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	path := filepath.Join(dir, keyFile)
	secret, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, secret, err = newKey(); err == nil {
			err = note.WriteDurably(path, secret, 0o600)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	csr, err := request(secret)
	if err != nil {
		return nil, fmt.Errorf("%s is damaged (%w): remove it and join or log in with a new token; a host has to be removed from the cluster before, with `pagurus host rm`", path, err)
	}
	return csr, nil
}

func request(secret []byte) ([]byte, error) {
	block, _ := pem.Decode(secret)
	if block == nil {
		return nil, errors.New("the key is not a PEM block")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read the key: %w", err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), nil
}

// Save stores what the controller answered to a request. After an error the folder holds
// no half of it: Load needs the certificate, which comes last.
func Save(dir string, certificate, authority []byte, l Login) error {
	if before, err := os.ReadFile(filepath.Join(dir, clusterFile)); err == nil && !bytes.Equal(before, authority) {
		// Another cluster's certificate must not end up with this one's authority.
		if err := os.Remove(filepath.Join(dir, certificateFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("keep credentials: %w", err)
		}
	}
	if err := note.Replace(filepath.Join(dir, loginFile), l); err != nil {
		return fmt.Errorf("keep credentials: %w", err)
	}
	if err := note.WriteDurably(filepath.Join(dir, clusterFile), authority, 0o600); err != nil {
		return fmt.Errorf("keep credentials: %w", err)
	}
	if err := note.WriteDurably(filepath.Join(dir, certificateFile), certificate, 0o600); err != nil {
		return fmt.Errorf("keep credentials: %w", err)
	}
	return nil
}

// Remove deletes the credentials in dir. It is not an error if there are none.
func Remove(dir string) error {
	for _, name := range []string{certificateFile, clusterFile, loginFile, keyFile} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove credentials: %w", err)
		}
	}
	return nil
}

// Load reads a member's credentials. ErrNotJoined: there are none.
func Load(dir string) (*Credentials, error) {
	pair, err := loadPair(filepath.Join(dir, certificateFile), filepath.Join(dir, keyFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w in %s", ErrNotJoined, dir)
	}
	if err != nil {
		return nil, damaged(dir, err)
	}
	text, err := os.ReadFile(filepath.Join(dir, clusterFile))
	if err != nil {
		return nil, damaged(dir, err)
	}
	authority, err := readCertificate(text)
	if err != nil {
		return nil, damaged(dir, fmt.Errorf("%s: %w", filepath.Join(dir, clusterFile), err))
	}
	c := &Credentials{dir: dir, authority: authority, roots: pool(authority), pair: pair}
	if _, err := c.Subject(); err != nil {
		return nil, damaged(dir, err)
	}
	return c, nil
}

// damaged says what to do about credentials that cannot be read. The key stays what it was,
// so joining again with it is joining once.
func damaged(dir string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("only their owner may read the credentials in %s: %w", dir, err)
	}
	if open := (*openToOthers)(nil); errors.As(err, &open) {
		return err
	}
	return fmt.Errorf("the credentials in %s are damaged (%w): `pagurus join` or `pagurus login` again with a token replaces them", dir, err)
}

// Of reports whether the credentials are those of the cluster whose authority has a
// fingerprint.
func (c *Credentials) Of(print string) bool { return fingerprint(c.authority.Raw) == print }

// Cluster is what people call the cluster; empty: nothing.
func (c *Credentials) Cluster() string { return nameOf(c.authority) }

// ErrForeign is wrapped by the error of a handshake with what is not the token's controller.
var ErrForeign = errors.New("it is not the controller that the token is of")

func readCertificate(text []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("it is not a certificate in PEM form")
	}
	return x509.ParseCertificate(block.Bytes)
}

// Subject is who the holder is.
func (c *Credentials) Subject() (Subject, error) {
	return subjectOf(c.current().Leaf, domain(c.authority))
}

func (c *Credentials) current() *tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	pair := c.pair
	return &pair
}

// RenewAt is when the certificate should be renewed: when half of its time has passed.
func (c *Credentials) RenewAt() time.Time {
	leaf := c.current().Leaf
	return leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore) / 2)
}

// request makes the request for a new certificate. Since the credentials were loaded their
// holder may have logged out, or in to another cluster: what is in the folder then is not
// this member's, and stays.
func (c *Credentials) request() ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(c.dir, clusterFile))
	if err != nil {
		return nil, damaged(c.dir, err)
	}
	authority, err := readCertificate(text)
	if err != nil {
		return nil, damaged(c.dir, err)
	}
	secret, err := readKey(filepath.Join(c.dir, keyFile))
	if err != nil {
		return nil, damaged(c.dir, err)
	}
	csr, err := request(secret)
	if err != nil {
		return nil, damaged(c.dir, err)
	}
	key, err := RequestKey(csr)
	if err != nil {
		return nil, err
	}
	if !authority.Equal(c.authority) || key != Key(c.current().Leaf) {
		return nil, fmt.Errorf("the credentials in %s are of another login since this program began: start it again", c.dir)
	}
	return csr, nil
}

// Renew asks for a new certificate for the same key, and stores it. After an error the
// old one stands.
func (c *Credentials) Renew(ctx context.Context, ask func(ctx context.Context, request []byte) (certificate []byte, err error)) error {
	csr, err := c.request()
	if err != nil {
		return err
	}
	text, err := ask(ctx, csr)
	if err == nil {
		_, err = c.request() // the answer took its time
	}
	if err != nil {
		return err
	}
	if err := note.WriteDurably(filepath.Join(c.dir, certificateFile), text, 0o600); err != nil {
		return fmt.Errorf("keep credentials: %w", err)
	}
	pair, err := loadPair(filepath.Join(c.dir, certificateFile), filepath.Join(c.dir, keyFile))
	if err != nil {
		return fmt.Errorf("the renewed certificate: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pair = pair
	return nil
}

// Client is the TLS configuration of a member that calls the controller.
func (c *Credentials) Client() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: ServerName, RootCAs: c.roots,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.current(), nil },
	}
}

// Joining is the TLS configuration of a machine that has only a token: it trusts the
// controller whose chain holds the authority with this fingerprint. The clock of this
// machine does not count yet; the controller's answer has the time.
func Joining(print string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: ServerName, InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			for _, c := range s.PeerCertificates[1:] {
				if fingerprint(c.Raw) != print {
					continue
				}
				leaf := s.PeerCertificates[0]
				_, err := leaf.Verify(x509.VerifyOptions{Roots: pool(c), DNSName: ServerName, CurrentTime: leaf.NotBefore})
				return err
			}
			return ErrForeign
		},
	}
}
