package identity

import (
	"crypto/x509"
	"net/url"
	"strings"
	"testing"
)

// FuzzParseToken: a token that is taken prints the same text, but for space around it.
func FuzzParseToken(f *testing.F) {
	f.Add("0123456789.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA." + strings.Repeat("ab", 32))
	f.Add("..")
	f.Add("a.b.c.d")
	f.Fuzz(func(t *testing.T, text string) {
		token, err := ParseToken(text)
		if err != nil {
			return
		}
		again, err := ParseToken(token.String())
		if err != nil || again != token || token.String() != strings.TrimSpace(text) {
			t.Errorf("%q is %q and then %q: %v", text, token, again, err)
		}
	})
}

// FuzzSubject: a certificate names one member whose name is no path, and that member's certificate has the
// same name, or it names nobody.
func FuzzSubject(f *testing.F) {
	const domain = "0123456789abcdef.pagurus"
	for _, text := range []string{"/host/node3", "/user/ada", "/controller/controller", "/host/a/b", "/host/", "/root/x", "//host/x", "/host/%2e%2e", "/host/a?b#c", "/host/a%00b"} {
		f.Add("spiffe://" + domain + text)
	}
	f.Add("spiffe://other/host/node3")
	f.Add("spiffe:host/node3")
	f.Fuzz(func(t *testing.T, text string) {
		u, err := url.Parse(text)
		if err != nil {
			return
		}
		s, err := subjectOf(&x509.Certificate{URIs: []*url.URL{u}}, domain)
		if err != nil {
			return
		}
		if s.Name == "" || strings.Contains(s.Name, "/") || u.Host != domain {
			t.Errorf("%q names %q", text, s.Name)
		}
		// As it goes through a certificate: by its text.
		back, err := url.Parse(s.uri(domain).String())
		if err != nil {
			t.Fatalf("%q names %q, whose certificate cannot be read: %v", text, s.Name, err)
		}
		if again, err := subjectOf(&x509.Certificate{URIs: []*url.URL{back}}, domain); err != nil || again != s {
			t.Errorf("%q names %q, whose certificate names %q: %v", text, s, again, err)
		}
		if _, err := subjectOf(&x509.Certificate{URIs: []*url.URL{u, u}}, domain); err == nil {
			t.Errorf("%q names two", text)
		}
	})
}

// FuzzRequest: whatever somebody sends for a certificate request is one, with one key, or refused.
func FuzzRequest(f *testing.F) {
	if good, err := Request(f.TempDir()); err != nil {
		f.Fatal(err)
	} else {
		f.Add(good)
		f.Add(append(good, good...))
	}
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\n-----END CERTIFICATE REQUEST-----\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		key, err := RequestKey(text)
		if err == nil && len(key) != 64 {
			t.Errorf("the key is %q", key)
		}
	})
}
