package controller

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pagurus/fleet"
	"pagurus/serve/wire"
)

// Whoever asks for what when: no user and not all together put more into the store than a bucket and what came since; who is refused is told
// why; and one who has put in little goes on, whatever one other user does.
func TestChangesAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := fleet.ChangeLimits{Requests: 60, Stored: 6000, StoredAll: 8000}
		c, at := newChanges(l), time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC)
		begun, bytes, all := at, map[uint32]int64{}, int64(0)
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			at = at.Add(time.Duration(rapid.IntRange(0, 2000).Draw(t, "later")) * time.Millisecond)
			uid, n := rapid.Uint32Range(7, 9).Draw(t, "uid"), rapid.Int64Range(1, 2000).Draw(t, "bytes")
			if err := c.admit(fleet.Caller{UID: uid}, n, at); err != nil {
				said := (*wire.Error)(nil)
				if !errors.As(err, &said) || said.Status != http.StatusTooManyRequests || !strings.Contains(said.Reason, "ask again in") {
					t.Fatalf("it says %v", err)
				}
				continue
			}
			bytes[uid] += n
			all += n
			minutes := 1 + at.Sub(begun).Minutes() + 1e-6
			if float64(bytes[uid]) > minutes*float64(l.Stored)+1 || float64(all) > minutes*float64(l.StoredAll)+1 {
				t.Fatalf("in %s uid %d has put in %d, all %d", at.Sub(begun), uid, bytes[uid], all)
			}
		}
	})
	l := fleet.ChangeLimits{Requests: 1000, Stored: 7900, StoredAll: 8000}
	c, at := newChanges(l), time.Now()
	for range 1000 {
		_ = c.admit(fleet.Caller{UID: 7}, 100, at)
	}
	if err := c.admit(fleet.Caller{UID: 8}, 900, at); err != nil {
		t.Errorf("another user: %v", err)
	}
}

// Root is not bounded, and 0 bounds nobody.
func TestWhoIsNotBounded(t *testing.T) {
	c, at := newChanges(fleet.ChangeLimits{Requests: 1, Stored: 10, StoredAll: 10}), time.Now()
	none := newChanges(fleet.ChangeLimits{})
	for i := range 10 {
		if err := c.admit(fleet.Caller{Admin: true}, 1<<20, at); err != nil {
			t.Errorf("root, %d: %v", i, err)
		}
		if err := none.admit(fleet.Caller{UID: 7}, 1<<20, at); err != nil {
			t.Errorf("without limits, %d: %v", i, err)
		}
	}
	if err := c.admit(fleet.Caller{UID: 5, Admin: true}, 1, at); err != nil {
		t.Errorf("an administrator's first: %v", err)
	}
	if c.admit(fleet.Caller{UID: 5, Admin: true}, 1, at) == nil {
		t.Error("an administrator by a login is not bounded")
	}
}

// A user who submits and cancels jobs with long environments is told to wait, before the store has them; another goes on.
func TestStoredBytesOfAUser(t *testing.T) {
	r := newRig(t)
	r.attach("host1")
	r.ctl.changes = newChanges(fleet.ChangeLimits{Stored: 1 << 20, StoredAll: 4 << 20})
	var refused error
	jobs := 0
	for ; jobs < 100 && refused == nil; jobs++ {
		q := request(1009, jobs)
		q.Spec.Env = []string{"A=" + strings.Repeat("x", 40<<10)}
		a, err := r.ctl.Ask(r.ctx, q)
		if err == nil {
			_, err = r.ctl.Ask(r.ctx, fleet.Request{Verb: fleet.Cancel, ID: fleet.RequestID(fmt.Sprint("c", jobs)), Job: a.Job, By: q.By})
		}
		refused = err
	}
	if jobs > 25 {
		t.Errorf("%d jobs with 40 KiB were taken of 1 MiB a minute", jobs)
	}
	r.refused(refused, http.StatusTooManyRequests, "than the 1 MiB that each user may in a minute", "ask again in")
	if _, err := r.ctl.Ask(r.ctx, request(1010, 0)); err != nil {
		t.Errorf("another user: %v", err)
	}
}
