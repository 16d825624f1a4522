package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/serve/identity"
)

// says fails unless an error says every part.
func says(t *testing.T, what string, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v does not say %q", what, err, part)
		}
	}
}

// No caller from another address joins as the controller's machine: jobs' files are there. The
// machine itself may, by loopback and by its own address, and a user is no machine.
func TestOnlyTheControllersMachineIsIt(t *testing.T) {
	s := &served{world: &world{}}
	var err error
	if s.authority, err = identity.OpenAuthority(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	request, err := identity.Request(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	routes := (&server{ServeConfig: ServeConfig{Members: s, Machine: "here", Controller: s.world, paces: newPaces(), Log: slog.New(slog.DiscardHandler)}}).routes()
	from, to := "", net.Addr(nil)
	serving := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { // as if the connection were another
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, to))
		r.RemoteAddr = from
		routes.ServeHTTP(w, r)
	}))
	defer serving.Close()
	for _, c := range []struct {
		from, to string
		who      Joining
		foreign  bool
	}{
		{"192.0.2.7:40000", "192.0.2.1:7461", Joining{Host: "h", Machine: "here"}, true},
		{"[2001:db8::7]:40000", "[2001:db8::1]:7461", Joining{Host: "h", Machine: "here"}, true},
		{"nonsense", "192.0.2.1:7461", Joining{Host: "h", Machine: "here"}, true},
		{"192.0.2.7:40000", "192.0.2.1:7461", Joining{Host: "h", Machine: "there"}, false},
		{"127.0.0.1:40000", "127.0.0.1:7461", Joining{Host: "h", Machine: "here"}, false},
		{"[::1]:40000", "[::1]:7461", Joining{Host: "h", Machine: "here"}, false},
		{"192.0.2.1:40000", "192.0.2.1:7461", Joining{Host: "h", Machine: "here"}, false},
		{"192.0.2.7:40000", "192.0.2.1:7461", Joining{Machine: "here"}, false},
	} {
		c.who.Request = string(request)
		text, err := json.Marshal(c.who)
		if err != nil {
			t.Fatal(err)
		}
		from, s.joins = c.from, nil
		if to, err = net.ResolveTCPAddr("tcp", c.to); err != nil {
			t.Fatal(err)
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, serving.URL+"/v1/join", bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+s.authority.NewToken().String())
		answer, err := serving.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK || !slices.Equal(s.joins, []bool{c.foreign}) {
			t.Errorf("from %s to %s as %s: %s: foreign %v", c.from, c.to, c.who.Host, answer.Status, s.joins)
		}
	}
}

// A clock that is hours off is found when joining, on either side; nothing is kept but the
// key, so that the same token serves again when the clock is right.
func TestJoinWithAWrongClock(t *testing.T) {
	ctx, s, dir := limited(t), serve(t, &world{}), t.TempDir()
	token := s.authority.NewToken().String()
	for _, s.ahead = range []time.Duration{-3 * time.Hour, 3 * time.Hour} {
		_, err := Enrol(ctx, s.addr, token, dir, Joining{Host: "h", Machine: "m"})
		says(t, "a wrong clock", err, "differ by 3h0m0s", "timedatectl set-ntp true")
		if _, err := Dial(Config{Address: s.addr, Credentials: dir}); err == nil {
			t.Error("half of the credentials were kept")
		}
	}
	key, err := os.ReadFile(filepath.Join(dir, "member.key"))
	if err != nil {
		t.Fatal(err)
	}
	s.ahead = identity.ClockSkew / 2
	if _, err := Enrol(ctx, s.addr, token, dir, Joining{Host: "h", Machine: "m"}); err != nil {
		t.Fatal(err)
	}
	if again, err := os.ReadFile(filepath.Join(dir, "member.key")); err != nil || !bytes.Equal(again, key) {
		t.Error("it joined with another key, which costs another use", err)
	}
}

// What answers and is no controller is said to be none.
func TestNotAController(t *testing.T) {
	ctx, s := limited(t), serve(t, &world{})
	token := s.authority.NewToken()
	dir := s.credentials(t, identity.Subject{Role: identity.User, Name: "ada"})
	web := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>hello</html>")) })
	for name, start := range map[string]func(http.Handler) *httptest.Server{"http": httptest.NewServer, "https": httptest.NewTLSServer} {
		other := start(web)
		other.Config.ErrorLog = log.New(io.Discard, "", 0)
		address := other.Listener.Addr().String()
		_, err := dialed(t, Config{Address: address, Credentials: dir}).Snapshot(ctx)
		says(t, name, err, "what answers at "+address+" is not a Pagurus controller: check the address")
		_, err = Enrol(ctx, address, token.String(), t.TempDir(), Joining{Host: "h"})
		says(t, name, err, "what answers at "+address+" is not", "check the address")
		other.Close()
		_, err = Enrol(ctx, address, token.String(), t.TempDir(), Joining{Host: "h"})
		says(t, name+" that has ended", err, "no controller answers at "+address, "`pagurus controller` runs there")
	}
	_, err := Enrol(ctx, "head", token.String(), t.TempDir(), Joining{Host: "h"})
	says(t, "no port", err, "HOST:PORT")
}

// A host is one host of one cluster: it does not become another by joining again.
func TestJoinIsForOneHost(t *testing.T) {
	ctx, s, other, dir := limited(t), serve(t, &world{}), serve(t, &world{}), t.TempDir()
	enrol := func(s *served, name string) error {
		_, err := Enrol(ctx, s.addr, s.authority.NewToken().String(), dir, Joining{Host: fleet.HostID(name), Machine: "m"})
		return err
	}
	for range 2 {
		if err := enrol(s, "a"); err != nil {
			t.Fatal(err)
		}
	}
	says(t, "another name", enrol(s, "b"), "is host a of this cluster already", "pagurus host rm a", "rm -r "+dir)
	says(t, "another cluster", enrol(other, "a"), "is host a of another cluster", "rm -r "+dir)
	if by, err := dialed(t, Config{Address: s.addr, Credentials: dir}).WhoAmI(ctx); err != nil || by.Host != "a" {
		t.Errorf("it is %+v, %v", by, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "member.crt"), []byte("-----BEGIN"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Dial(Config{Address: s.addr, Credentials: dir})
	says(t, "half a certificate", err, "damaged", "`pagurus join`")
	if err := enrol(s, "a"); err != nil {
		t.Errorf("joining again does not mend it: %v", err)
	}
}
