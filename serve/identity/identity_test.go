package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// member makes the credentials of a subject in a folder of its own.
func member(t *testing.T, a *Authority, s Subject, at time.Time) (dir string) {
	t.Helper()
	dir = t.TempDir()
	csr, err := Request(dir)
	if err != nil {
		t.Fatal(err)
	}
	crt, err := a.Sign(csr, s, at)
	if err != nil {
		t.Fatal(err)
	}
	if err := Save(dir, crt, a.Certificate(), Login{Controller: "head:1"}); err != nil {
		t.Fatal(err)
	}
	return dir
}

func authority(t *testing.T) *Authority {
	t.Helper()
	a, err := OpenAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// shake lets a client with one configuration meet the controller of an authority, and
// gives the certificate that the controller saw.
func shake(t *testing.T, a *Authority, client *tls.Config) (*x509.Certificate, error) {
	t.Helper()
	pair, err := a.Serving(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	server := tls.Server(far, &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert, SessionTicketsDisabled: true})
	heard := make(chan error, 1)
	go func() { heard <- server.Handshake() }()
	c := tls.Client(near, client)
	cerr := c.Handshake()
	if cerr != nil {
		near.Close()
		<-heard
		return nil, cerr
	}
	if err := <-heard; err != nil {
		return nil, err
	}
	if shown := server.ConnectionState().PeerCertificates; len(shown) > 0 {
		return shown[0], nil
	}
	return nil, nil
}

// A host shows who it is, and its controller who that is.
func TestMembersKnowEachOther(t *testing.T) {
	a, now := authority(t), time.Now()
	want := Subject{Host, "node3"}
	dir := member(t, a, want, now)
	c, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := c.Subject(); err != nil || got != want {
		t.Errorf("the holder is %v, %v", got, err)
	}
	shown, err := shake(t, a, c.Client())
	if err != nil || shown == nil {
		t.Fatal(shown, err)
	}
	if got, err := a.Verify(shown, now); err != nil || got != want {
		t.Errorf("the controller sees %v, %v", got, err)
	}
	csr, err := Request(dir)
	if err != nil {
		t.Fatal(err)
	}
	if key, err := RequestKey(csr); err != nil || key != Key(shown) {
		t.Errorf("asked again, the key is %s, not %s: %v", key, Key(shown), err)
	}
	other := authority(t)
	if _, err := shake(t, other, c.Client()); err == nil {
		t.Error("a controller of another cluster is believed")
	}
	if _, err := other.Verify(shown, now); err == nil {
		t.Error("a host of another cluster is believed")
	}
}

// An authority that was opened before is the same one; half an authority is made again,
// or refused where that would lose one that was used.
func TestAuthorityStays(t *testing.T) {
	dir := t.TempDir()
	a, err := OpenAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := OpenAuthority(dir); err != nil || again.Fingerprint() != a.Fingerprint() {
		t.Errorf("opened again it is another, %v", err)
	}
	for _, name := range []string{AuthorityFile, AuthorityKeyFile} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Error(name, info.Mode(), err)
		}
	}
	if err := os.Remove(filepath.Join(dir, AuthorityKeyFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenAuthority(dir); err == nil {
		t.Error("an authority without its key was replaced")
	}
	if err := os.Remove(filepath.Join(dir, AuthorityFile)); err != nil {
		t.Fatal(err)
	}
	if again, err := OpenAuthority(dir); err != nil || again.Fingerprint() == a.Fingerprint() {
		t.Error("a new authority was not made", err)
	}
}

// Certificates end: a short while after that they renew themselves, later they do
// nothing, and before their time they say what is wrong with the clocks.
func TestCertificatesEnd(t *testing.T) {
	a, now := authority(t), time.Now()
	c, err := Load(member(t, a, Subject{User, "ada"}, now))
	if err != nil {
		t.Fatal(err)
	}
	leaf := c.current().Leaf
	for _, v := range []struct {
		at      time.Time
		expired bool
		words   string // empty: it is valid
	}{
		{now, false, ""},
		{now.Add(Lifetime - time.Minute), false, ""},
		{now.Add(Lifetime + time.Hour), true, "has expired"},
		{now.Add(Lifetime + RenewWithin - time.Hour), true, "has expired"},
		{now.Add(Lifetime + RenewWithin + time.Hour), false, "join again with a new token"},
		{now.Add(-time.Hour), false, "set the clocks"},
		{now.Add(-ClockSkew + time.Second), false, ""},
	} {
		s, err := a.Verify(leaf, v.at)
		if (err == nil) != (v.words == "") || err != nil && !strings.Contains(err.Error(), v.words) || errors.Is(err, ErrExpired) != v.expired {
			t.Errorf("at %v: %v, %v", v.at.Sub(now), s, err)
		}
	}
	if at := c.RenewAt(); at.Before(now.Add(Lifetime/2-time.Hour)) || at.After(now.Add(Lifetime/2+time.Hour)) {
		t.Errorf("it is renewed at %v", at)
	}
}

// A renewed certificate is for the same key, is used at once, and stays.
func TestRenew(t *testing.T) {
	a, now := authority(t), time.Now()
	s := Subject{Host, "node1"}
	dir := member(t, a, s, now.Add(-Lifetime))
	c, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	before := c.current().Leaf
	refused := errors.New("no")
	if err := c.Renew(context.Background(), func(context.Context, []byte) ([]byte, error) { return nil, refused }); !errors.Is(err, refused) {
		t.Error(err)
	}
	if err := c.Renew(context.Background(), func(_ context.Context, csr []byte) ([]byte, error) { return a.Sign(csr, s, now) }); err != nil {
		t.Fatal(err)
	}
	after := c.current().Leaf
	if Key(before) != Key(after) || !after.NotAfter.After(before.NotAfter) {
		t.Error("the certificate was not renewed for its key")
	}
	if again, err := Load(dir); err != nil || !again.current().Leaf.Equal(after) {
		t.Error("the renewed certificate was not kept", err)
	}
}

// Who logged out, or in elsewhere, while a program runs, keeps what is in the folder then.
func TestRenewLeavesAnotherLogin(t *testing.T) {
	s, now := Subject{User, "ada"}, time.Now()
	for what, happens := range map[string]func(t *testing.T, a *Authority, dir string){
		"a logout": func(t *testing.T, _ *Authority, dir string) { must(t, Remove(dir)) },
		"a logout and another cluster's login": func(t *testing.T, _ *Authority, dir string) {
			must(t, Remove(dir))
			login(t, authority(t), s, dir, now)
		},
		"a logout and a login": func(t *testing.T, a *Authority, dir string) {
			must(t, Remove(dir))
			login(t, a, s, dir, now)
		},
		"another cluster's login": func(t *testing.T, _ *Authority, dir string) { login(t, authority(t), s, dir, now) },
	} {
		for _, during := range []bool{false, true} {
			a := authority(t)
			dir := member(t, a, s, now)
			c, err := Load(dir)
			must(t, err)
			if !during {
				happens(t, a, dir)
			}
			before := files(t, dir)
			err = c.Renew(context.Background(), func(_ context.Context, csr []byte) ([]byte, error) {
				if during {
					happens(t, a, dir)
					before = files(t, dir)
				} else {
					t.Errorf("%s: it asked", what)
				}
				return a.Sign(csr, s, now)
			})
			if after := files(t, dir); err == nil || !maps.Equal(before, after) {
				t.Errorf("%s, while it asked %v: %v; the folder has changed: %v", what, during, err, !maps.Equal(before, after))
			}
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// login gets a certificate for the key in dir, or for a new one.
func login(t *testing.T, a *Authority, s Subject, dir string, at time.Time) {
	t.Helper()
	csr, err := Request(dir)
	must(t, err)
	text, err := a.Sign(csr, s, at)
	must(t, err)
	must(t, Save(dir, text, a.Certificate(), Login{}))
}

// files gives the text of each file in dir.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	found, err := os.ReadDir(dir)
	must(t, err)
	for _, f := range found {
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		must(t, err)
		out[f.Name()] = string(text)
	}
	return out
}

// Whoever joins knows the controller by the token alone.
func TestJoining(t *testing.T) {
	a := authority(t)
	token, err := ParseToken(a.NewToken().String() + "\n")
	if err != nil {
		t.Fatal(err)
	}
	if shown, err := shake(t, a, Joining(token.Fingerprint)); err != nil || shown != nil {
		t.Error(shown, err)
	}
	if _, err := shake(t, authority(t), Joining(token.Fingerprint)); !errors.Is(err, ErrForeign) {
		t.Error(err)
	}
}

func TestTokens(t *testing.T) {
	a := authority(t)
	one, two := a.NewToken(), a.NewToken()
	if one.ID == two.ID || one.Hash() == two.Hash() || strings.Contains(one.Hash(), one.Secret) {
		t.Error("two tokens are alike")
	}
	if again, err := ParseToken(one.String()); err != nil || again != one {
		t.Error(again, err)
	}
	whole := one.String()
	for _, text := range []string{"", "a", "a.b.c", whole[:len(whole)-1], whole[1:], whole + ".x", strings.ToUpper(whole)[:30]} {
		if _, err := ParseToken(text); err == nil {
			t.Errorf("%q is taken for a token", text)
		}
	}
}

// Certificates without a name and requests without a proof are refused.
func TestForged(t *testing.T) {
	a, now := authority(t), time.Now()
	if _, err := a.Sign([]byte("nothing"), Subject{Host, "x"}, now); err == nil {
		t.Error("a request without a key was signed")
	}
	dir := t.TempDir()
	csr, err := Request(dir)
	if err != nil {
		t.Fatal(err)
	}
	csr[len(csr)/2] ^= 1
	if _, err := a.Sign(csr, Subject{Host, "x"}, now); err == nil {
		t.Error("a broken request was signed")
	}
	for _, name := range []string{"", "a/b"} {
		good, err := Request(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		crt, err := a.Sign(good, Subject{Host, name}, now)
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := readCertificate(crt)
		if err != nil {
			t.Fatal(err)
		}
		if s, err := a.Verify(leaf, now); err == nil {
			t.Errorf("%q is taken for %v", name, s)
		}
	}
}

// A folder without credentials, and one with half of them, say so; removed twice is
// removed.
func TestFolders(t *testing.T) {
	if _, err := Load(t.TempDir()); !errors.Is(err, ErrNotJoined) {
		t.Error(err)
	}
	dir := member(t, authority(t), Subject{Host, "a"}, time.Now())
	if err := os.WriteFile(filepath.Join(dir, clusterFile), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); err == nil || errors.Is(err, ErrNotJoined) {
		t.Error(err)
	}
	if _, err := Load(dir); !strings.Contains(err.Error(), "`pagurus join`") {
		t.Errorf("it does not say what to do: %v", err)
	}
	for range 2 {
		if err := Remove(dir); err != nil {
			t.Error(err)
		}
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 0 {
		t.Error(all, err)
	}
}

// A key that others may read, one that is half written and an authority of which half is gone
// are refused with what to do about it.
func TestBadKeys(t *testing.T) {
	refused := func(what string, err error, parts ...string) {
		t.Helper()
		for _, part := range parts {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v does not say %q", what, err, part)
			}
		}
	}
	dir := member(t, authority(t), Subject{Host, "a"}, time.Now())
	key := filepath.Join(dir, keyFile)
	if err := os.Chmod(key, 0o640); err != nil {
		t.Fatal(err)
	}
	_, err := Load(dir)
	refused("a key for all", err, "`chmod go= "+key+"`")
	if err := os.WriteFile(key, []byte("-----BEGIN PRIV"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(key, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Request(dir)
	refused("half a key", err, key+" is damaged", "pagurus host rm")
	home := t.TempDir()
	if _, err := OpenAuthority(home); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(home, AuthorityKeyFile)); err != nil {
		t.Fatal(err)
	}
	_, err = OpenAuthority(home)
	refused("no key", err, AuthorityKeyFile, "from a copy")
}

// Credentials of another cluster are replaced whole: at no time its certificate stands beside
// this cluster's authority.
func TestReplaced(t *testing.T) {
	dir := member(t, authority(t), Subject{Host, "a"}, time.Now())
	if err := os.Mkdir(filepath.Join(dir, "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, loginFile)); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "in the way"), filepath.Join(dir, loginFile)); err != nil { // the first file cannot be written
		t.Fatal(err)
	}
	if err := Save(dir, []byte("certificate"), authority(t).Certificate(), Login{}); err == nil {
		t.Fatal("a file was written where a folder is")
	}
	if _, err := Load(dir); !errors.Is(err, ErrNotJoined) {
		t.Errorf("half of two clusters was loaded: %v", err)
	}
}
