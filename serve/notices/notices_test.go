package notices

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/mail"
	"strings"
	"sync"
	"testing"
	"time"

	"pagurus/fleet"
)

var key = []byte("0123456789abcdef0123456789abcdef")

func a(n int) fleet.Notice {
	return fleet.Notice{ID: fleet.NoticeID(fmt.Sprintf("job-ended/j%d/0", n)), Kind: fleet.JobEndedNotice, At: time.Now(), Cluster: "physics", Text: fmt.Sprintf("job j%d ended", n), Job: fleet.JobID(fmt.Sprintf("j%d", n))}
}

// hook is a real server that keeps what it is told.
type hook struct {
	*httptest.Server
	mu     sync.Mutex
	status []int // of the next answers; then 204
	got    []fleet.Notice
	wrong  []string
}

func newHook(t *testing.T, status ...int) *hook {
	h := &hook{status: status}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var n fleet.Notice
		if err == nil {
			err = json.Unmarshal(body, &n)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if want := Signature(key, r.Header.Get("webhook-id"), r.Header.Get("webhook-timestamp"), body); err != nil || r.Header.Get("webhook-signature") != want || r.Header.Get("webhook-id") != string(n.ID) {
			h.wrong = append(h.wrong, fmt.Sprint(r.Header, err))
		}
		code := http.StatusNoContent
		if len(h.status) > 0 {
			code, h.status = h.status[0], h.status[1:]
		}
		if code == http.StatusNoContent {
			h.got = append(h.got, n)
		}
		if code == http.StatusFound {
			w.Header().Set("Location", "http://192.0.2.1/")
		}
		w.WriteHeader(code)
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *hook) told() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.got)
}

func (h *hook) receiver(t *testing.T) *Webhook {
	w, err := NewWebhook(h.URL+"/hook?token=secret", key)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// beginOutbox starts an outbox; the function ends it.
func beginOutbox(t *testing.T, o *Outbox, marks []fleet.NoticeMark, now time.Time) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() { o.Run(ctx, marks, now); close(over) }()
	until(t, "the outbox to begin", func() bool { return !o.Since().IsZero() })
	return func() { cancel(); <-over }
}

var quiet = slog.New(slog.DiscardHandler)

// TestAtLeastOnce: a receiver that fails first is told, one that is away does not keep another waiting, and what was told is not
// told again by the next controller, but for what the mark does not have.
func TestAtLeastOnce(t *testing.T) {
	h, gone := newHook(t, 500, 503), newHook(t)
	away := gone.receiver(t)
	gone.Close()
	results, mu := map[string]int{}, sync.Mutex{}
	o := New([]Receiver{away, h.receiver(t)}, quiet, func(r string) { mu.Lock(); results[r]++; mu.Unlock() })
	begun := time.Now().Add(-time.Hour)
	stop := beginOutbox(t, o, nil, begun)
	all := []fleet.Notice{a(1), a(2)}
	o.Offer(all, time.Now())
	o.Offer(all, time.Now()) // nothing new
	until(t, "both to be told", func() bool { return h.told() == 2 })
	until(t, "that to be noted", func() bool { mu.Lock(); defer mu.Unlock(); return results["told"] == 2 })
	stop()
	marks := o.Marks(time.Now())
	if len(marks) != 2 || len(o.Marks(time.Now())) != 0 {
		t.Fatalf("%+v", marks)
	}
	for _, m := range marks {
		if strings.Contains(m.Receiver, "secret") {
			t.Errorf("the name of a receiver has its secret: %s", m.Receiver)
		}
	}
	o = New([]Receiver{h.receiver(t)}, quiet, nil)
	stop = beginOutbox(t, o, marks, time.Now())
	o.Offer(append(all, a(3)), time.Now())
	until(t, "the third", func() bool { return h.told() == 3 })
	stop()
	if len(h.wrong) > 0 {
		t.Errorf("not signed as it should be: %q", h.wrong)
	}
	if h.got[2].Job != "j3" {
		t.Errorf("%+v", h.got)
	}
}

// TestAWebhookThatRefuses: what a receiver does not want is given up, also a redirection, and nothing of the address is in an error.
func TestAWebhookThatRefuses(t *testing.T) {
	h := newHook(t, 400, 302, 429)
	w := h.receiver(t)
	for _, unwanted := range []bool{true, true, false} {
		err := w.Tell(t.Context(), a(1))
		if err == nil || errors.Is(err, ErrUnwanted) != unwanted || strings.Contains(err.Error(), "token") {
			t.Errorf("%v", err)
		}
	}
	h.Close()
	if err := w.Tell(t.Context(), a(1)); err == nil || strings.Contains(err.Error(), "token") {
		t.Errorf("%v", err)
	}
	o := New([]Receiver{w}, quiet, nil)
	o.of[0].start(nil, time.Now().Add(-time.Minute))
	o.Offer([]fleet.Notice{a(1)}, time.Now())
	l := o.of[0].waiting[0]
	for range 5 {
		o.told(o.of[0], l, ErrUnwanted, time.Now())
	}
	if len(o.of[0].waiting) != 0 {
		t.Error("tried for ever")
	}
}

// TestTooManyNotices: the oldest are given up, and the queue stays short.
func TestTooManyNotices(t *testing.T) {
	h := newHook(t)
	given := 0
	o := New([]Receiver{h.receiver(t)}, quiet, func(string) { given++ })
	o.of[0].start(nil, time.Now().Add(-time.Hour))
	var all []fleet.Notice
	for i := range 1500 {
		all = append(all, a(i))
	}
	o.Offer(all, time.Now())
	if q := o.of[0]; len(q.waiting) != 1000 || given != 500 || q.waiting[0].Job != "j500" {
		t.Errorf("%d wait, %d given up", len(q.waiting), given)
	}
	if m := o.Marks(time.Now().Add(time.Hour)); len(m) != 1 || len(m[0].Told) > 1000 {
		t.Errorf("%d marks", len(m))
	}
}

func TestAddressesAndSecrets(t *testing.T) {
	for address, ok := range map[string]bool{
		"https://chat.example.org/hooks/1": true, "http://127.0.0.1:8080/": true, "http://[::1]/": true, "http://localhost/x": true,
		"http://chat.example.org/": false, "ftp://x/": false, "chat": false, "https://": false, "https://u:p@x.org/": false, "": false,
	} {
		if err := RefusedURL(address); (err == nil) != ok {
			t.Errorf("%s: %v", address, err)
		}
	}
	for secret, ok := range map[string]bool{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw": true, "0123456789abcdef01234567\n": true, "short": false, "whsec_!": false, "": false} {
		if _, err := ReadKey(secret); (err == nil) != ok {
			t.Errorf("%q: %v", secret, err)
		}
	}
	// The example of the standard's libraries.
	example, _ := ReadKey("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if got := Signature(example, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`)); got != "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" {
		t.Error(got)
	}
	for address, ok := range map[string]bool{"admin@example.org": true, "Ada <ada@example.org>": false, "ada": false, "a@b\r\nBcc: x@y": false} {
		if err := RefusedMail(address); (err == nil) != ok {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// post is a server of SMTP that takes one mail, or refuses it.
func post(t *testing.T, refuses bool) (at string, got func() string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	text := make(chan string, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		in, said := bufio.NewReader(c), strings.Builder{}
		fmt.Fprintf(c, "220 test\r\n")
		for data := false; ; {
			line, err := in.ReadString('\n')
			if err != nil {
				break
			}
			word := strings.ToUpper(strings.Fields(line + " x")[0])
			switch {
			case data && line == ".\r\n":
				data = false
				fmt.Fprintf(c, "250 taken\r\n")
			case data:
				said.WriteString(line)
			case word == "EHLO":
				fmt.Fprintf(c, "250 test\r\n")
			case word == "RCPT" && refuses:
				fmt.Fprintf(c, "550 no such user\r\n")
			case word == "DATA":
				data = true
				fmt.Fprintf(c, "354 go on\r\n")
			case word == "QUIT":
				fmt.Fprintf(c, "221 bye\r\n")
				text <- said.String()
				return
			default:
				fmt.Fprintf(c, "250 ok\r\n")
			}
		}
	}()
	return l.Addr().String(), func() string { return <-text }
}

func TestMail(t *testing.T) {
	at, got := post(t, false)
	m := Mail{Server: at, From: "pagurus@head.example.org", To: "admin@example.org"}
	n := a(1)
	n.Text = "job j1 failed: größer\r\nBcc: someone@example.org\r\n.\r\nand " + strings.Repeat("long ", 100)
	if err := m.Tell(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	read, err := mail.ReadMessage(strings.NewReader(got()))
	if err != nil {
		t.Fatal(err)
	}
	h := read.Header
	if h.Get("Bcc") != "" || h.Get("To") != "admin@example.org" || h.Get("Pagurus-Notice") != string(n.ID) || !strings.HasSuffix(h.Get("Message-ID"), "@head.example.org>") || h.Get("Auto-Submitted") != "auto-generated" {
		t.Errorf("%+v", h)
	}
	again, got2 := post(t, false)
	m.Server = again
	if err := m.Tell(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	if second, err := mail.ReadMessage(strings.NewReader(got2())); err != nil || second.Header.Get("Message-ID") != h.Get("Message-ID") {
		t.Errorf("told twice it is two messages: %v", err)
	}
	refuses, _ := post(t, true)
	m.Server = refuses
	if err := m.Tell(t.Context(), n); !errors.Is(err, ErrUnwanted) {
		t.Errorf("%v", err)
	}
	m.Server = "127.0.0.1:1"
	if err := m.Tell(t.Context(), n); err == nil || errors.Is(err, ErrUnwanted) {
		t.Errorf("%v", err)
	}
}
