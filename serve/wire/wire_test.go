package wire

import (
	"bytes"
	"context"
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
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// world is a controller that remembers requests. The tests are about the protocol.
type world struct {
	mu      sync.Mutex
	asked   []fleet.Request
	snap    fleet.Snapshot
	changes chan fleet.Snapshot
	image   string
	attach  func(context.Context, Hello, *HostSession) error
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

func (w *world) Snapshot(context.Context) (fleet.Snapshot, error) { return w.snap, nil }

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

func (w *world) Attach(ctx context.Context, h Hello, s *HostSession) error {
	return w.attach(ctx, h, s)
}

func (w *world) ImageFile(_ fleet.Digest, file string) (string, error) {
	return filepath.Join(w.image, file), nil
}

func (w *world) Read(ctx context.Context, by fleet.Caller, at Place) ([]byte, bool, error) {
	if at.Job == "slow" {
		<-ctx.Done()
		return nil, false, nil
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
	id           Identity
	most         int // connections of one user; 0: the default
	stop         func()
}

func serve(t *testing.T, w *world) *served {
	t.Helper()
	dir, err := os.MkdirTemp("", "wire")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	os.Chmod(dir, 0o755) // other users need access to the socket
	id, err := EnsureIdentity(filepath.Join(dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	out := &served{world: w, id: id, socket: filepath.Join(dir, "controller.sock")}
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
	tcp, err := ListenTLS(s.addr, s.id)
	if err != nil {
		t.Fatal(err)
	}
	s.addr = tcp.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- Serve(ctx, ServeConfig{Listeners: []net.Listener{unix, tcp}, Token: s.id.Token, Machine: "here", Controller: s.world, Streams: s.world, Forecasts: s.world, Log: slog.New(slog.DiscardHandler)})
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
	lie := fleet.Request{Verb: fleet.Submit, By: fleet.Caller{UID: 0, Admin: true}, Image: &fleet.Image{Name: "mine"},
		Spec: &fleet.JobSpec{UID: 0, GID: 0, Groups: []uint32{0}}}
	if _, err := s.userClient(t, 4242).Ask(ctx, lie); err != nil {
		t.Fatal(err)
	}
	q := s.asked[0]
	if q.By != (fleet.Caller{UID: 4242, GID: 4243}) || q.Image != nil || q.ID == "" {
		t.Errorf("believed %+v", q)
	}
	if q.Spec.UID != 4242 || q.Spec.GID != 4243 || !slices.Equal(q.Spec.Groups, []uint32{7, 4000000000}) {
		t.Errorf("believed %+v", q.Spec)
	}
	if _, err := s.client(t).Ask(ctx, lie); err != nil {
		t.Fatal(err)
	}
	if q := s.asked[1]; !q.By.Admin || q.By.UID != uint32(os.Getuid()) {
		t.Errorf("root is %+v", q.By)
	}
}

func TestTokenOverTLS(t *testing.T) {
	ctx, s := limited(t), serve(t, &world{snap: fleet.Snapshot{Revision: 5}})
	snap, err := dialed(t, Config{Address: s.addr, Token: s.id.Token}).Snapshot(ctx)
	if err != nil || snap.Revision != 5 {
		t.Fatalf("%+v, %v", snap, err)
	}
	_, print, _ := strings.Cut(s.id.Token, ".")
	_, err = dialed(t, Config{Address: s.addr, Token: "AAAA." + print}).Snapshot(ctx)
	if status(t, err) != http.StatusUnauthorized || !strings.Contains(err.Error(), "PAGURUS_TOKEN_FILE") {
		t.Errorf("a wrong secret: %v", err)
	}
	other, err := EnsureIdentity(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	_, err = dialed(t, Config{Address: s.addr, Token: other.Token}).Snapshot(ctx)
	if err == nil || !strings.Contains(err.Error(), "is not the controller") {
		t.Errorf("another controller: %v", err)
	}
	_, err = dialed(t, Config{Address: s.addr, Token: other.Token}).Attach(ctx, Hello{Host: "h"})
	if err == nil || !strings.Contains(err.Error(), "is not the controller") {
		t.Errorf("another controller: %v", err)
	}
	// Plain HTTP on the TLS port is refused.
	r, err := http.Get("http://" + s.addr + "/v1/snapshot")
	if err == nil {
		r.Body.Close()
		if r.StatusCode == http.StatusOK {
			t.Error("served in clear")
		}
	}
}

func TestIdentityIsMadeOnce(t *testing.T) {
	dir := t.TempDir()
	first, err := EnsureIdentity(dir)
	if err != nil {
		t.Fatal(err)
	}
	again, err := EnsureIdentity(dir)
	if err != nil || again.Token != first.Token {
		t.Fatalf("%v, %v", again.Token, err)
	}
	for _, name := range []string{certificateFile, keyFile, tokenFile} {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, st.Mode(), err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, tokenFile), []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if fresh, err := EnsureIdentity(dir); err != nil || fresh.Token == first.Token {
		t.Fatalf("a broken token file: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, certificateFile), []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := EnsureIdentity(dir); err == nil {
		t.Fatal("a broken certificate must not be replaced silently: all tokens would be void")
	}
}

func TestNobodyThere(t *testing.T) {
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
	for _, bad := range []Config{{}, {Address: "unix:"}, {Address: "host"}, {Address: "host:1"}, {Address: "host:1", Token: "x"}} {
		if _, err := Dial(bad); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
}

func TestResolve(t *testing.T) {
	t.Setenv("PAGURUS_CONTROLLER", "")
	t.Setenv("PAGURUS_TOKEN", "")
	t.Setenv("PAGURUS_TOKEN_FILE", "")
	if c, err := Resolve(); err != nil || c.Address != "unix:"+DefaultSocket {
		t.Errorf("%+v, %v", c, err)
	}
	file := filepath.Join(t.TempDir(), "token")
	os.WriteFile(file, []byte(" a.b\n"), 0o600)
	t.Setenv("PAGURUS_CONTROLLER", "host:1")
	t.Setenv("PAGURUS_TOKEN_FILE", file)
	if c, err := Resolve(); err != nil || c != (Config{"host:1", "a.b"}) {
		t.Errorf("%+v, %v", c, err)
	}
	t.Setenv("PAGURUS_TOKEN_FILE", file+".none")
	if _, err := Resolve(); err == nil {
		t.Error("a token file that is not there was passed over")
	}
}

func TestOneControllerASocket(t *testing.T) {
	s := serve(t, &world{})
	if _, err := ListenUnix(s.socket); err == nil || !strings.Contains(err.Error(), "already runs") {
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
	if lines, err := c.Explain(ctx, About{Guest: "j1g0"}); err != nil || lines[0] != fmt.Sprint(About{Guest: "j1g0"}) {
		t.Errorf("%v, %v", lines, err)
	}
	if traces, err := c.Trace(ctx, "j1"); err != nil || len(traces) != 1 || traces[0].Rank != 3 {
		t.Errorf("%v, %v", traces, err)
	}
	data, ended, err := c.ReadStream(ctx, Place{"j1", fleet.Stdout, 7})
	if err != nil || !ended || !strings.Contains(string(data), "7") {
		t.Errorf("%q %v %v", data, ended, err)
	}
	if _, ended, err := c.ReadStream(ctx, Place{"j1", fleet.Stdout, 8}); err != nil || ended {
		t.Errorf("%v %v", ended, err)
	}
	if next, err := c.WriteStream(ctx, Place{"j1", fleet.Stdin, 5}, []byte("abc"), false); err != nil || next != 8 {
		t.Errorf("%d %v", next, err)
	}
	if next, err := c.WriteStream(ctx, Place{"j1", fleet.Stdin, 5}, nil, true); err != nil || next != 1005 {
		t.Errorf("%d %v", next, err)
	}
	// A write above the limit is taken in part, without eof.
	if next, err := c.WriteStream(ctx, Place{"j1", fleet.Stdin, 0}, make([]byte, pieceBytes+5), true); err != nil || next != pieceBytes {
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
	if _, _, err := c.ReadStream(waiting, Place{"slow", fleet.Stdout, 0}); !errors.Is(err, context.DeadlineExceeded) {
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
