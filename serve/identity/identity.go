// Package identity makes and checks the certificates by which the members of a cluster
// know each other: one authority per cluster, one certificate per host, user and
// controller, each for a key that was made where it is used.
//
// An identity is a URI in the certificate, of the form that SPIFFE uses:
// spiffe://DOMAIN/host/NAME (https://github.com/spiffe/spiffe, SPIFFE-ID and
// X509-SVID). It must not know what a role may do. Its tests run real TLS connections.
package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// Role is what kind of member a subject is.
type Role string

// The roles of certificates.
const (
	Host       Role = "host"
	User       Role = "user"
	Controller Role = "controller"
)

// Subject is a member of the cluster.
type Subject struct {
	Role Role
	Name string
}

// String is for messages: "host node3".
func (s Subject) String() string { return string(s.Role) + " " + s.Name }

func (s Subject) uri(domain string) *url.URL {
	return &url.URL{Scheme: "spiffe", Host: domain, Path: "/" + string(s.Role) + "/" + s.Name}
}

// subjectOf reads the one URI of a certificate.
func subjectOf(c *x509.Certificate, domain string) (Subject, error) {
	foreign := errors.New("the certificate names no member of this cluster: join again, with a token of this cluster")
	if len(c.URIs) != 1 || c.URIs[0].Scheme != "spiffe" || c.URIs[0].Host != domain {
		return Subject{}, foreign
	}
	role, name, found := strings.Cut(strings.TrimPrefix(c.URIs[0].Path, "/"), "/")
	s := Subject{Role(role), name}
	switch s.Role {
	case Host, User, Controller:
		if found && name != "" && !strings.Contains(name, "/") {
			return s, nil
		}
	}
	return Subject{}, foreign
}

// Key is the fingerprint of a certificate's public key: SHA-256 of its
// SubjectPublicKeyInfo in hexadecimal, as RFC 7469 pins keys. It stays the same when a
// certificate is renewed for the same key.
func Key(c *x509.Certificate) string { return fingerprint(c.RawSubjectPublicKeyInfo) }

// RequestKey is the Key of a certificate request (PEM). An error says what is wrong with
// the request.
func RequestKey(request []byte) (string, error) {
	csr, err := readRequest(request)
	if err != nil {
		return "", err
	}
	return fingerprint(csr.RawSubjectPublicKeyInfo), nil
}

// readRequest reads a certificate request, whose signature proves that the sender has
// the key.
func readRequest(request []byte) (*x509.CertificateRequest, error) {
	block, rest := pem.Decode(request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || len(strings.TrimSpace(string(rest))) > 0 {
		return nil, errors.New("the certificate request is not one PEM block")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read the certificate request: %w", err)
	}
	if key, is := csr.PublicKey.(*ecdsa.PublicKey); !is || key.Curve != elliptic.P256() {
		return nil, errors.New("the certificate request is for another kind of key than ECDSA on P-256")
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, fmt.Errorf("the certificate request is not signed with its own key: %w", err)
	}
	return csr, nil
}
