package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"pagurus/fleet"
)

// Serving is the TLS configuration of a host that serves other hosts of its cluster: who calls shows a
// host's certificate. Which host it is Peer says.
func (c *Credentials) Serving() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAnyClientCert, NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current(), nil },
		VerifyConnection: func(s tls.ConnectionState) error {
			_, err := c.Peer(s)
			return err
		},
	}
}

// Calling is the TLS configuration of a host that calls another host of its cluster. Nobody else is taken for it.
func (c *Credentials) Calling(to fleet.HostID) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.current(), nil },
		InsecureSkipVerify:   true, // a host's certificate names the host and no domain: VerifyConnection tests all of it
		VerifyConnection: func(s tls.ConnectionState) error {
			switch peer, err := c.Peer(s); {
			case err != nil:
				return err
			case peer != to:
				return fmt.Errorf("host %s answers there, not %s", peer, to)
			}
			return nil
		},
	}
}

// Peer is the host at the other end of a connection.
func (c *Credentials) Peer(s tls.ConnectionState) (fleet.HostID, error) {
	if len(s.PeerCertificates) == 0 {
		return "", errors.New("the other host shows no certificate")
	}
	return c.hostOf(s.PeerCertificates[0], time.Now())
}

func (c *Credentials) hostOf(shown *x509.Certificate, at time.Time) (fleet.HostID, error) {
	of, err := verify(shown, c.authority, c.roots, at)
	if err != nil {
		return "", err
	}
	if of.Role != Host {
		return "", fmt.Errorf("the certificate is of %s, not of a host", of)
	}
	return fleet.HostID(of.Name), nil
}
