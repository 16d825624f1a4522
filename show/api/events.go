package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"pagurus/serve/wire"
)

// Limits of those who watch.
const (
	waitLimit  = 25 * time.Second // of waitForJob
	aliveEvery = 15 * time.Second // an event stream that is silent says that it is there
	stillEvery = 5 * time.Second  // whether the watcher is still known is looked at
	firstLimit = 15 * time.Second // for the first state
	pieceBytes = 256 << 10        // of events that are written at once
	againAfter = 1000             // milliseconds until a client connects again
)

// watchEvents sends what a caller may see as server-sent events: each thing when it changes, as the lists have it, with its
// kind as the event's name. What was removed is an event "gone" with its kind and ID. That a host was heard again is no change.
//
// A stream begins with "reset", which says that what the client knew no longer counts, then has everything, and then "ready".
// A client that was cut off says in Last-Event-ID what it has, and gets what changed since, and not all; if that is
// not known any more, after a change of the leader for example, it gets a reset. A client that reads slowly gets the newest of each
// thing, and never what is in between: nothing waits for it.
//
// In brief, hosts and guests are as in view.HostGlance and view.GuestGlance, and an event "rows" has many things: lists by kind.
func watchEvents(c *call) error {
	wanted, err := chosenKinds(c.r.URL.Query().Get("kinds"))
	if err != nil {
		return err
	}
	f, leave, err := c.p.feeds.join(sharing{c.by, &c.p.readings}, c.r.URL.Query().Get("brief") == "true")
	if err != nil {
		return err
	}
	defer leave()
	first, stop := context.WithTimeout(c.r.Context(), firstLimit)
	defer stop()
	select {
	case <-f.filled:
	case <-f.over:
		return &wire.Error{Status: wire.NotLeading, Reason: "the controller ends: try again"}
	case <-first.Done():
		return &wire.Error{Status: wire.NotLeading, Reason: "the controller does not know its state yet: try again in a few seconds"}
	}
	w := &watcher{call: c, feed: f, kinds: wanted, out: http.NewResponseController(c.w), packs: wire.TakesGzip(c.r)}
	c.w.Header().Set("Content-Type", "text/event-stream")
	c.w.Header().Set("Vary", "Accept-Encoding")
	if w.packs {
		c.w.Header().Set("Content-Encoding", "gzip")
		if _, err := c.w.Write(gzipHeader); err != nil {
			return nil // the client is gone
		}
	}
	w.at = f.resumed(c.r.Header.Get("Last-Event-ID"))
	w.followFeed()
	return nil
}

// watcher is one stream of events.
type watcher struct {
	*call
	feed  *feed
	kinds kinds
	out   *http.ResponseController
	packs bool
	at    int64 // the number of the last change that was sent; before: a beginning first
	floor int64 // of the feed at the last beginning
	ready bool
}

// before is the place of a watcher that knows nothing.
const before = -1

// followFeed writes until the client is gone, is not known any more, or the server ends.
func (w *watcher) followFeed() {
	alive, still := time.NewTicker(aliveEvery), time.NewTicker(stillEvery)
	defer alive.Stop()
	defer still.Stop()
	if !w.say([]byte(fmt.Sprintf("retry: %d\n\n", againAfter))) {
		return
	}
	for {
		changed, ok := w.catchUp()
		if !ok {
			return
		}
		select {
		case <-changed:
		case <-alive.C:
			if !w.say(w.feed.mark("", w.at)) {
				return
			}
		case <-still.C:
			if w.by.Still() != nil {
				return // it asks again and is told why
			}
		case <-w.feed.over:
			return
		case <-w.by.Over():
			return
		case <-w.r.Context().Done():
			return
		}
	}
}

// catchUp writes all changes so far. changed is closed by the next one. false: the client is gone.
func (w *watcher) catchUp() (changed <-chan struct{}, ok bool) {
	for {
		news := w.feed.since(w.at, w.floor, w.kinds)
		switch {
		case news.reset:
			if !w.beginStream() {
				return nil, false
			}
		case news.piece != nil:
			if !w.write(news.piece) {
				return nil, false
			}
			w.at = news.piece.upTo
		case !w.ready:
			w.ready = true
			return news.changed, w.say(w.feed.mark("ready", w.at))
		default:
			return news.changed, w.out.Flush() == nil
		}
	}
}

// beginStream writes everything.
func (w *watcher) beginStream() bool {
	if !w.say(w.feed.mark("reset", 0)) {
		return false
	}
	b := w.feed.beginning(w.kinds)
	for _, p := range b.pieces {
		if !w.write(p) {
			return false
		}
	}
	w.at, w.floor, w.ready = b.upTo, b.floor, false
	return true
}

// write sends a piece, with what follows it.
func (w *watcher) write(p *piece) bool {
	text := p.plain
	if w.packs && len(text) > 0 {
		text = p.pack()
	}
	_, err := w.w.Write(text)
	return err == nil
}

// say sends something at once.
func (w *watcher) say(text []byte) bool {
	if w.packs {
		text = deflate(text)
	}
	if _, err := w.w.Write(text); err != nil {
		return false
	}
	return w.out.Flush() == nil
}

// Kinds are the names of events about things.
var Kinds = []string{"job", "guest", "host", "move", "checkpoint", "policy"}

func kindList() string { return strings.Join(Kinds, ", ") }

// chosenKinds reads a list of kinds; an empty one: all.
func chosenKinds(text string) (kinds, error) {
	if text == "" {
		return kinds{all: true}, nil
	}
	some := strings.Split(text, ",")
	for _, kind := range some {
		if !slices.Contains(Kinds, kind) {
			return kinds{}, wrong("kinds has %q; there are %s", kind, kindList())
		}
	}
	slices.Sort(some)
	some = slices.Compact(some)
	return kinds{some: some, text: strings.Join(some, ",")}, nil
}
