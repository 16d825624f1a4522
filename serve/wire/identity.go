package wire

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"time"

	"pagurus/internal/note"
)

// Identity is the controller's certificate for TCP, and the token that its clients show.
type Identity struct {
	Certificate tls.Certificate
	Token       string // "SECRET.FINGERPRINT"
	TokenFile   string // the token's file
}

const (
	certificateFile = "controller.crt"
	keyFile         = "controller.key"
	tokenFile       = "token"
	secretBytes     = 32
	validity        = 50 * 365 * 24 * time.Hour // the certificate is pinned, so a date adds nothing
)

// EnsureIdentity loads the identity from dir, or makes it once. Only the files' owner can
// read them. After an error part of the files may exist; call again.
func EnsureIdentity(dir string) (Identity, error) {
	cert, err := loadCertificate(dir)
	if errors.Is(err, fs.ErrNotExist) {
		cert, err = makeCertificate(dir)
	}
	if err != nil {
		return Identity{}, fmt.Errorf("the controller's certificate in %s: %w", dir, err)
	}
	path := filepath.Join(dir, tokenFile)
	had, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Identity{}, fmt.Errorf("the controller's token: %w", err)
	}
	secret, _, _ := strings.Cut(strings.TrimSpace(string(had)), ".")
	if b, err := base64.RawURLEncoding.DecodeString(secret); err != nil || len(b) != secretBytes {
		fresh := make([]byte, secretBytes)
		rand.Read(fresh) // never fails
		secret = base64.RawURLEncoding.EncodeToString(fresh)
	}
	token := secret + "." + fingerprint(cert.Certificate[0])
	if strings.TrimSpace(string(had)) != token {
		if err := note.WriteDurably(path, []byte(token+"\n"), 0o600); err != nil {
			return Identity{}, fmt.Errorf("the controller's token: %w", err)
		}
	}
	return Identity{Certificate: cert, Token: token, TokenFile: path}, nil
}

func loadCertificate(dir string) (tls.Certificate, error) {
	cert, err := os.ReadFile(filepath.Join(dir, certificateFile))
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := os.ReadFile(filepath.Join(dir, keyFile))
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(cert, key)
}

// makeCertificate writes the key first: without a certificate it is not used, and the next
// start makes both again.
func makeCertificate(dir string) (tls.Certificate, error) {
	none := tls.Certificate{}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return none, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return none, err
	}
	now := time.Now()
	form := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: serverName}, DNSNames: []string{serverName},
		NotBefore: now.Add(-24 * time.Hour), NotAfter: now.Add(validity),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, form, form, key.Public(), key)
	if err != nil {
		return none, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return none, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return none, err
	}
	if err := note.WriteDurably(filepath.Join(dir, keyFile), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600); err != nil {
		return none, err
	}
	if err := note.WriteDurably(filepath.Join(dir, certificateFile), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		return none, err
	}
	return loadCertificate(dir)
}

func fingerprint(der []byte) string {
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}

// parseToken splits a token into secret and fingerprint.
func parseToken(token string) (secret, print string, err error) {
	secret, print, found := strings.Cut(strings.TrimSpace(token), ".")
	if b, err := hex.DecodeString(print); !found || secret == "" || err != nil || len(b) != sha256.Size {
		return "", "", errors.New("the token is not one of a controller: copy the whole line of its token file")
	}
	return secret, print, nil
}

func sameSecret(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }
