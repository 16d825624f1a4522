package page

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// desk is a machine with an owner, and a scripted agent behind the real page.
type desk struct {
	url, link string

	mu    sync.Mutex
	now   fleet.OwnerAnswer
	asked []fleet.OwnerAsk
	away  bool
}

func (d *desk) ask(_ context.Context, q fleet.OwnerAsk) (fleet.OwnerAnswer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.away {
		return fleet.OwnerAnswer{}, errors.New("no agent of this machine answers")
	}
	d.asked = append(d.asked, q)
	d.now.At = time.Now()
	switch q.Verb {
	case fleet.OwnerPause:
		d.now.Pause, d.now.Until = true, time.Time{}
		if q.For > 0 {
			d.now.Until = d.now.At.Add(q.For)
		}
	case fleet.OwnerResume:
		d.now.Pause, d.now.Until = false, time.Time{}
	}
	return d.now, nil
}

// did gives what was asked beside what there is to see, and forgets it.
func (d *desk) did() (out []fleet.OwnerAsk) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, q := range d.asked {
		if q.Verb != fleet.OwnerHistory {
			out = append(out, q)
		}
	}
	d.asked = nil
	return out
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	at := time.Now().Add(-time.Hour)
	d := &desk{now: fleet.OwnerAnswer{
		Host: "office3", At: time.Now(), Owner: &fleet.Owner{State: fleet.OwnerAbsent, LastSign: at}, Policy: fleet.OwnerPolicy{Owned: true, Vacate: fleet.Suspend},
		Guests:  []fleet.OwnerGuest{{ID: "j7g1", CPUs: 2, MemoryBytes: 1 << 30, Run: "running"}},
		History: []fleet.OwnerEvent{{At: at, Says: "the owner went"}, {At: at.Add(time.Minute), Says: "guest j7g1 came"}},
	}}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := NewOwner(d.ask)
	d.url, d.link = "http://"+l.Addr().String(), o.Link(l.Addr())
	ctx, stop := context.WithCancel(context.Background())
	over := make(chan error)
	go func() { over <- o.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
	return d
}

// post asks as the page does; headers, as "Name: value", replace the page's own, an empty value leaves one out.
func (d *desk) post(t *testing.T, at, body string, headers ...string) (status int, said string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.url+at, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range append([]string{"Origin: " + d.url, "Sec-Fetch-Site: same-origin", "Content-Type: application/json"}, headers...) {
		name, value, _ := strings.Cut(h, ": ")
		if r.Header.Set(name, value); value == "" {
			r.Header.Del(name)
		}
		switch name {
		case "Host":
			r.Host = value
		case "Method":
			r.Method = value
		}
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	if answer.Header.Get("Set-Cookie") != "" || answer.Header.Get("Access-Control-Allow-Origin") != "" || answer.Header.Get("X-Content-Type-Options") != "nosniff" || answer.Header.Get("Content-Security-Policy") == "" {
		t.Errorf("%s: %v", at, answer.Header)
	}
	return answer.StatusCode, string(text)
}

// open uses the link, and gives the header by which the tab is known.
func (d *desk) open(t *testing.T) string {
	t.Helper()
	_, secret, _ := strings.Cut(d.link, "#")
	status, said := d.post(t, "/owner/session", `{"secret": "`+secret+`"}`)
	var out struct{ Session string }
	if err := json.Unmarshal([]byte(said), &out); status != 200 || err != nil || len(out.Session) < 20 {
		t.Fatalf("%d %s", status, said)
	}
	return "Authorization: Bearer " + out.Session
}

// TestOwner: the link works once; by it one sees what the commands say, pauses and resumes.
func TestOwner(t *testing.T) {
	d := newDesk(t)
	key := d.open(t)
	status, said := d.post(t, "/owner/ask", `{"verb": "history"}`, key)
	for _, want := range []string{"office3", "You count as away", "Guest j7g1 is running", "are suspended when its owner stays", "guest j7g1 came"} {
		if status != 200 || !strings.Contains(said, want) {
			t.Errorf("%d, without %q: %s", status, want, said)
		}
	}
	if status, said = d.post(t, "/owner/ask", `{"verb": "pause", "for_ns": 3600000000000}`, key); status != 200 || !strings.Contains(said, "is yours for") || !strings.Contains(said, `"pause":true`) {
		t.Errorf("%d %s", status, said)
	}
	if did := d.did(); len(did) != 1 || did[0].Verb != fleet.OwnerPause || did[0].For != time.Hour {
		t.Errorf("%+v", did)
	}
	if status, said = d.post(t, "/owner/ask", `{"verb": "resume"}`, key); status != 200 || !strings.Contains(said, `"pause":false`) {
		t.Errorf("%d %s", status, said)
	}
	d.mu.Lock()
	d.away = true
	d.mu.Unlock()
	if status, said = d.post(t, "/owner/ask", `{"verb": "resume"}`, key); status != 502 || !strings.Contains(said, "no agent of this machine answers") {
		t.Errorf("%d %s", status, said)
	}
	_, secret, _ := strings.Cut(d.link, "#")
	if status, said = d.post(t, "/owner/session", `{"secret": "`+secret+`"}`); status != 401 || !strings.Contains(said, "works once") {
		t.Errorf("the link works twice: %d %s", status, said)
	}
}

// TestOwnerAttacked: who has not the key of the tab, or is the page of another site, sees and does nothing.
func TestOwnerAttacked(t *testing.T) {
	d := newDesk(t)
	_, port, _ := strings.Cut(strings.TrimPrefix(d.url, "http://"), ":")
	if status, _ := d.post(t, "/owner/session", `{"secret": ""}`); status != 401 {
		t.Errorf("no secret: %d", status)
	}
	if status, _ := d.post(t, "/owner/ask", `{"verb": "pause"}`, "Authorization: Bearer "); status != 401 {
		t.Errorf("no key before there is one: %d", status)
	}
	key := d.open(t)
	if status, _ := d.post(t, "/owner/session", `{"secret": ""}`); status != 401 {
		t.Errorf("no secret, once it is used: %d", status)
	}
	const pause = `{"verb": "pause"}`
	for _, c := range []struct {
		name, body string
		headers    []string
		status     int
	}{
		{"no key", pause, nil, 401},
		{"an empty key", pause, []string{"Authorization: Bearer "}, 401},
		{"another key", pause, []string{key + "x"}, 401},
		{"the key as a cookie", pause, []string{"Cookie: " + key}, 401},
		{"rebinding", pause, []string{key, "Host: rebound.example:" + port, "Origin: http://rebound.example:" + port}, 403},
		{"rebinding without a port", pause, []string{key, "Host: rebound.example", "Origin: http://rebound.example"}, 403},
		{"a name that begins like it", pause, []string{key, "Host: 127.0.0.1.rebound.example:" + port, "Origin: http://127.0.0.1.rebound.example:" + port}, 403},
		{"another site", pause, []string{key, "Origin: https://evil.example", "Sec-Fetch-Site: cross-site"}, 403},
		{"another port", pause, []string{key, "Origin: http://127.0.0.1:1", "Sec-Fetch-Site: same-site"}, 403},
		{"another site, by the second header", pause, []string{key, "Sec-Fetch-Site: same-site"}, 403},
		{"a frame without an origin", pause, []string{key, "Origin: null"}, 403},
		{"no page", pause, []string{key, "Origin: "}, 403},
		{"a form", pause, []string{key, "Content-Type: text/plain"}, 403},
		{"no type", pause, []string{key, "Content-Type: "}, 403},
		{"by GET", "", []string{key, "Method: GET"}, 405},
		{"before a request from elsewhere", "", []string{"Method: OPTIONS", "Origin: https://evil.example"}, 403},
		{"the policy", `{"verb": "policy", "policy": {"owned": false}}`, []string{key}, 400},
		{"a policy along with it", `{"verb": "pause", "policy": {"owned": false}}`, []string{key}, 400},
		{"another verb", `{"verb": "sweep"}`, []string{key}, 400},
		{"a pause of a year", `{"verb": "pause", "for_ns": 31536000000000000}`, []string{key}, 400},
		{"a pause that is over", `{"verb": "pause", "for_ns": -1}`, []string{key}, 400},
		{"unknown fields", `{"verb": "pause", "more": 1}`, []string{key}, 400},
		{"two questions", pause + pause, []string{key}, 400},
		{"no question", `pause`, []string{key}, 400},
		{"a long question", `{"verb": "` + strings.Repeat("p", 10<<10) + `"}`, []string{key}, 400},
	} {
		if status, said := d.post(t, "/owner/ask", c.body, c.headers...); status != c.status || strings.Contains(said, "office3") || !strings.Contains(said, `"detail"`) {
			t.Errorf("%s: %d %s", c.name, status, said)
		}
	}
	if did := d.did(); len(did) != 0 {
		t.Errorf("it was done: %+v", did)
	}
	if status, said := d.post(t, "/owner/ask", pause, key, "Host: localhost:9999", "Origin: http://localhost:9999"); status != 200 { // by `ssh -L 9999:…`
		t.Errorf("%d %s", status, said)
	}
}

// TestOwnersFiles: / and what it loads are there, with the headers of the controller's page, and the rest of that page is not.
func TestOwnersFiles(t *testing.T) {
	d := newDesk(t)
	for at, want := range map[string]int{"/": 200, "/page/owner.js": 200, "/page/dom.js": 200, "/page/style.css": 200, "/page/shell.svg": 200, "/page/main.js": 404, "/page/api.js": 404, "/owner/session": 405, "/owner/": 405, "/api/v1/hosts": 404} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.url+at, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Origin", d.url)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != want || answer.Header.Get("X-Frame-Options") != "DENY" {
			t.Errorf("%s: %s %v", at, answer.Status, answer.Header)
		}
	}
	files, err := fs.Glob(embedded, ownerFiles)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range files {
		if New().files[path.Base(at)].kind != "" {
			t.Errorf("the controller serves %s", at)
		}
	}
}

// TestOwnerIsOneUser: another user of the machine is refused, with the key too, since the kernel says whose the connection is.
func TestOwnerIsOneUser(t *testing.T) {
	testkit.Root(t)
	d := newDesk(t)
	key := d.open(t)
	at := strings.TrimPrefix(d.url, "http://")
	request := "POST /owner/ask HTTP/1.1\r\nHost: " + at + "\r\nOrigin: " + d.url + "\r\nContent-Type: application/json\r\n" + key + "\r\nContent-Length: 17\r\n\r\n" + `{"verb": "pause"}`
	tell := func(uid int, says string, shut bool) {
		t.Helper()
		c, err := dialAs(uid, at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, request); err != nil {
			t.Fatal(err)
		}
		if shut {
			_ = c.(*net.TCPConn).CloseWrite()
		}
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		head := make([]byte, 2000)
		n, err := io.ReadAtLeast(c, head, 100)
		if err != nil || !strings.Contains(string(head[:n]), says) {
			t.Errorf("user %d: %v, %s", uid, err, head[:n])
		}
	}
	tell(65534, "403 Forbidden", false)
	tell(65534, "403 Forbidden", true)
	if did := d.did(); len(did) != 0 {
		t.Errorf("it was done: %+v", did)
	}
	tell(os.Getuid(), "200 OK", false)
	// Who closes at once has no connection any more that the kernel could tell the user of.
	c, err := dialAs(65534, at)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.WriteString(c, request)
	c.Close()
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond)
	if did := d.did(); len(did) != 1 {
		t.Errorf("it was done: %+v", did)
	}
}

// dialAs connects as another user, in a thread that ends with that.
func dialAs(uid int, at string) (c net.Conn, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
			err = errno
			return
		}
		c, err = net.Dial("tcp4", at)
	}()
	<-done
	return c, err
}

// TestHolder: only the very connection counts, and only while somebody has it.
func TestHolder(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 100 1 0000000000000000 100 0 0 10 0
   1: 0100007F:A000 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1001        0 101 1 0000000000000000 20 4 30 10 -1
   2: 0100007F:A001 0100007F:1F90 05 00000000:00000000 00:00000000 00000000     0        0 0 1 0000000000000000 20 4 30 10 -1
   3: 0100007F:1F90 0100007F:A001 08 00000000:00000000 00:00000000 00000000  1000        0 102 1 0000000000000000 20 4 30 10 -1
   4: short
`
	server := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 0x1F90}
	for port, want := range map[int]int{0xA000: 1001, 0xA001: -1, 0xA002: -1} {
		got, err := holder(strings.NewReader(table), &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}, server)
		if want < 0 && err == nil || want >= 0 && (err != nil || got != want) {
			t.Errorf("port %x: %d, %v", port, got, err)
		}
	}
	if _, err := holder(strings.NewReader(table), &net.TCPAddr{IP: net.IPv6loopback, Port: 1}, server); err == nil {
		t.Error("IPv6 has a user")
	}
}
