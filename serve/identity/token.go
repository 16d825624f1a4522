package identity

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// Token lets its holder into the cluster, for as long and as often as the controller's
// record of it says. Written down it is "ID.SECRET.FINGERPRINT".
type Token struct {
	ID          string // names the controller's record
	Secret      string // base64url of 32 random bytes; the record has only its Hash
	Fingerprint string // of the authority, by which the holder knows the controller
}

const (
	tokenIDBytes = 5
	secretBytes  = 32
)

// NewToken makes a token of an authority.
func (a *Authority) NewToken() Token {
	id, secret := make([]byte, tokenIDBytes), make([]byte, secretBytes)
	rand.Read(id)     // never fails
	rand.Read(secret) // never fails
	return Token{ID: hex.EncodeToString(id), Secret: base64.RawURLEncoding.EncodeToString(secret), Fingerprint: a.Fingerprint()}
}

// NewDerivedToken makes a token whose secret follows from the authority's key and a salt. The salt may be stored: with it DeriveToken
// makes the same token again, and nobody without the authority's key can.
func (a *Authority) NewDerivedToken() (t Token, salt string, err error) {
	salt = rand.Text()
	t, err = a.DeriveToken(a.NewToken().ID, salt)
	return t, salt, err
}

// DeriveToken makes the token with an ID that NewDerivedToken made with a salt.
func (a *Authority) DeriveToken(id, salt string) (Token, error) {
	key, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		return Token{}, err
	}
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "pagurus join token\n%s\n%s", id, salt)
	return Token{ID: id, Secret: base64.RawURLEncoding.EncodeToString(mac.Sum(nil)), Fingerprint: a.Fingerprint()}, nil
}

// String is the form that people copy.
func (t Token) String() string { return t.ID + "." + t.Secret + "." + t.Fingerprint }

// Hash is what the controller stores of the secret. The secret has 256 random bits, so
// it needs neither salt nor a slow hash.
func (t Token) Hash() string {
	sum := sha256.Sum256([]byte(t.Secret))
	return hex.EncodeToString(sum[:])
}

// ParseToken takes a written token apart.
func ParseToken(text string) (Token, error) {
	part := strings.Split(strings.TrimSpace(text), ".")
	broken := errors.New("this is not a whole join token: copy the line that `pagurus token create` printed")
	if len(part) != 3 {
		return Token{}, broken
	}
	id, err1 := hex.DecodeString(part[0])
	secret, err2 := base64.RawURLEncoding.DecodeString(part[1])
	print, err3 := hex.DecodeString(part[2])
	if errors.Join(err1, err2, err3) != nil || len(id) != tokenIDBytes || len(secret) != secretBytes || len(print) != sha256.Size {
		return Token{}, broken
	}
	return Token{part[0], part[1], part[2]}, nil
}
