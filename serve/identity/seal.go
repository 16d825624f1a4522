package identity

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
)

// sealPrefix keeps what is sealed apart from certificates, which the same key signs.
const sealPrefix = "pagurus copy of a checkpoint\x00"

// ErrSeal: a text is not as this cluster has sealed it.
var ErrSeal = errors.New("this cluster has not sealed it, or it has changed since")

func sealed(text []byte) []byte {
	sum := sha256.Sum256(append([]byte(sealPrefix), text...))
	return sum[:]
}

// Seal proves, to every controller of this cluster, that one of them has made a text.
func (a *Authority) Seal(text []byte) ([]byte, error) {
	seal, err := ecdsa.SignASN1(rand.Reader, a.key, sealed(text))
	if err != nil {
		return nil, fmt.Errorf("seal a text: %w", err)
	}
	return seal, nil
}

// Unseal tests a seal.
func (a *Authority) Unseal(text, seal []byte) error {
	if !ecdsa.VerifyASN1(&a.key.PublicKey, sealed(text), seal) {
		return ErrSeal
	}
	return nil
}
