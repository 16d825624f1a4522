package identity

import (
	"bytes"
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

	"pagurus/internal/note"
)

// This file has how several controllers of a cluster know each other: each has the authority, and
// makes its own certificate. It is one of the role controller, which no host or user has.

// Files of a controller's own certificate in its state folder, for what reads files.
const (
	PeerFile    = "peer.crt"
	PeerKeyFile = "peer.key"
)

// SavePeer makes a certificate for the controller called name, and writes it and its key into dir. It is to
// be made again in time. After an error the old one stands, or none.
func (a *Authority) SavePeer(dir, name string, at time.Time) error {
	key, secret, err := newKey()
	if err != nil {
		return err
	}
	der, err := a.issue(Subject{Role: Controller, Name: name}, key.Public(), at)
	if err != nil {
		return err
	}
	// Whoever reads between the two writes gets an error, and tries again.
	if err := note.WriteDurably(filepath.Join(dir, PeerKeyFile), secret, 0o600); err != nil {
		return fmt.Errorf("keep the controller's certificate: %w", err)
	}
	if err := note.WriteDurably(filepath.Join(dir, PeerFile), certificatePEM(der), 0o600); err != nil {
		return fmt.Errorf("keep the controller's certificate: %w", err)
	}
	return nil
}

// Calling is the TLS configuration by which the controller called name calls another.
func (a *Authority) Calling(name string) *tls.Config {
	var mu sync.Mutex
	var pair *tls.Certificate
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: ServerName, RootCAs: a.roots,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			mu.Lock()
			defer mu.Unlock()
			now := time.Now()
			if pair == nil || now.Add(Lifetime/2).After(pair.Leaf.NotAfter) || now.Before(pair.Leaf.NotBefore) {
				made, err := a.serving(name, now)
				if err != nil {
					return nil, err
				}
				pair = &made
			}
			return pair, nil
		},
	}
}

// IsController reports whether a certificate is a controller's of this cluster, and valid.
func (a *Authority) IsController(c *x509.Certificate, at time.Time) bool {
	who, err := a.Verify(c, at)
	return err == nil && who.Role == Controller
}

// Secret is the authority's key as PEM. It is for another controller of the cluster, and for nobody else.
func (a *Authority) Secret() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// SaveAuthority keeps the authority of a cluster in a folder that has none, or the same.
func SaveAuthority(dir string, certificate, secret []byte) error {
	if _, err := tls.X509KeyPair(certificate, secret); err != nil {
		return fmt.Errorf("the controller answered with an authority that cannot be used: %w", err)
	}
	switch had, err := os.ReadFile(filepath.Join(dir, AuthorityFile)); {
	case err == nil && !bytes.Equal(had, certificate):
		return fmt.Errorf("%s has the authority of another cluster: give this controller another --state folder", dir)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("keep the cluster's authority: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("keep the cluster's authority: %w", err)
	}
	if err := note.WriteDurably(filepath.Join(dir, AuthorityKeyFile), secret, 0o600); err != nil {
		return fmt.Errorf("keep the cluster's authority: %w", err)
	}
	if err := note.WriteDurably(filepath.Join(dir, AuthorityFile), certificate, 0o600); err != nil {
		return fmt.Errorf("keep the cluster's authority: %w", err)
	}
	return nil
}
