package wire

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/serve/identity"
)

// world is a controller that remembers requests. The tests are about the protocol.
type world struct {
	mu      sync.Mutex
	asked   []fleet.Request
	refused []string // agents
	snap    fleet.Snapshot
	shown   atomic.Int32 // how often it was asked for
	changes chan fleet.Snapshot
	image   string
	attach  func(context.Context, Hello, *HostSession) error
	held    chan struct{} // reads of the job "held" end when it is closed
	holds   chan struct{} // gets one for each read that waits for it
}

func (w *world) Ask(_ context.Context, q fleet.Request) (fleet.Answer, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = append(w.asked, q)
	if q.Job == "none" {
		return fleet.Answer{}, &Error{http.StatusUnprocessableEntity, "there is no job none"}
	}
	if q.Job == "panic" {
		panic("a bug")
	}
	if q.Job == "bug" {
		return fleet.Answer{}, errors.New("something broke")
	}
	return fleet.Answer{Job: "j1"}, nil
}

func (w *world) Snapshot(context.Context) (fleet.Snapshot, error) {
	w.shown.Add(1)
	return w.snap, nil
}

func (w *world) Watch(ctx context.Context) <-chan fleet.Snapshot {
	out := make(chan fleet.Snapshot)
	go func() {
		defer close(out)
		for {
			select {
			case s := <-w.changes:
				select {
				case out <- s:
				case <-ctx.Done():
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

func (w *world) Explain(_ context.Context, a About) ([]string, error) {
	return []string{fmt.Sprint(a)}, nil
}

func (w *world) Trace(context.Context, fleet.Caller, fleet.JobID) ([]fleet.Trace, error) {
	return []fleet.Trace{{Rank: 3}}, nil
}

func (w *world) Attach(ctx context.Context, _ Peer, h Hello, s *HostSession) error {
	return w.attach(ctx, h, s)
}

func (w *world) Refused(_ context.Context, h fleet.HostID, why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refused = append(w.refused, string(h)+": "+why)
}

func (w *world) ImageFile(_ fleet.Digest, file string) (string, error) {
	return filepath.Join(w.image, file), nil
}

func (w *world) Read(ctx context.Context, by fleet.Caller, at Place) ([]byte, bool, error) {
	if at.Job == "slow" {
		<-ctx.Done()
		return nil, false, nil
	}
	if at.Job == "big" {
		return make([]byte, pieceBytes), true, nil
	}
	if at.Job == "held" {
		w.holds <- struct{}{}
		<-w.held
	}
	return []byte(fmt.Sprint(by.UID, at)), at.Offset == 7, nil
}

func (w *world) Write(_ context.Context, _ fleet.Caller, at Place, data []byte, eof bool) (int64, error) {
	n := at.Offset + int64(len(data))
	if eof {
		n += 1000
	}
	return n, nil
}

// served is a server with both kinds of listener.
type served struct {
	*world
	socket, addr string
	authority    *identity.Authority
	most         int           // connections of one user; 0: as always
	protocol     *int          // nil: as this program
	paces        *paces        // nil: as always
	ahead        time.Duration // what its clock is ahead of others
	backup       Backup
	audit        Audit
	joins        []bool   // of each that joined, whether it claims this machine from elsewhere
	notLetIn     []string // requests of controllers that got no place
	seen         seen
	passing      *Passing // nil: it is the only controller
	machine      string   // empty: here
	stop         func()
}

func serve(t *testing.T, w *world) *served {
	t.Helper()
	dir, err := os.MkdirTemp("", "wire")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	os.Chmod(dir, 0o755) // others have to get at the socket
	authority := agedAuthority(t, filepath.Join(dir, "state"))
	out := &served{world: w, authority: authority, socket: filepath.Join(dir, "controller.sock")}
	out.start(t)
	return out
}

func (s *served) start(t *testing.T) {
	t.Helper()
	unix, err := ListenUnix(s.socket)
	if err != nil {
		t.Fatal(err)
	}
	if s.most > 0 {
		unix.(*counting).most = s.most
	}
	if s.addr == "" {
		s.addr = "127.0.0.1:0"
	}
	tcp, err := ListenTLS(s.addr, s.authority)
	if err != nil {
		t.Fatal(err)
	}
	s.addr = tcp.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- Serve(ctx, ServeConfig{Listeners: []net.Listener{unix, tcp}, Members: s, Face: whoCalls{}, Page: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("the page")) }), Names: []string{identity.ServerName}, Passing: s.passing, Machine: cmp.Or(s.machine, "here"), Controller: s.world, Streams: s.world, Forecasts: s.world, Backup: s.makeBackup, Audit: s.audit, Version: "build", Refused: s.world.Refused, protocol: s.protocol, paces: s.paces, Log: slog.New(slog.DiscardHandler)})
	}()
	var once sync.Once
	s.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(s.stop)
}

func (s *served) client(t *testing.T) *Client {
	t.Helper()
	return dialed(t, Config{Address: "unix:" + s.socket})
}

func dialed(t *testing.T, c Config) *Client {
	t.Helper()
	client, err := Dial(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// asUser connects as another user: the kernel takes the user from the connecting thread.
func asUser(socket string, uid, gid int, groups []uint32) (net.Conn, error) {
	type result struct {
		c   net.Conn
		err error
	}
	out := make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			out <- result{nil, err}
			return
		}
		f := os.NewFile(uintptr(fd), "socket")
		defer f.Close()
		if e := becomes(uid, gid, groups); e != 0 {
			out <- result{nil, e}
			return
		}
		if err := unix.Connect(fd, &unix.SockaddrUnix{Name: socket}); err != nil {
			out <- result{nil, err}
			return
		}
		c, err := net.FileConn(f)
		out <- result{c, err}
	}()
	r := <-out
	return r.c, r.err
}

func (s *served) userClient(t *testing.T, uid int) *Client {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can be somebody else")
	}
	c := s.client(t)
	c.http.Transport.(*http.Transport).DialContext = func(context.Context, string, string) (net.Conn, error) {
		return asUser(s.socket, uid, uid+1, []uint32{7, 4000000000})
	}
	return c
}

func status(t *testing.T, err error) int {
	t.Helper()
	e := (*Error)(nil)
	if !errors.As(err, &e) {
		t.Fatalf("no answer of the controller: %v", err)
	}
	return e.Status
}

func TestCallerIsWhoTheKernelSays(t *testing.T) {
	ctx, s := limited(t), serve(t, &world{})
	lie := fleet.Request{ID: "once", Verb: fleet.Submit, By: fleet.Caller{UID: 0, Admin: true}, Image: &fleet.Image{Name: "mine"},
		Spec: &fleet.JobSpec{UID: 0, GID: 0, Groups: []uint32{0}}}
	if _, err := s.userClient(t, 4242).Ask(ctx, lie); err != nil {
		t.Fatal(err)
	}
	q := s.asked[0]
	if q.By != (fleet.Caller{UID: 4242, GID: 4243}) || q.Image != nil || q.ID != "4242/once" {
		t.Errorf("believed %+v", q)
	}
	if q.Spec.UID != 4242 || q.Spec.GID != 4243 || !slices.Equal(q.Spec.Groups, []uint32{7, 4000000000}) {
		t.Errorf("believed %+v", q.Spec)
	}
	if _, err := s.client(t).Ask(ctx, lie); err != nil {
		t.Fatal(err)
	}
	if q := s.asked[1]; !q.By.Admin || q.By.UID != uint32(os.Getuid()) || q.ID == s.asked[0].ID {
		t.Errorf("root is %+v, and names a request %q as another user did", q.By, q.ID)
	}
}

func TestMembersOverTLS(t *testing.T) {
	ctx, s := limited(t), serve(t, &world{snap: fleet.Snapshot{Revision: 5}})
	for _, who := range []identity.Subject{{Role: identity.User, Name: "admin"}, {Role: identity.User, Name: "ada"}} {
		c := s.member(t, who)
		if snap, err := c.Snapshot(ctx); err != nil || snap.Revision != 5 {
			t.Fatalf("%+v, %v", snap, err)
		}
		if by, err := c.WhoAmI(ctx); err != nil || by.User != fleet.UserID(who.Name) || by.Admin != (who.Name == "admin") {
			t.Errorf("%s is known as %+v, %v", who, by, err)
		}
	}
	host := s.member(t, identity.Subject{Role: identity.Host, Name: "h"})
	if _, err := host.Snapshot(ctx); status(t, err) != http.StatusForbidden {
		t.Errorf("a host reads the cluster: %v", err)
	}
	if _, err := host.Ask(ctx, fleet.Request{Verb: fleet.Drain, Host: "other"}); status(t, err) != http.StatusForbidden {
		t.Errorf("a host asks: %v", err)
	}
	if _, err := s.member(t, identity.Subject{Role: identity.User, Name: "ada"}).Attach(ctx, Hello{Host: "h"}); status(t, err) != http.StatusForbidden {
		t.Errorf("a user is a host: %v", err)
	}
	if _, err := s.member(t, identity.Subject{Role: identity.User, Name: "removed"}).Snapshot(ctx); status(t, err) != http.StatusUnauthorized {
		t.Errorf("a member that was removed: %v", err)
	}
	// Plain HTTP on the TLS port is refused.
	r, err := http.Get("http://" + s.addr + "/v1/snapshot")
	if err == nil {
		r.Body.Close()
		if r.StatusCode == http.StatusOK {
			t.Error("served in clear")
		}
	}
	stranger := &Client{address: s.addr, base: "https://" + identity.ServerName}
	stranger.addresses = &addresses{own: s.addr, all: []string{s.addr}}
	stranger.http = stranger.over("tcp", identity.Joining(s.authority.Fingerprint()))
	if _, err := stranger.Snapshot(ctx); status(t, err) != http.StatusUnauthorized || !strings.Contains(err.Error(), "pagurus login") {
		t.Errorf("stranger: %v", err)
	}
}

// Whose credentials are another cluster's is told so, by either side.
func TestAnotherCluster(t *testing.T) {
	ctx, s, other := limited(t), serve(t, &world{}), serve(t, &world{})
	dir := s.credentials(t, identity.Subject{Role: identity.User, Name: "ada"})
	if _, err := dialed(t, Config{Address: other.addr, Credentials: dir}).Snapshot(ctx); err == nil || !strings.Contains(err.Error(), "is not the one that these credentials are for") {
		t.Errorf("another controller: %v", err)
	}
	token, err := identity.ParseToken(s.authority.NewToken().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := joining(other.addr, token).join(ctx, Joining{}); err == nil || !strings.Contains(err.Error(), "is not the controller that the token is of") {
		t.Errorf("a token of another cluster: %v", err)
	}
	if _, err := Dial(Config{Address: other.addr, Credentials: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "pagurus login "+other.addr) {
		t.Errorf("without credentials: %v", err)
	}
}

// Whoever has a token joins, is known from then on, and renews.
func TestJoinAndRenew(t *testing.T) {
	ctx, s := limited(t), serve(t, &world{})
	dir := t.TempDir()
	request, err := identity.Request(dir)
	if err != nil {
		t.Fatal(err)
	}
	joined, err := joining(s.addr, s.authority.NewToken()).join(ctx, Joining{Host: "h", Request: string(request)})
	if err != nil {
		t.Fatal(err)
	}
	if err := identity.Save(dir, []byte(joined.Certificate), []byte(joined.Authority), identity.Login{}); err != nil {
		t.Fatal(err)
	}
	c := dialed(t, Config{Address: s.addr, Credentials: dir})
	for range 2 {
		if by, err := c.WhoAmI(ctx); err != nil || by.Host != "h" {
			t.Errorf("the host is known as %+v, %v", by, err)
		}
		if err := c.Renew(ctx); err != nil {
			t.Error(err)
		}
	}
	_, err = joining(s.addr, identity.Token{ID: "1", Secret: "2", Fingerprint: s.authority.Fingerprint()}).join(ctx, Joining{Request: string(request)})
	if status(t, err) != http.StatusUnauthorized {
		t.Errorf("half a token: %v", err)
	}
}

// Identify, Local, Join and Renew make the served one a cluster with three users.
func (s *served) Identify(_ context.Context, c *x509.Certificate, from string) (Peer, error) {
	who, err := s.authority.Verify(c, time.Now())
	expired := errors.Is(err, identity.ErrExpired)
	s.seen.add(c)
	switch {
	case err != nil && !expired:
		return Peer{}, &Error{http.StatusUnauthorized, err.Error()}
	case who.Name == "removed":
		return Peer{}, &Error{http.StatusUnauthorized, "removed"}
	case who.Role == identity.Host:
		return Peer{Caller: fleet.Caller{Host: fleet.HostID(who.Name)}, Expired: expired}, nil
	}
	return Peer{Expired: expired, Files: []string{"at " + from}, Caller: fleet.Caller{UID: 1000, Admin: who.Name == "admin", User: fleet.UserID(who.Name)}}, nil
}

func (s *served) Bearer(_ context.Context, token, from string) (Peer, error) {
	if token != "admin" && token != "ada" {
		return Peer{}, &Error{http.StatusUnauthorized, "no such token"}
	}
	return Peer{Files: []string{"at " + from}, Token: "t1", Caller: fleet.Caller{UID: 1000, Admin: token == "admin", User: fleet.UserID(token)}}, nil
}

func (s *served) Local(p Peer) Peer { return p }

func (s *served) Join(_ context.Context, _ identity.Token, j Joining, foreign bool) (Joined, error) {
	s.joins = append(s.joins, foreign)
	c, err := s.authority.Sign([]byte(j.Request), identity.Subject{Role: identity.Host, Name: string(j.Host)}, time.Now())
	return Joined{Certificate: string(c), Authority: string(s.authority.Certificate()), At: time.Now().Add(s.ahead)}, err
}

func (s *served) NotLetIn(_ context.Context, _ identity.Token, j Joining) error {
	s.notLetIn = append(s.notLetIn, j.Request)
	return nil
}

func (s *served) Renew(_ context.Context, p Peer, q Renewing) (Renewed, error) {
	if err := s.seen.renewal(); err != nil {
		return Renewed{}, err
	}
	who := identity.Subject{Role: identity.User, Name: string(p.User)}
	if p.Host != "" {
		who = identity.Subject{Role: identity.Host, Name: string(p.Host)}
	}
	c, err := s.authority.Sign([]byte(q.Request), who, time.Now())
	return Renewed{Certificate: string(c)}, err
}

// credentials makes a folder of those of a member.
func (s *served) credentials(t *testing.T, who identity.Subject) string {
	t.Helper()
	return s.credentialsOf(t, who, time.Now())
}

// credentialsOf makes a folder of those that a member got at a time.
func (s *served) credentialsOf(t *testing.T, who identity.Subject, at time.Time) string {
	t.Helper()
	dir := t.TempDir()
	request, err := identity.Request(dir)
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.authority.Sign(request, who, at)
	if err != nil {
		t.Fatal(err)
	}
	if err := identity.Save(dir, c, s.authority.Certificate(), identity.Login{Controller: "head:1"}); err != nil {
		t.Fatal(err)
	}
	return dir
}

// member is a client over TCP.
func (s *served) member(t *testing.T, who identity.Subject) *Client {
	t.Helper()
	return dialed(t, Config{Address: s.addr, Credentials: s.credentials(t, who)})
}

func TestNoControllerListens(t *testing.T) {
	ctx, socket := limited(t), filepath.Join(t.TempDir(), "none.sock")
	c := dialed(t, Config{Address: "unix:" + socket})
	_, err := c.Snapshot(ctx)
	if !errors.Is(err, ErrNoController) || !strings.Contains(err.Error(), socket) || !strings.Contains(err.Error(), "pagurus up") {
		t.Errorf("got %v", err)
	}
	if _, err := c.Watch(ctx); !errors.Is(err, ErrNoController) {
		t.Errorf("got %v", err)
	}
	if _, err := c.Attach(ctx, Hello{}); !errors.Is(err, ErrNoController) {
		t.Errorf("got %v", err)
	}
	for _, bad := range []Config{{}, {Address: "unix:"}, {Address: "host"}, {Address: "host:1"}, {Address: "host:1", Credentials: "/none"}} {
		if _, err := Dial(bad); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
}

func TestResolve(t *testing.T) {
	t.Setenv(ControllerVariable, "")
	t.Setenv(CredentialsVariable, "")
	none := t.TempDir()
	if c, err := Resolve(Config{}, none); err != nil || c != (Config{"unix:" + DefaultSocket, none}) {
		t.Errorf("%+v, %v", c, err)
	}
	s := serve(t, &world{})
	dir := s.credentials(t, identity.Subject{Role: identity.User, Name: "ada"})
	if c, err := Resolve(Config{}, dir); err != nil || c != (Config{"head:1", dir}) {
		t.Errorf("logged in: %+v, %v", c, err)
	}
	t.Setenv(ControllerVariable, "other:2")
	t.Setenv(CredentialsVariable, "/theirs")
	if c, err := Resolve(Config{}, dir); err != nil || c != (Config{"other:2", "/theirs"}) {
		t.Errorf("the environment counts more: %+v, %v", c, err)
	}
	if c, err := Resolve(Config{"third:3", "/mine"}, dir); err != nil || c != (Config{"third:3", "/mine"}) {
		t.Errorf("the command line counts most: %+v, %v", c, err)
	}
}

func TestOneControllerASocket(t *testing.T) {
	s := serve(t, &world{})
	if _, err := ListenUnix(s.socket); err == nil || !strings.Contains(err.Error(), "another process already answers at "+s.socket) {
		t.Fatalf("got %v", err)
	}
	// A dead controller's socket is replaced.
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.socket + "2", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	l, err := ListenUnix(s.socket + "2")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

func TestBadRequests(t *testing.T) {
	ctx, s := limited(t), serve(t, &world{})
	c := s.client(t)
	for _, bad := range []struct {
		method, path, body string
		status             int
	}{
		{"POST", "/v1/ask", "{", 400},
		{"POST", "/v1/ask", `{"verb":"drain","colour":"red"}`, 400},
		{"POST", "/v1/ask", `{"verb":"join","host":"h"}`, 400},
		{"POST", "/v1/ask", `{"verb":"submit"} more`, 400},
		{"POST", "/v1/ask", `{"verb":"migrate","id":"` + strings.Repeat("x", nameBytes+1) + `"}`, 400},
		{"POST", "/v1/ask", strings.Repeat(" ", askBytes+1), 413},
		{"POST", "/v1/ask", `{"verb":"cancel","job":"none"}`, 422},
		{"POST", "/v1/ask", `{"verb":"cancel","job":"bug"}`, 500},
		{"POST", "/v1/ask", `{"verb":"cancel","job":"panic"}`, 500},
		{"GET", "/v1/ask", "", 404},
		{"GET", "/v2/snapshot", "", 404},
		{"GET", "/v1/explain", "", 400},
		{"GET", "/v1/explain?guest=a&job=b", "", 400},
		{"GET", "/v1/jobs/j1/stdlog?offset=0", "", 404},
		{"GET", "/v1/jobs/j1/stdout?offset=x", "", 400},
		{"GET", "/v1/jobs/j1/stdout?offset=-1", "", 400},
		{"POST", "/v1/jobs/j1/stdin?offset=0", strings.Repeat("x", pieceBytes+1), 413},
		{"GET", "/v1/images/sha256-x/root.img", "", 400},
		{"GET", "/v1/images/" + digest + "/..%2Fsecret", "", 400},
		{"GET", "/v1/images/" + digest + "/.hidden", "", 400},
	} {
		r, err := c.send(ctx, bad.method, bad.path, []byte(bad.body))
		if err == nil {
			r.Body.Close()
			t.Errorf("%s %s %.40s was taken", bad.method, bad.path, bad.body)
			continue
		}
		if got := status(t, err); got != bad.status || err.Error() == "" {
			t.Errorf("%s %s %.40s: %d %v", bad.method, bad.path, bad.body, got, err)
		}
	}
}

const digest = "sha256-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestQuestions(t *testing.T) {
	ctx, s := limited(t), serve(t, &world{image: t.TempDir()})
	c := s.client(t)
	if lines, err := c.Explain(ctx, About{Guest: "j1g0"}); err != nil || !strings.HasPrefix(lines[0], "{j1g0  ") {
		t.Errorf("%v, %v", lines, err)
	}
	if traces, err := c.Trace(ctx, "j1"); err != nil || len(traces) != 1 || traces[0].Rank != 3 {
		t.Errorf("%v, %v", traces, err)
	}
	data, ended, err := c.ReadStream(ctx, Place{"j1", fleet.Stdout, 7, 0})
	if err != nil || !ended || !strings.Contains(string(data), "7") {
		t.Errorf("%q %v %v", data, ended, err)
	}
	if _, ended, err := c.ReadStream(ctx, Place{"j1", fleet.Stdout, 8, 0}); err != nil || ended {
		t.Errorf("%v %v", ended, err)
	}
	if next, err := c.WriteStream(ctx, Place{"j1", fleet.Stdin, 5, 0}, []byte("abc"), false); err != nil || next != 8 {
		t.Errorf("%d %v", next, err)
	}
	if next, err := c.WriteStream(ctx, Place{"j1", fleet.Stdin, 5, 0}, nil, true); err != nil || next != 1005 {
		t.Errorf("%d %v", next, err)
	}
	// A write above the limit is taken in part, without eof.
	if next, err := c.WriteStream(ctx, Place{"j1", fleet.Stdin, 0, 0}, make([]byte, pieceBytes+5), true); err != nil || next != pieceBytes {
		t.Errorf("%d %v", next, err)
	}
	content := bytes.Repeat([]byte("root"), 1<<19)
	os.WriteFile(filepath.Join(s.image, "root.img"), content, 0o600)
	var got bytes.Buffer
	if err := c.FetchImageFile(ctx, digest, "root.img", &got); err != nil || !bytes.Equal(got.Bytes(), content) {
		t.Errorf("%d bytes, %v", got.Len(), err)
	}
	err = c.FetchImageFile(ctx, digest, "vmlinuz", io.Discard)
	if status(t, err) != http.StatusNotFound {
		t.Error(err)
	}
	waiting, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, _, err := c.ReadStream(waiting, Place{"slow", fleet.Stdout, 0, 0}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestOthersEnvironmentIsHidden(t *testing.T) {
	ctx, w := limited(t), &world{snap: fleet.NewSnapshot()}
	secret := []string{"PASSWORD=x"}
	w.snap.Jobs["mine"] = fleet.Job{ID: "mine", Spec: fleet.JobSpec{UID: 4242, Env: secret}}
	w.snap.Jobs["theirs"] = fleet.Job{ID: "theirs", Spec: fleet.JobSpec{UID: 1, Env: secret}}
	s := serve(t, w)
	snap, err := s.userClient(t, 4242).Snapshot(ctx)
	if err != nil || snap.Jobs["mine"].Spec.Env == nil || snap.Jobs["theirs"].Spec.Env != nil {
		t.Errorf("%+v, %v", snap.Jobs, err)
	}
	if snap, err := s.client(t).Snapshot(ctx); err != nil || snap.Jobs["theirs"].Spec.Env == nil {
		t.Errorf("root: %+v, %v", snap.Jobs, err)
	}
}
