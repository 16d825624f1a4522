package wire

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/serve/identity"
)

// bigSnapshot has more than a socket's buffer takes.
func bigSnapshot() fleet.Snapshot {
	snap := fleet.NewSnapshot()
	for i := range 1000 {
		id := fleet.HostID(fmt.Sprintf("host%d", i))
		snap.Hosts[id] = fleet.Host{ID: id, Facts: fleet.Facts{Machine: fmt.Sprint(i), Version: strings.Repeat("v", 1<<10)}}
	}
	return snap
}

// 250 readers of one user, who ask for a large answer and do not read it, hold a few of them. The others are told to ask again; another user is
// answered meanwhile, and the first one when some are gone.
func TestSlowReadersHoldFewAnswers(t *testing.T) {
	ctx, s := limited(t), serve(t, &world{snap: bigSnapshot()})
	s.stop()
	s.paces = newPaces()
	s.paces.answers = 100 * time.Millisecond
	s.start(t)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	const many = 250
	refused := make(chan bool, many)
	var held []net.Conn
	for range many {
		c, err := net.Dial("unix", s.socket)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		held = append(held, c)
		fmt.Fprintf(c, "GET /v1/snapshot HTTP/1.1\r\nHost: x\r\n%s: %d\r\n\r\n", protocolHeader, fleet.Protocol())
		go func() {
			line, _ := bufio.NewReaderSize(c, 16).ReadString('\n')
			refused <- strings.Contains(line, "429")
		}()
	}
	late := 0
	for range many {
		if <-refused {
			late++
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if shown := int(s.shown.Load()); late != many-answersEach || shown != answersEach {
		t.Errorf("%d of %d answers were made, %d were told to ask again", shown, many, late)
	}
	if mib := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) >> 20; mib > 64 {
		t.Errorf("they hold %d MiB", mib)
	}
	if _, err := s.member(t, identity.Subject{Role: identity.User, Name: "ada"}).Snapshot(ctx); err != nil {
		t.Errorf("another user: %v", err)
	}
	for _, c := range held {
		c.Close()
	}
	if _, err := s.client(t).Snapshot(ctx); err != nil {
		t.Errorf("when they are gone: %v", err)
	}
}

// Who takes a little now and then is cut off as well, and who reads slowly gets everything.
func TestAnAnswerIsReadInTime(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	wrote := make(chan error, 1)
	h := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := patient{ResponseWriter: w, limit: time.Hour}
		if r.URL.Path == "/late" {
			p.until = time.Now().Add(500 * time.Millisecond)
		}
		_, err := p.Write(big)
		wrote <- err
	})}
	go h.Serve(l)
	defer h.Close()
	ask := func(path string) net.Conn {
		c, err := net.Dial("unix", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		io.WriteString(c, "GET "+path+" HTTP/1.0\r\n\r\n")
		return c
	}
	trickle := ask("/late")
	for done := false; !done; {
		select {
		case err := <-wrote:
			if done = true; err == nil {
				t.Error("all was written to one who hardly reads")
			}
		case <-time.After(10 * time.Millisecond):
			_, _ = trickle.Read(make([]byte, 1<<10))
		}
	}
	c := ask("/")
	got, err := io.ReadAll(c)
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	if err != nil || len(got) < len(big) {
		t.Errorf("%d bytes: %v", len(got), err)
	}
}

// Those who see the same are sent the same bytes, and nobody what is not theirs to see. Who still has an older snapshot does not take the newest away.
func TestEncodingsAreShared(t *testing.T) {
	at := time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC)
	snap := fleet.NewSnapshot()
	snap.At = at
	snap.Jobs["j1"] = fleet.Job{ID: "j1", Spec: fleet.JobSpec{UID: 7, Env: []string{"SECRET=1"}}}
	root, admin := fleet.Caller{Admin: true}, fleet.Caller{UID: 5, Admin: true, User: "boss"}
	ada, eve := fleet.Caller{UID: 7, User: "ada"}, fleet.Caller{UID: 8, User: "eve"}
	var e encodings
	of := func(s fleet.Snapshot, by fleet.Caller) []byte {
		t.Helper()
		text, err := e.encoded(s, by)
		if err != nil {
			t.Fatal(err)
		}
		if owns := by.Admin || by.UID == 7; bytes.Contains(text, []byte("SECRET")) != owns {
			t.Errorf("%+v sees %s", by, text)
		}
		return text
	}
	same := func(a, b []byte) bool { return &a[0] == &b[0] }
	if !same(of(snap, root), of(snap, admin)) || !same(of(snap, ada), of(snap, fleet.Caller{UID: 7, User: "ada"})) || same(of(snap, ada), of(snap, eve)) {
		t.Error("who sees the same does not have the same bytes, or others do")
	}
	newer := snap
	newer.At = at.Add(time.Second)
	newest := of(newer, root)
	if same(newest, of(snap, root)) || !same(newest, of(newer, admin)) {
		t.Error("an older snapshot is taken for the newest, or displaces it")
	}
	jobs := func(by fleet.Caller) string { return fmt.Sprintf("%p", e.visible(newer, by).Jobs) }
	if first := jobs(ada); first != jobs(ada) || first == jobs(eve) || jobs(root) != fmt.Sprintf("%p", newer.Jobs) {
		t.Error("what somebody may see is made for each who asks, or shared with others")
	}
	if e.visible(newer, eve).Jobs["j1"].Spec.Env != nil || len(newer.Jobs["j1"].Spec.Env) != 1 {
		t.Error("eve sees ada's environment, or it is gone for everybody")
	}
	undated := snap
	undated.At = time.Time{}
	if same(of(undated, root), of(undated, root)) {
		t.Error("what cannot be told apart is shared")
	}
}

// However many users ask for the same snapshot, few answers are kept, and each has their own.
func TestFewEncodingsAreKept(t *testing.T) {
	var e encodings
	snap := fleet.NewSnapshot()
	snap.At = time.Now()
	for uid := range uint32(4 * encodingsMost) {
		if text, err := e.encoded(snap, fleet.Caller{UID: uid + 1}); err != nil || len(text) == 0 {
			t.Fatalf("%d bytes, %v", len(text), err)
		}
	}
	if len(e.by) != encodingsMost {
		t.Errorf("%d are kept", len(e.by))
	}
}
