package api

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"pagurus/fleet"
	"pagurus/serve/wire"
	"pagurus/show/view"
)

// Limits of feeds.
const (
	feedsMost  = 64                     // of callers who see different things
	linger     = 2 * time.Minute        // a feed without watchers, for those who come back
	feedEvery  = 200 * time.Millisecond // at the least between two looks at the cluster
	feedShare  = 4                      // a look is followed by a rest that is so many times longer
	goneMost   = 10_000                 // things that were removed, of which a feed still knows
	oldEntries = 4                      // the log is written again when it is so many times longer than it has to be
)

// feeds are what watchers are sent, once for all who see the same: 1,000 watchers cost one look at the cluster, and a write each.
type feeds struct {
	mu sync.Mutex
	by map[fleet.Caller]*feed
}

// join finds the feed of a caller, or begins one.
func (all *feeds) join(by *wire.Acting) (f *feed, leave func(), err error) {
	who := by.Caller()
	if who.Admin {
		who = fleet.Caller{Admin: true} // they all see everything
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	f = all.by[who]
	if f != nil {
		select {
		case <-f.over:
			f = nil
		default:
		}
	}
	if f == nil {
		if len(all.by) >= feedsMost {
			return nil, nil, &wire.Error{Status: http.StatusServiceUnavailable, Reason: fmt.Sprintf("%d users watch events already: try again later, or ask for the lists", feedsMost)}
		}
		ctx, cancel := context.WithCancel(context.Background())
		snaps, err := by.Watch(ctx)
		if err != nil {
			cancel()
			return nil, nil, err
		}
		context.AfterFunc(ctx, func() { all.drop(who, f) })
		f = newFeed()
		f.cancel = cancel
		if all.by == nil {
			all.by = map[fleet.Caller]*feed{}
		}
		all.by[who] = f
		go f.run(ctx, snaps, by.Over())
	}
	f.watchers++
	if f.idle != nil {
		f.idle.Stop()
	}
	return f, func() { all.leave(f) }, nil
}

// leave ends a feed some time after its last watcher has left.
func (all *feeds) leave(f *feed) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if f.watchers--; f.watchers > 0 {
		return
	}
	f.idle = time.AfterFunc(linger, func() {
		all.mu.Lock()
		defer all.mu.Unlock()
		if f.watchers == 0 {
			f.cancel()
		}
	})
}

// drop forgets a feed that has ended.
func (all *feeds) drop(who fleet.Caller, f *feed) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.by[who] == f {
		delete(all.by, who)
	}
}

// thing is what an event is about.
type thing struct{ kind, id string }

// object is the newest event about a thing.
type object struct {
	at    int64  // the number of the change
	data  []byte // JSON; nil: it is gone
	frame []byte // as it is sent
}

// entry says that a change was about a thing. Only if the thing has not changed since it counts.
type entry struct {
	at int64
	of thing
}

// feed has the newest event about each thing, and the order in which they changed. A watcher is a place in that order: what is
// kept does not grow with watchers that read slowly, and one that was cut off goes on at its place.
type feed struct {
	epoch  string // a place counts in one feed only
	filled chan struct{}
	over   chan struct{}
	cancel func()

	watchers int         // guarded by feeds.mu
	idle     *time.Timer // likewise

	mu      sync.RWMutex
	last    int64 // the number of the last change
	floor   int64 // who has less than this may have missed that something went
	objects map[thing]*object
	log     []entry // by number
	gone    int     // objects without data
	most    int     // of them
	changed chan struct{}
}

func newFeed() *feed {
	return &feed{epoch: rand.Text(), filled: make(chan struct{}), over: make(chan struct{}), changed: make(chan struct{}), most: goneMost, objects: map[thing]*object{}}
}

// run takes snapshots until ctx or the server ends.
func (f *feed) run(ctx context.Context, snaps <-chan fleet.Snapshot, over <-chan struct{}) {
	defer close(f.over)
	defer f.cancel()
	first := true
	for {
		select {
		case s, more := <-snaps:
			if !more {
				return
			}
			began := time.Now()
			f.takeRows(rows(view.Read(s)))
			if first {
				close(f.filled)
				first = false
			}
			rest := time.NewTimer(max(feedEvery, feedShare*time.Since(began)))
			select {
			case <-rest.C:
			case <-over:
				rest.Stop()
				return
			}
		case <-over:
			return
		}
	}
}

// rows is everything that is watched, as the lists have it.
func rows(c view.Cluster) map[thing][]byte {
	out := make(map[thing][]byte, len(c.Jobs)+len(c.Guests)+len(c.Hosts)+len(c.Moves)+len(c.Checkpoints)+1)
	add := func(kind, id string, row any) {
		if text, err := json.Marshal(row); err == nil { // all rows can be, as the lists' test shows
			out[thing{kind, id}] = text
		}
	}
	for _, row := range c.Jobs {
		add("job", string(row.ID), row)
	}
	for _, row := range c.Guests {
		add("guest", string(row.ID), row)
	}
	for _, row := range c.Hosts {
		add("host", string(row.ID), row)
	}
	for _, row := range c.Moves {
		add("move", string(row.ID), row)
	}
	for _, row := range c.Checkpoints {
		add("checkpoint", string(row.ID), row)
	}
	if p, there := policy(c.Rules, ""); there {
		add("policy", "", p)
	}
	return out
}

// takeRows compares with what was, and numbers what changed.
func (f *feed) takeRows(now map[thing][]byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.last
	for _, t := range sorted(now) {
		old := f.objects[t]
		if old != nil && bytes.Equal(old.data, now[t]) {
			continue
		}
		if old != nil && old.data == nil {
			f.gone--
		}
		f.put(t, t.kind, now[t], now[t])
	}
	for t, old := range f.objects {
		if _, there := now[t]; !there && old.data != nil {
			f.gone++
			text, _ := json.Marshal(struct { // strings can always be encoded
				Kind string `json:"kind"`
				ID   string `json:"id"`
			}{t.kind, t.id})
			f.put(t, "gone", text, nil)
		}
	}
	if f.last == before {
		return
	}
	f.tidy()
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *feed) put(t thing, event string, text, data []byte) {
	f.last++
	f.objects[t] = &object{at: f.last, data: data, frame: fmt.Appendf(nil, "id: %s-%d\nevent: %s\ndata: %s\n\n", f.epoch, f.last, event, text)}
	f.log = append(f.log, entry{f.last, t})
}

// tidy forgets what was removed long ago, and entries that no longer count.
func (f *feed) tidy() {
	if f.gone <= f.most && len(f.log) <= oldEntries*(len(f.objects)+feedsMost) {
		return
	}
	kept := f.log[:0:0]
	for _, e := range f.log {
		o := f.objects[e.of]
		switch {
		case o == nil || o.at != e.at:
		case o.data == nil && f.gone > f.most/2:
			f.gone--
			f.floor = e.at
			delete(f.objects, e.of)
		default:
			kept = append(kept, e)
		}
	}
	f.log = kept
}

// resumed is the place that a client says it has come to, or before.
func (f *feed) resumed(said string) int64 {
	epoch, number, _ := strings.Cut(said, "-")
	at, err := strconv.ParseInt(number, 10, 64)
	f.mu.RLock()
	defer f.mu.RUnlock()
	if err != nil || epoch != f.epoch || at < f.floor || at > f.last || at < 0 {
		return before
	}
	return at
}

// news is what follows a place.
type news struct {
	frames  [][]byte
	upTo    int64
	more    bool // it is not all
	reset   bool // the place is too old, or none
	floor   int64
	changed <-chan struct{}
}

// since gives some of what follows a place, of some kinds. floor is what the feed's was when the watcher was reset: what went
// before that it never had.
func (f *feed) since(at, floor int64, kinds []string) news {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if at == before || at < f.floor && floor < f.floor {
		return news{reset: true, floor: f.floor}
	}
	n := news{upTo: f.last, changed: f.changed}
	size := 0
	for i := sort.Search(len(f.log), func(i int) bool { return f.log[i].at > at }); i < len(f.log); i++ {
		e := f.log[i]
		o := f.objects[e.of]
		if o == nil || o.at != e.at || kinds != nil && !slices.Contains(kinds, e.of.kind) || at == 0 && o.data == nil {
			continue
		}
		if size += len(o.frame); size > pieceBytes && len(n.frames) > 0 {
			n.upTo, n.more = e.at-1, true
			return n
		}
		n.frames = append(n.frames, o.frame)
	}
	return n
}

// mark is an event about the stream itself; an empty one only says what the client has.
func (f *feed) mark(event string, at int64) []byte {
	if event == "" {
		return fmt.Appendf(nil, "id: %s-%d\n\n", f.epoch, max(at, 0))
	}
	return fmt.Appendf(nil, "id: %s-%d\nevent: %s\ndata: {}\n\n", f.epoch, max(at, 0), event)
}
