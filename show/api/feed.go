package api

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"iter"
	"runtime"
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
	feedsMost  = 128                    // of callers who see different things; then one gives way
	linger     = 2 * time.Minute        // a feed without watchers, for those who come back
	feedEvery  = 200 * time.Millisecond // at the least between two looks at the cluster
	feedShare  = 4                      // a look is followed by a rest that is so many times longer,
	feedRest   = time.Second            // but not longer than this: on a busy machine a look takes long because others work
	goneMost   = 10_000                 // things that were removed, of which a feed still knows
	oldEntries = 4                      // the log is written again when it is so many times longer than it has to be
)

// audience are watchers who are sent the same.
type audience struct {
	fleet.Caller
	brief bool
}

// feeds are what watchers are sent, once for all who see the same: 1,000 watchers cost one look at the cluster, and a write each.
type feeds struct {
	mu    sync.Mutex
	by    map[audience]*feed
	begun int // feeds so far
	most  int // at once

	looking chan struct{} // has those that look: however many there are, they leave half of the processors to the rest
}

// lookers has room for as many feeds as look at once: half of the processors.
func lookers(processors int) chan struct{} { return make(chan struct{}, max(1, processors/2)) }

// join finds the feed of a caller, or begins one.
func (all *feeds) join(by sharing, brief bool) (f *feed, leave func(), err error) {
	who := audience{wire.Audience(by.Caller()), brief}
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
		ctx, cancel := context.WithCancel(context.Background())
		snaps, err := by.Watch(ctx)
		if err != nil {
			cancel()
			return nil, nil, err
		}
		if len(all.by) >= all.most {
			all.giveWay()
		}
		f = newFeed(brief)
		if all.looking == nil {
			all.looking = lookers(runtime.GOMAXPROCS(0))
		}
		f.looking = all.looking
		all.begun++
		f.number = all.begun
		begun := f
		context.AfterFunc(ctx, func() { all.drop(who, begun) })
		f.cancel = cancel
		f.read = func(s fleet.Snapshot) view.Cluster { return by.readings.read(who.Caller, s) }
		if all.by == nil {
			all.by = map[audience]*feed{}
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

// giveWay ends a feed for a new one: one that nobody watches, or else the one that began first. Its watchers ask again after a second, as they do when
// they were cut off, so that each has their turn and nobody is locked out. That of administrators stays: it is one for all of them.
func (all *feeds) giveWay() {
	var who audience
	var first *feed
	for is, f := range all.by {
		better := first == nil || (f.watchers == 0) != (first.watchers == 0) && f.watchers == 0 || (f.watchers == 0) == (first.watchers == 0) && f.number < first.number
		if better && (!is.Admin || f.watchers == 0) {
			who, first = is, f
		}
	}
	if first != nil {
		delete(all.by, who)
		first.cancel()
	}
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
func (all *feeds) drop(who audience, f *feed) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.by[who] == f {
		delete(all.by, who)
	}
}

// object is the newest row of a thing.
type object struct {
	at  int64  // the number of the change
	row []byte // JSON; nil: it is gone
}

// entry says that a change was about a thing. Only if the thing has not changed since it counts.
type entry struct {
	at int64
	of thing
}

// feed has the newest row of each thing, and the order in which they changed. A watcher is a place in that order: what is
// kept does not grow with watchers that read slowly, and one that was cut off goes on at its place.
type feed struct {
	epoch  string // a place counts in one feed only
	brief  bool   // it has things at a glance, and many in one event
	looks  *looks // of run alone
	read   func(fleet.Snapshot) view.Cluster
	filled chan struct{}
	over   chan struct{}
	cancel func()

	looking chan struct{} // has those that look
	number  int           // of those that began

	watchers int         // guarded by feeds.mu
	idle     *time.Timer // likewise

	mu      sync.RWMutex
	last    int64 // the number of the last change
	floor   int64 // who has less than this may have missed that something went
	objects map[thing]object
	log     []entry // by number
	gone    int     // objects without a row
	most    int     // of them
	changed chan struct{}

	shared shared // what was written for watchers
}

func newFeed(brief bool) *feed {
	return &feed{
		epoch: rand.Text(), brief: brief, looks: newLooks(brief), filled: make(chan struct{}), over: make(chan struct{}), changed: make(chan struct{}),
		most: goneMost, objects: map[thing]object{}, shared: shared{pieces: map[place]*piece{}, beginnings: map[string]*beginning{}},
	}
}

// run takes snapshots until ctx or the server ends.
func (f *feed) run(ctx context.Context, snaps iter.Seq[fleet.Snapshot], over <-chan struct{}) {
	defer close(f.over)
	defer f.cancel()
	first := true
	for s := range snaps {
		f.looking <- struct{}{}
		began := time.Now()
		f.takeChanges(f.looks.changes(s, f.read))
		<-f.looking
		if first {
			close(f.filled)
			first = false
		}
		rest := time.NewTimer(max(feedEvery, min(feedRest, feedShare*time.Since(began))))
		select {
		case <-rest.C:
		case <-over:
			rest.Stop()
			return
		case <-ctx.Done():
			rest.Stop()
			return
		}
	}
}

// takeChanges numbers changes.
func (f *feed) takeChanges(changes []change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.last
	for _, c := range changes {
		old, had := f.objects[c.of]
		if had && bytes.Equal(old.row, c.row) {
			continue
		}
		if had && old.row == nil {
			f.gone--
		}
		if c.row == nil {
			f.gone++
		}
		f.last++
		f.objects[c.of] = object{f.last, c.row}
		f.log = append(f.log, entry{f.last, c.of})
	}
	if f.last == before {
		return
	}
	f.tidy()
	f.shared.forget()
	close(f.changed)
	f.changed = make(chan struct{})
}

// tidy forgets what was removed long ago, and entries that no longer count.
func (f *feed) tidy() {
	if f.gone <= f.most && len(f.log) <= oldEntries*(len(f.objects)+feedsMost) {
		return
	}
	kept := f.log[:0:0]
	for _, e := range f.log {
		o, known := f.objects[e.of]
		switch {
		case !known || o.at != e.at:
		case o.row == nil && f.gone > f.most/2:
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
	piece   *piece // nil: nothing
	reset   bool   // the place is too old, or none: a beginning comes first
	changed <-chan struct{}
}

// since gives some of what follows a place, of some kinds. floor is what the feed's was at the watcher's beginning: what went
// before that it never had.
func (f *feed) since(at, floor int64, of kinds) news {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if at == before || at < f.floor && floor < f.floor {
		return news{reset: true}
	}
	if at == f.last {
		return news{changed: f.changed}
	}
	return news{piece: f.shared.piece(place{at, of.text}, func() *piece { return f.write(at, of, false) }), changed: f.changed}
}

// write writes some of what follows a place. Watchers must be locked out of changes.
func (f *feed) write(at int64, of kinds, first bool) *piece {
	s := scribe{feed: f}
	for i := sort.Search(len(f.log), func(i int) bool { return f.log[i].at > at }); i < len(f.log); i++ {
		e := f.log[i]
		o, known := f.objects[e.of]
		if !known || o.at != e.at || !of.has(e.of.kind) || first && o.row == nil {
			continue
		}
		if s.size > 0 && s.size+len(o.row) > pieceBytes {
			return &piece{plain: s.text(), upTo: e.at - 1, more: true}
		}
		s.add(e, o)
	}
	return &piece{plain: s.text(), upTo: f.last}
}

// mark is an event about the stream itself; an empty one only says what the client has.
func (f *feed) mark(event string, at int64) []byte {
	if event == "" {
		return fmt.Appendf(nil, "id: %s-%d\n\n", f.epoch, max(at, 0))
	}
	return fmt.Appendf(nil, "id: %s-%d\nevent: %s\ndata: {}\n\n", f.epoch, max(at, 0), event)
}

// kinds are the kinds of things that a watcher wants.
type kinds struct {
	all  bool
	some []string // in order
	text string   // of some
}

func (k kinds) has(kind string) bool { return k.all || slices.Contains(k.some, kind) }

// goneRow is what is told of a thing that was removed.
func goneRow(of thing) []byte {
	text, _ := json.Marshal(struct { // strings can always be encoded
		Kind string `json:"kind"`
		ID   string `json:"id"`
	}{of.kind, of.id})
	return text
}
