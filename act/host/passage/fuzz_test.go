package passage

import (
	"io"
	"net"
	"testing"
)

// FuzzPlace: a place that can be read prints the same place, and its secret cannot be guessed.
func FuzzPlace(f *testing.F) {
	f.Add("198.18.0.1:4711/ABCDEFGHIJKLMNOPQRSTUVWXYZ")
	f.Add("[fe80::1%pgw0]:1/ABCDEFGHIJKLMNOPQRSTUVWXYZ")
	f.Add("198.18.0.1:4711/short")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePlace(text)
		if err != nil {
			return
		}
		if again, err := ParsePlace(p.String()); err != nil || again != p || len(p.Secret) < leastSecret {
			t.Errorf("%q is %v and then %v: %v", text, p, again, err)
		}
	})
}

// FuzzGreeting: whatever a stranger says is no greeting.
func FuzzGreeting(f *testing.F) {
	f.Add([]byte(hello), []byte{})
	f.Add(append([]byte(hello), make([]byte, nonceBytes+1)...), make([]byte, 32))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), []byte{})
	place, move := Place{Secret: "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}, Move{Guest: "j1g0", Gen: 3, Migration: "m1.j1g0", From: "host1"}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		for _, meets := range []bool{true, false} { // a target, and then a source
			near, far := net.Pipe()
			go func() {
				go func() { _, _ = io.Copy(io.Discard, far) }()
				_, _ = far.Write(first)
				_, _ = far.Write(second)
				far.Close()
			}()
			var err error
			if meets {
				_, err = place.meet(near, move)
			} else {
				err = place.present(t.Context(), near, move, 0)
			}
			near.Close()
			if err == nil {
				t.Errorf("%q and %q were taken for a greeting", first, second)
			}
		}
	})
}
