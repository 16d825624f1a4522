package identity

import (
	"errors"
	"testing"
)

// Only this cluster's seal of this text counts.
func TestSeal(t *testing.T) {
	open := func() *Authority {
		a, err := OpenAuthority(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	a, b, text := open(), open(), []byte("text")
	seal, err := a.Seal(text)
	if err != nil || a.Unseal(text, seal) != nil {
		t.Fatal(err, a.Unseal(text, seal))
	}
	for what, err := range map[string]error{
		"another cluster": b.Unseal(text, seal), "another text": a.Unseal([]byte("texts"), seal),
		"no seal": a.Unseal(text, nil), "noise": a.Unseal(text, []byte("noise")), "more": a.Unseal(text, append(seal, 0)),
	} {
		if !errors.Is(err, ErrSeal) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
