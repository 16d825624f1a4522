package api

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/show/view"
)

// TestEvents: a stream has everything, then what changes; one that was cut goes on where it was.
func TestEvents(t *testing.T) {
	w := newTown(t)
	s := w.watches("", "admin", "")
	all := s.until("ready")
	if len(all) != 5 || all[0].name != "reset" || idOf(t, all[1]) != "host1" || all[1].name != "host" || idOf(t, all[2]) != "host2" || all[3].name != "policy" {
		t.Fatalf("%+v", all)
	}
	w.Change(func(s *fleet.Snapshot) { s.Jobs["j1"] = fleet.Job{ID: "j1", State: fleet.JobRunning} })
	last, _ := s.next()
	if last.name != "job" || idOf(t, last) != "j1" {
		t.Fatalf("%+v", last)
	}
	s.stop()
	w.Change(func(s *fleet.Snapshot) {
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
	w.members.Remove("grace")
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
		w.Change(func(s *fleet.Snapshot) {
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
	f := newFeed(false)
	f.most = most
	for i := range 3 * most {
		f.takeChanges([]change{{thing{"host", "h"}, fmt.Appendf(nil, "%d", i)}, {thing{"job", fmt.Sprint("j", i)}, []byte("{}")}, {of: thing{"job", fmt.Sprint("j", i-1)}}})
	}
	if len(f.objects) > most+4 || len(f.log) > oldEntries*(len(f.objects)+feedsMost)+4 {
		t.Errorf("%d objects and %d entries are kept", len(f.objects), len(f.log))
	}
	if f.resumed(f.epoch+"-1") != before || f.resumed(fmt.Sprintf("%s-%d", f.epoch, f.last)) != f.last || f.resumed(fmt.Sprintf("%s-%d", f.epoch, f.last+1)) != before {
		t.Error("a place is taken for another")
	}
	// A watcher that knows nothing gets what is there, though it changed before the floor, and is not reset again.
	hosts, err := chosenKinds("host")
	if err != nil {
		t.Fatal(err)
	}
	b := f.beginning(hosts)
	if text := string(b.pieces[0].plain); len(b.pieces) != 1 || strings.Count(text, "data: ") != 1 || !strings.Contains(text, "data: 299") {
		t.Errorf("the beginning is %q", text)
	}
	if n := f.since(b.upTo, b.floor, hosts); n.reset || n.piece != nil {
		t.Errorf("after the beginning: %+v", n)
	}
}

// TestSlowWatchers: what is kept for watchers does not grow with those who are behind, each at a place of its own; a beginning that is
// not old is given again, and who gets it misses nothing.
func TestSlowWatchers(t *testing.T) {
	f := newFeed(true)
	all, _ := chosenKinds("")
	var many []change
	for i := range 5000 {
		many = append(many, change{thing{"host", fmt.Sprint("h", i)}, fmt.Appendf(nil, `{"id":"h%d","state":"up"}`, i)})
	}
	f.takeChanges(many)
	first := f.beginning(all)
	for round := range 900 {
		f.takeChanges([]change{{thing{"host", "h7"}, fmt.Appendf(nil, `{"id":"h7","round":%d}`, round)}})
		for behind := range 200 {
			if n := f.since(f.last-int64(behind)-1, 0, all); n.piece == nil {
				t.Fatal("there is nothing after an earlier place")
			}
		}
		if len(f.shared.pieces) > sharedMost {
			t.Fatalf("%d pieces are kept", len(f.shared.pieces))
		}
	}
	if f.beginning(all) != first {
		t.Error("a beginning was written again after a few changes")
	}
	n := f.since(first.upTo, first.floor, all)
	if text := string(n.piece.plain); !strings.Contains(text, `"host":[{"id":"h7","round":899}]`) || n.piece.upTo != f.last {
		t.Errorf("after the beginning comes %s", text)
	}
	for i := range many {
		many[i].row = fmt.Appendf(nil, `{"id":"h%d","state":"draining"}`, i)
	}
	f.takeChanges(many)
	if f.beginning(all) == first || len(f.shared.beginnings) != 1 {
		t.Error("a beginning was not written again after many changes")
	}
}

// TestBrief: in brief, and compressed, watchers are told the same of hosts and guests, without what an agent says each second.
func TestBrief(t *testing.T) {
	w := newTown(t)
	w.Change(func(s *fleet.Snapshot) {
		s.Guests = map[fleet.GuestID]fleet.Guest{"j1g0": {ID: "j1g0", Job: "j1", Home: "host1", State: fleet.GuestRunning, Need: fleet.Resources{CPUs: 1, MemoryBytes: 1 << 30}}}
		h := s.Hosts["host1"]
		h.Facts.Capacity, h.Facts.LoadCPUs = fleet.Resources{CPUs: 8, MemoryBytes: 4 << 30}, 1
		s.Hosts["host1"] = h
	})
	s := w.watches("?brief=true", "admin", "") // the client asks for gzip by itself, and unpacks it
	all := s.until("ready")
	if len(all) != 3 || all[0].name != "reset" || all[1].name != "rows" {
		t.Fatalf("%+v", all)
	}
	var rows struct {
		Host  []view.HostGlance
		Guest []view.GuestGlance
	}
	if err := json.Unmarshal([]byte(all[1].data), &rows); err != nil {
		t.Fatal(err)
	}
	if len(rows.Host) != 2 || rows.Host[0].ID != "host1" || rows.Host[0].FreeBytes != 3<<30 || rows.Host[0].LoadCPUs != 1 || len(rows.Guest) != 1 || rows.Guest[0].Home != "host1" {
		t.Errorf("%+v", rows)
	}
	hear := func(load float64, state fleet.HostState) {
		w.Change(func(s *fleet.Snapshot) {
			h := s.Hosts["host1"]
			h.Facts.LoadCPUs, h.Facts.SeenAt, h.State = load, time.Now(), state
			s.Hosts["host1"] = h
		})
	}
	hear(1.2, fleet.HostUp) // is near enough
	time.Sleep(2 * feedEvery)
	hear(1.3, fleet.HostDraining)
	if e, _ := s.next(); !strings.Contains(e.data, "draining") || !strings.Contains(e.data, `"load_cpus":1,`) {
		t.Errorf("%+v", e)
	}
	hear(2, fleet.HostDraining)
	if e, _ := s.next(); !strings.Contains(e.data, `"load_cpus":2,`) {
		t.Errorf("%+v", e)
	}
	w.Change(func(s *fleet.Snapshot) { s.Guests = map[fleet.GuestID]fleet.Guest{} })
	if e, _ := s.next(); !strings.Contains(e.data, `"gone":[{"kind":"guest","id":"j1g0"}]`) {
		t.Errorf("%+v", e)
	}
}

// TestDeflate: blocks that were compressed alone, or not at all, follow each other in one stream.
func TestDeflate(t *testing.T) {
	parts := []string{"id: 1\n\n", strings.Repeat("many hosts ", 20_000), "", strings.Repeat("x", packLeast-1), strings.Repeat("more ", 9000)}
	stream := bytes.Clone(gzipHeader)
	for _, p := range parts {
		stream = append(stream, deflate([]byte(p))...)
	}
	r, err := gzip.NewReader(bytes.NewReader(stream))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); !errors.Is(err, io.ErrUnexpectedEOF) || string(got) != strings.Join(parts, "") {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}
