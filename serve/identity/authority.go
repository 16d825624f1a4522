package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"pagurus/internal/note"
)

// Lifetimes of what an authority signs.
const (
	// Lifetime is how long a certificate of a host, a user or a controller is valid. Its
	// holder renews it when half of that has passed.
	Lifetime = 7 * 24 * time.Hour
	// RenewWithin is how long after that a certificate still renews itself, and does
	// nothing else: a laptop may sleep for a holiday.
	RenewWithin = 90 * 24 * time.Hour
	// ClockSkew is how far the clocks of two machines may differ. Certificates are valid
	// from that long before they are made.
	ClockSkew = 5 * time.Minute

	authorityLifetime = 20 * 365 * 24 * time.Hour
)

// Files of an authority in the controller's state folder.
const (
	AuthorityFile    = "authority.crt"
	AuthorityKeyFile = "authority.key"
)

// ServerName is the name that every controller's certificate has. A client asks for it
// by whatever address it reaches the controller.
const ServerName = "controller.pagurus"

// Authority is the certificate authority of one cluster. Its methods may be called side
// by side.
type Authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	roots       *x509.CertPool
}

// OpenAuthority loads the authority in dir, or makes it once. Its files are readable by
// their owner alone. A key without its certificate is one that was never used, and is
// replaced; a certificate without its key is an error.
func OpenAuthority(dir string) (*Authority, error) { return OpenNamed(dir, "") }

// OpenNamed is OpenAuthority, and a new authority's certificate has the cluster's name. An
// existing authority keeps the name that it has.
func OpenNamed(dir, name string) (*Authority, error) {
	pair, err := loadPair(filepath.Join(dir, AuthorityFile), filepath.Join(dir, AuthorityKeyFile))
	if errors.Is(err, fs.ErrNotExist) && !exists(filepath.Join(dir, AuthorityFile)) {
		if err = makeAuthority(dir, name); err == nil {
			pair, err = loadPair(filepath.Join(dir, AuthorityFile), filepath.Join(dir, AuthorityKeyFile))
		}
	}
	if at := (*fs.PathError)(nil); err != nil && (!errors.As(err, &at) || errors.Is(err, fs.ErrNotExist)) && !errors.As(err, new(*openToOthers)) {
		err = fmt.Errorf("%w: put back %s and %s from a copy; without them every machine has to join again, a new cluster in another --state folder", err, AuthorityFile, AuthorityKeyFile)
	}
	if err != nil {
		return nil, fmt.Errorf("open the cluster's authority in %s: %w", dir, err)
	}
	key, is := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !is || !pair.Leaf.IsCA {
		return nil, fmt.Errorf("open the cluster's authority in %s: %s is not a certificate that Pagurus made", dir, AuthorityFile)
	}
	return &Authority{certificate: pair.Leaf, key: key, roots: pool(pair.Leaf)}, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func loadPair(certificate, key string) (tls.Certificate, error) {
	crt, err := os.ReadFile(certificate)
	if err != nil {
		return tls.Certificate{}, err
	}
	secret, err := readKey(key)
	if err != nil {
		return tls.Certificate{}, err
	}
	pair, err := tls.X509KeyPair(crt, secret)
	if err != nil {
		return pair, fmt.Errorf("%s: %w", certificate, err)
	}
	return pair, nil
}

// openToOthers: others than its owner may read a key or write it.
type openToOthers struct{ path string }

func (e *openToOthers) Error() string {
	return fmt.Sprintf("others than its owner may open the key %s: run `chmod go= %s`, and if others could have read it, join or log in with a new one", e.path, e.path)
}

// readKey reads a key, unless others may.
func readKey(path string) ([]byte, error) {
	about, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if about.Mode().Perm()&0o077 != 0 {
		return nil, &openToOthers{path}
	}
	return os.ReadFile(path)
}

func pool(c *x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(c)
	return p
}

// makeAuthority writes the key first: without a certificate it counts for nothing, and
// the next start makes both again.
func makeAuthority(dir, name string) error {
	key, secret, err := newKey()
	if err != nil {
		return err
	}
	now := time.Now()
	form := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "Pagurus cluster authority"},
		NotBefore: now.Add(-ClockSkew), NotAfter: now.Add(authorityLifetime),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}
	if name != "" {
		form.Subject.Organization = []string{name}
	}
	der, err := x509.CreateCertificate(rand.Reader, form, form, key.Public(), key)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := note.WriteDurably(filepath.Join(dir, AuthorityKeyFile), secret, 0o600); err != nil {
		return err
	}
	return note.WriteDurably(filepath.Join(dir, AuthorityFile), certificatePEM(der), 0o600)
}

// newKey makes a key on the curve P-256, and its PEM form.
func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// serial is a random number of 127 bits (RFC 5280, 4.1.2.2: at most 20 octets, unique).
func serial() *big.Int {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		panic(err) // the kernel's random numbers cannot fail
	}
	return n
}

func certificatePEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// Fingerprint is the SHA-256 of the authority's certificate in hexadecimal. Join tokens
// carry it, so that whoever joins knows the controller.
func (a *Authority) Fingerprint() string { return fingerprint(a.certificate.Raw) }

// Certificate is the authority's certificate as PEM.
func (a *Authority) Certificate() []byte { return certificatePEM(a.certificate.Raw) }

// Name is what people call the cluster; empty: nothing.
func (a *Authority) Name() string { return nameOf(a.certificate) }

func nameOf(authority *x509.Certificate) string {
	return strings.Join(authority.Subject.Organization, " ")
}

// Domain names the cluster in identities.
func (a *Authority) Domain() string { return domain(a.certificate) }

// domain is the trust domain of an authority: it follows from the certificate, so that
// two clusters never share one.
func domain(authority *x509.Certificate) string { return fingerprint(authority.Raw)[:16] + ".pagurus" }

func fingerprint(der []byte) string {
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}

// Sign makes the certificate of a subject for the key in a request (PKCS #10, PEM). Of
// the request only the key counts. It returns the certificate as PEM.
func (a *Authority) Sign(request []byte, s Subject, at time.Time) ([]byte, error) {
	csr, err := readRequest(request)
	if err != nil {
		return nil, err
	}
	der, err := a.issue(s, csr.PublicKey, at)
	if err != nil {
		return nil, err
	}
	return certificatePEM(der), nil
}

func (a *Authority) issue(s Subject, key any, at time.Time) ([]byte, error) {
	id := s.uri(a.Domain())
	form := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: s.String()}, URIs: []*url.URL{id},
		NotBefore: at.Add(-ClockSkew), NotAfter: at.Add(Lifetime),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	switch s.Role {
	case Controller:
		form.ExtKeyUsage, form.DNSNames = append(form.ExtKeyUsage, x509.ExtKeyUsageServerAuth), []string{ServerName} // they call each other as well
	case Host: // hosts serve each other as well
		form.ExtKeyUsage = append(form.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	der, err := x509.CreateCertificate(rand.Reader, form, a.certificate, key, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of %s: %w", s, err)
	}
	return der, nil
}

// Serving makes a certificate for the controller itself. The chain holds the authority,
// so that whoever joins can compare its fingerprint.
func (a *Authority) Serving(at time.Time) (tls.Certificate, error) {
	return a.serving("controller", at)
}

func (a *Authority) serving(name string, at time.Time) (tls.Certificate, error) {
	key, _, err := newKey()
	if err != nil {
		return tls.Certificate{}, err
	}
	der, err := a.issue(Subject{Role: Controller, Name: name}, key.Public(), at)
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der, a.certificate.Raw}, PrivateKey: key, Leaf: leaf}, nil
}

// Verify says whose certificate c is. ErrExpired comes with the subject: such a holder
// may only renew. Whether the subject is still known, and with this key, is not the
// authority's to say.
func (a *Authority) Verify(c *x509.Certificate, at time.Time) (Subject, error) {
	return verify(c, a.certificate, a.roots, at)
}

// ErrExpired is wrapped by the error of a certificate whose time is over, but for less
// than RenewWithin.
var ErrExpired = errors.New("the certificate has expired")

func verify(c, authority *x509.Certificate, roots *x509.CertPool, at time.Time) (Subject, error) {
	late := at.Sub(c.NotAfter)
	when := at
	if late > 0 {
		when = c.NotAfter
	}
	if _, err := c.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: when, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		if at.Before(c.NotBefore) {
			return Subject{}, fmt.Errorf("the certificate is valid from %s on, and here it is %s: set the clocks of both machines right", c.NotBefore.UTC().Format(time.DateTime), at.UTC().Format(time.DateTime))
		}
		return Subject{}, errors.New("the certificate was not made by this cluster: join again, with a token of this cluster")
	}
	s, err := subjectOf(c, domain(authority))
	switch {
	case err != nil:
		return Subject{}, err
	case late > RenewWithin:
		return Subject{}, fmt.Errorf("the certificate of %s expired on %s, too long ago to be renewed: join again with a new token", s, c.NotAfter.UTC().Format(time.DateOnly))
	case late > 0:
		return s, fmt.Errorf("%w: that of %s on %s", ErrExpired, s, c.NotAfter.UTC().Format(time.DateTime))
	}
	return s, nil
}
