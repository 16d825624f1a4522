package wireguard

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"pagurus/internal/note"
)

// keyFile is the host's private key. It never leaves the host.
const keyFile = "wireguard.key"

// keyLife is how long a key is used. WireGuard's own session keys change every two minutes, so
// who gets this one can pass as the host from then on, and read nothing of before.
const keyLife = 30 * 24 * time.Hour

// Key is a host's private key.
type Key struct {
	Private string    `json:"private"` // as WireGuard's tools print it
	Made    time.Time `json:"made"`
}

// Public is the key that others know.
func (k Key) Public() wgtypes.Key { return k.private().PublicKey() }

// private is zero if the text is none, which ensureKey refuses.
func (k Key) private() wgtypes.Key {
	p, _ := wgtypes.ParseKey(k.Private)
	return p
}

// ensureKey reads the key in a file, and makes another if there is none or it is too old. One
// that others can read is refused: it may be known already.
func ensureKey(path string) (Key, error) {
	var k Key
	err := note.Load(path, &k)
	var st os.FileInfo
	if err == nil {
		st, err = os.Stat(path)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return newKey(path)
	case err != nil:
		return k, fmt.Errorf("reading this host's WireGuard key: %w: remove the file, and the agent makes another", err)
	case st.Mode().Perm()&0o077 != 0:
		return k, fmt.Errorf("others can read this host's WireGuard key %s (mode %o): remove the file, and the agent makes another", path, st.Mode().Perm())
	}
	if _, err := wgtypes.ParseKey(k.Private); err != nil {
		return k, fmt.Errorf("this host's WireGuard key %s is not one: remove the file, and the agent makes another (%w)", path, err)
	}
	if age := time.Since(k.Made); age > keyLife {
		return newKey(path)
	}
	return k, nil
}

func newKey(path string) (Key, error) {
	p, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		return Key{}, fmt.Errorf("making this host's WireGuard key: %w", err)
	}
	k := Key{Private: p.String(), Made: time.Now().UTC().Round(time.Second)}
	text, err := json.MarshalIndent(k, "", "  ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err == nil {
		err = note.WriteDurably(path, text, 0o600)
	}
	if err != nil {
		return Key{}, fmt.Errorf("keeping this host's WireGuard key: %w", err)
	}
	return k, nil
}
