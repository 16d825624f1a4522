package api

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"pagurus/fleet"
)

// TestEvents: a stream has everything, then what changes; one that was cut goes on where it was.
func TestEvents(t *testing.T) {
	w := newTown(t)
	s := w.watches("", "admin", "")
	all := s.until("ready")
	if len(all) != 5 || all[0].name != "reset" || idOf(t, all[1]) != "host1" || all[1].name != "host" || idOf(t, all[2]) != "host2" || all[3].name != "policy" {
		t.Fatalf("%+v", all)
	}
	w.change(func(s *fleet.Snapshot) { s.Jobs["j1"] = fleet.Job{ID: "j1", State: fleet.JobRunning} })
	last, _ := s.next()
	if last.name != "job" || idOf(t, last) != "j1" {
		t.Fatalf("%+v", last)
	}
	s.stop()
	w.change(func(s *fleet.Snapshot) {
		delete(s.Jobs, "j1")
		s.Jobs["j2"] = fleet.Job{ID: "j2", State: fleet.JobRunning}
		h := s.Hosts["host2"]
		h.State = fleet.HostDraining
		s.Hosts["host2"] = h
	})
	again := w.watches("", "admin", last.id).until("ready")
	names := []string{}
	for _, e := range again {
		names = append(names, e.name)
	}
	if strings.Join(names, " ") != "host job gone ready" && strings.Join(names, " ") != "ready" || names[0] == "ready" && w.watches("", "admin", last.id).until("gone") == nil {
		t.Errorf("%v", again)
	}
	for _, stale := range []string{"another-3", last.id[:len(last.id)-1] + "999999", "nonsense", "-1"} {
		if all := w.watches("", "admin", stale).until("ready"); all[0].name != "reset" {
			t.Errorf("after %q: %+v", stale, all)
		}
	}
	if all := w.watches("", "ada", last.id).until("ready"); all[0].name != "reset" {
		t.Errorf("another caller goes on with an administrator's stream: %+v", all)
	}
	if all := w.watches("?kinds=host,move", "admin", "").until("ready"); len(all) != 4 {
		t.Errorf("%+v", all)
	}
}

// TestWatcherRemoved: whose token is removed sees nothing more.
func TestWatcherRemoved(t *testing.T) {
	w := newTown(t)
	s := w.watches("", "grace", "")
	s.until("ready")
	w.mu.Lock()
	w.removed["grace"] = true
	w.mu.Unlock()
	over := make(chan struct{})
	go func() {
		defer close(over)
		for _, more := s.next(); more; _, more = s.next() {
		}
	}()
	select {
	case <-over:
	case <-time.After(4 * stillEvery):
		t.Error("they watch on")
	}
}

// TestManyWatchers: 1,000 watch, and one of them does not read. All others see each change, and the newest state of what changed
// often; one look at the cluster serves all.
func TestManyWatchers(t *testing.T) {
	const many = 1000
	w := newTown(t)
	w.watches("", "admin", "") // reads nothing
	var began, done sync.WaitGroup
	began.Add(many)
	failed := make(chan string, many)
	for range many {
		done.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			r, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.addr+Prefix+"/events?kinds=job", nil)
			r.Header.Set("Authorization", "Bearer admin")
			answer, err := http.DefaultTransport.RoundTrip(r)
			if err != nil || answer.StatusCode != http.StatusOK {
				began.Done()
				failed <- fmt.Sprint(answer, err)
				return
			}
			defer answer.Body.Close()
			s := newStream(t, answer.Body)
			s.find("ready")
			began.Done()
			if !s.reaches("round 99") {
				failed <- "not all was seen"
			}
		})
	}
	began.Wait()
	before := runtime.NumGoroutine()
	for i := range 100 {
		w.change(func(s *fleet.Snapshot) {
			s.Jobs["j1"] = fleet.Job{ID: "j1", State: fleet.JobRunning, Cause: fmt.Sprintf("round %d", i)}
		})
	}
	done.Wait()
	close(failed)
	for f := range failed {
		t.Fatal(f)
	}
	t.Logf("%d goroutines for %d watchers", before, many)
}

// TestFeed: a feed forgets what is superseded and what went long ago, and whoever may have missed something is reset.
func TestFeed(t *testing.T) {
	const most = 100
	f := newFeed()
	f.most = most
	now := map[thing][]byte{}
	for i := range 3 * most {
		now = map[thing][]byte{{"job", fmt.Sprint("j", i)}: []byte("{}"), {"host", "h"}: fmt.Appendf(nil, "%d", i)}
		f.takeRows(now)
	}
	if len(f.objects) > most+len(now)+1 || len(f.log) > oldEntries*(len(f.objects)+feedsMost)+4 {
		t.Errorf("%d objects and %d entries are kept", len(f.objects), len(f.log))
	}
	if f.resumed(f.epoch+"-1") != before || f.resumed(fmt.Sprintf("%s-%d", f.epoch, f.last)) != f.last || f.resumed(fmt.Sprintf("%s-%d", f.epoch, f.last+1)) != before {
		t.Error("a place is taken for another")
	}
	// A watcher that knows nothing gets what is there, though it changed before the floor.
	w := &watcher{feed: f}
	at, seen := int64(0), 0
	for floor := f.floor; ; {
		n := w.feed.since(at, floor, []string{"host"})
		if n.reset {
			t.Fatal("reset again")
		}
		seen += len(n.frames)
		if at = n.upTo; !n.more {
			break
		}
	}
	if seen != 1 {
		t.Errorf("%d events about one host", seen)
	}
}
