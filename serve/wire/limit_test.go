package wire

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/serve/identity"
)

// TestFilesAreWhereTheCallerIs: over the socket a user's files are on this machine, whatever
// the request says.
func TestFilesAreWhereTheCallerIs(t *testing.T) {
	ctx, s := limited(t), serve(t, &world{})
	user, root := s.userClient(t, 4242), s.client(t)
	remote := s.member(t, identity.Subject{Role: identity.User, Name: "admin"})
	ada := s.member(t, identity.Subject{Role: identity.User, Name: "ada"})
	for _, c := range []struct {
		who     *Client
		machine string
		want    string // empty: refused
	}{
		{user, "here", "here"}, {user, "", "here"}, {user, "elsewhere", ""},
		{root, "elsewhere", "elsewhere"}, {remote, "elsewhere", "elsewhere"},
		{ada, "at 127.0.0.1", "at 127.0.0.1"}, {ada, "elsewhere", ""}, {ada, "here", ""},
	} {
		before := len(s.asked)
		_, err := c.who.Ask(ctx, fleet.Request{Verb: fleet.Submit, Spec: &fleet.JobSpec{Machine: c.machine}})
		if c.want == "" {
			if status(t, err) != http.StatusForbidden || len(s.asked) != before {
				t.Errorf("%+v: %v", c, err)
			}
			continue
		}
		if err != nil || s.asked[before].Spec.Machine != c.want {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestTooManyConnections: requests on excess connections get an error, and far too many are
// closed. After others end all works again; other users do not notice.
func TestTooManyConnections(t *testing.T) {
	s := serve(t, &world{})
	user := s.userClient(t, 4242)
	s.stop()
	s.most = 3
	s.start(t)
	ctx := limited(t)
	var held []net.Conn
	hold := func(n int) {
		for range n {
			c, err := asUser(s.socket, 4242, 4243, []uint32{4243})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			held = append(held, c)
		}
	}
	hold(3)
	if _, err := user.Snapshot(ctx); status(t, err) != http.StatusTooManyRequests || !strings.Contains(err.Error(), "too many connections") {
		t.Errorf("one too many: %v", err)
	}
	user.Close()
	hold(20)
	last := held[len(held)-1]
	last.SetReadDeadline(time.Now().Add(5 * time.Second))
	if n, err := last.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("far too many: %d bytes, %v", n, err)
	}
	for name, c := range map[string]*Client{"another user": s.userClient(t, 4343), "root": s.client(t)} {
		if _, err := c.Snapshot(ctx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, c := range held {
		c.Close()
	}
	for {
		if _, err := user.Snapshot(ctx); err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatal("still too many")
		}
		time.Sleep(10 * time.Millisecond) // the server sees them end one by one
	}
}

// The address that a new cluster listens at is reached by both families.
func TestAControllerListensForBothFamilies(t *testing.T) {
	authority, err := identity.OpenAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{":0", "[::]:0"} {
		l, err := ListenTLS(address, authority)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		_, port, _ := net.SplitHostPort(l.Addr().String())
		for _, at := range []string{"127.0.0.1", "::1"} {
			near, err := net.Dial("tcp", net.JoinHostPort(at, port))
			if err != nil {
				t.Errorf("%s is not reached at %s: %v", address, at, err)
				continue
			}
			defer near.Close()
			far, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer far.Close()
			if from := hostOf(far.RemoteAddr().String()); from != at {
				t.Errorf("who calls from %s comes from %s", at, from)
			}
		}
	}
}

// TestHostsCountByAddress: connections are also counted over TCP, where users are unknown.
func TestHostsCountByAddress(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	all := newCounting(l, 1)
	for i, over := range []bool{false, true} {
		near, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer near.Close()
		far, err := all.Accept()
		if err != nil || far.(*counted).over != over || far.(*counted).id != nil {
			t.Errorf("%d: %+v, %v", i, far, err)
		}
		defer far.Close()
		defer far.Close() // counts once
	}
	if all.by["127.0.0.1"] != 2 {
		t.Errorf("counts %v", all.by)
	}
}

// TestWhoDoesNotRead: a reader that does not read is disconnected; a slow one gets
// everything.
func TestWhoDoesNotRead(t *testing.T) {
	const limit = 800 * time.Millisecond
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	wrote := make(chan error, 1)
	h := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, err := patient{ResponseWriter: w, limit: limit}.Write(big)
		wrote <- err
	})}
	go h.Serve(l)
	defer h.Close()
	ask := func() net.Conn {
		c, err := net.Dial("unix", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		io.WriteString(c, "GET / HTTP/1.0\r\n\r\n")
		return c
	}
	ask()
	select {
	case err := <-wrote:
		if err == nil {
			t.Error("4 MiB went nowhere")
		}
	case <-time.After(20 * limit):
		t.Fatal("it waits without end")
	}
	c, got, began := ask(), 0, time.Now()
	for b := make([]byte, 256<<10); ; time.Sleep(limit / 6) {
		n, err := io.ReadFull(c, b)
		if got += n; err != nil {
			break
		}
	}
	if err := <-wrote; err != nil || got < len(big) || time.Since(began) < 2*limit {
		t.Errorf("a slow reader got %d of %d bytes in %v: %v", got, len(big), time.Since(began), err)
	}
}
