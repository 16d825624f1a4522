package wire

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pagurus/fleet"
	"pagurus/serve/identity"
)

// Whatever is taken when by whom: nobody gets more than a bucket holds and what came since; who is told to come again in some time
// gets it then; and one who has used theirs up takes nothing from others.
func TestBuckets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const aSecond, burst = 5, 20
		b, at := NewBuckets(aSecond, burst), time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC)
		begun, got := at, map[string]int{}
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			at = at.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "later")) * time.Millisecond)
			who, n := fmt.Sprint(rapid.IntRange(0, 2).Draw(t, "who")), rapid.IntRange(1, burst).Draw(t, "n")
			after := b.TakeTokens(who, n, at)
			if after > 0 {
				at = at.Add(after + time.Microsecond)
				if again := b.TakeTokens(who, n, at); again > 0 {
					t.Fatalf("%s was told to come after %s, and then after %s", who, after, again)
				}
			}
			if got[who] += n; float64(got[who]) > burst+aSecond*at.Sub(begun).Seconds()+0.01 {
				t.Fatalf("%s got %d in %s", who, got[who], at.Sub(begun))
			}
		}
		if after := b.TakeTokens("another", burst, at); after > 0 {
			t.Fatalf("another waits %s", after)
		}
	})
}

// Buckets of those who have not come for long are forgotten, those that are not full are not.
func TestBucketsOfManyAreForgotten(t *testing.T) {
	b, at := NewBuckets(1, 10), time.Now()
	b.TakeTokens("eve", 10, at.Add(20*time.Second-time.Millisecond))
	for i := range 10 * fewBuckets {
		b.TakeTokens(fmt.Sprint(i), 1, at.Add(time.Duration(i)*20*time.Second/(10*fewBuckets)))
	}
	if len(b.by) > 8*fewBuckets {
		t.Errorf("%d are kept", len(b.by))
	}
	if b.TakeTokens("eve", 10, at.Add(20*time.Second)) == 0 {
		t.Error("eve's was forgotten, and is full again")
	}
}

// slow are buckets that are used up by some calls, for good.
func slow(known, strangers int) *paces {
	p := newPaces()
	p.held = time.Millisecond
	p.known, p.agents, p.strangers = NewBuckets(1e-6, known), NewBuckets(1e-6, 2), NewBuckets(1e-6, strangers)
	return p
}

// Who calls too often is told so in words, with the time after which to ask again, on a connection that stays open. Others go on: another
// user, a host, root.
func TestWhoCallsTooOften(t *testing.T) {
	ctx, s := limited(t), serve(t, &world{attach: func(context.Context, Hello, *HostSession) error { return nil }})
	s.stop()
	s.paces = slow(3, 100)
	s.start(t)
	ada, root := s.member(t, identity.Subject{Role: identity.User, Name: "ada"}), s.client(t)
	for range 3 {
		if _, err := ada.Snapshot(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for what, call := range map[string]func() error{
		"snapshot": func() error { _, err := ada.Snapshot(ctx); return err },
		"request":  func() error { _, err := ada.Ask(ctx, fleet.Request{Verb: fleet.Cancel, Job: "j1"}); return err },
		"watch":    func() error { _, err := ada.Watch(ctx); return err },
	} {
		if err := call(); err == nil || status(t, err) != http.StatusTooManyRequests || !strings.Contains(err.Error(), "ask again in") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, _, err := ada.ReadStream(ctx, Place{Job: "j1", Stream: fleet.Stdout}); err != nil {
		t.Errorf("output is not read: %v", err)
	}
	r, err := ada.exchange(ctx, http.MethodGet, "/v1/snapshot", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if r.Header.Get(againHeader) == "" || r.Close {
		t.Errorf("%s %q, closed: %v", againHeader, r.Header.Get(againHeader), r.Close)
	}
	for name, c := range map[string]*Client{"another user": s.userClient(t, 4343), "root": root} {
		if _, err := c.Snapshot(ctx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for range 5 {
		if _, err := root.Snapshot(ctx); err != nil {
			t.Errorf("root: %v", err)
		}
	}
	host := s.member(t, identity.Subject{Role: identity.Host, Name: "h"})
	for i := range 4 {
		conn, err := host.connect(ctx, agentPath)
		if err == nil {
			conn.CloseNow()
		}
		if refused := err != nil && strings.Contains(err.Error(), "the agent of h comes more than"); refused != (i > 1) {
			t.Errorf("the agent's call %d: %v", i, err)
		}
	}
}

// Who is not known is told the same after some tries from one address, and those who are known there are not.
func TestStrangersAreCounted(t *testing.T) {
	ctx, s := limited(t), serve(t, &world{})
	s.stop()
	s.paces = slow(100, 2)
	s.start(t)
	strange := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	var got []int
	for range 4 {
		r, err := strange.Get("https://" + s.addr + "/v1/snapshot")
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		got = append(got, r.StatusCode)
	}
	if fmt.Sprint(got) != "[401 401 429 429]" {
		t.Errorf("a stranger is told %v", got)
	}
	if _, err := s.member(t, identity.Subject{Role: identity.User, Name: "ada"}).Snapshot(ctx); err != nil {
		t.Error(err)
	}
}

// Who asks again at once waits for each refusal, and takes nobody's time meanwhile.
func TestRefusalsAreHeld(t *testing.T) {
	ctx, s := limited(t), serve(t, &world{})
	s.stop()
	s.paces = slow(1, 100)
	s.paces.held = 300 * time.Millisecond
	s.start(t)
	ada := s.member(t, identity.Subject{Role: identity.User, Name: "ada"})
	if _, err := ada.Snapshot(ctx); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	r, err := ada.exchange(ctx, http.MethodGet, "/v1/snapshot", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if took := time.Since(began); r.StatusCode != http.StatusTooManyRequests || took < s.paces.held {
		t.Errorf("%s after %v", r.Status, took)
	}
}

// A client asks again by itself when it was told when, and gives up where that is too long.
func TestAClientAsksAgain(t *testing.T) {
	ctx, s := limited(t), serve(t, &world{})
	s.stop()
	s.paces = newPaces()
	s.paces.known, s.paces.held = NewBuckets(2, 1), time.Millisecond
	s.start(t)
	ada := s.member(t, identity.Subject{Role: identity.User, Name: "ada"})
	for range 3 {
		if _, err := ada.Snapshot(ctx); err != nil {
			t.Error(err)
		}
		if _, err := ada.Watch(ctx); err != nil {
			t.Errorf("a watch: %v", err)
		}
	}
}
