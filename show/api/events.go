package api

import (
	"cmp"
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
// kind as the event's name. What was removed is an event "gone" with its kind and ID.
//
// A stream begins with "reset", which says that what the client knew no longer counts, then has everything, and then "ready".
// A client that was cut off says in Last-Event-ID what it has, and gets what changed since, and not all; if that is
// not known any more, after a change of the leader for example, it gets a reset. A client that reads slowly gets the newest of each
// thing, and never what is in between: nothing waits for it.
func watchEvents(c *call) error {
	kinds, err := chosenKinds(c.r.URL.Query().Get("kinds"))
	if err != nil {
		return err
	}
	f, leave, err := c.p.feeds.join(c.by)
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
	c.w.Header().Set("Content-Type", "text/event-stream")
	w := &watcher{call: c, feed: f, kinds: kinds, out: http.NewResponseController(c.w)}
	w.at = f.resumed(c.r.Header.Get("Last-Event-ID"))
	w.followFeed()
	return nil
}

// watcher is one stream of events.
type watcher struct {
	*call
	feed  *feed
	kinds []string
	out   *http.ResponseController
	at    int64 // the number of the last change that was sent; before: reset first
	floor int64 // of the feed at the last reset
	ready bool
}

// before is the place of a watcher that knows nothing.
const before = -1

// followFeed writes until the client is gone, is not known any more, or the server ends.
func (w *watcher) followFeed() {
	alive, still := time.NewTicker(aliveEvery), time.NewTicker(stillEvery)
	defer alive.Stop()
	defer still.Stop()
	if !w.write([]byte(fmt.Sprintf("retry: %d\n\n", againAfter))) {
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
			if !w.write(w.feed.mark("", w.at)) {
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
		if news.reset {
			w.at, w.floor, w.ready = 0, news.floor, false
			if !w.write(w.feed.mark("reset", 0)) {
				return nil, false
			}
			continue
		}
		for _, frame := range news.frames {
			if _, err := w.w.Write(frame); err != nil {
				return nil, false
			}
		}
		w.at = news.upTo
		if news.more {
			continue
		}
		if !w.ready {
			w.ready = true
			return news.changed, w.write(w.feed.mark("ready", w.at))
		}
		return news.changed, len(news.frames) == 0 || w.out.Flush() == nil
	}
}

// write sends something at once.
func (w *watcher) write(b []byte) bool {
	if _, err := w.w.Write(b); err != nil {
		return false
	}
	return w.out.Flush() == nil
}

// Kinds are the names of events about things.
var Kinds = []string{"job", "guest", "host", "move", "checkpoint", "policy"}

func kindList() string { return strings.Join(Kinds, ", ") }

// chosenKinds reads a list of kinds; nil: all.
func chosenKinds(text string) ([]string, error) {
	if text == "" {
		return nil, nil
	}
	kinds := strings.Split(text, ",")
	for _, kind := range kinds {
		if !slices.Contains(Kinds, kind) {
			return nil, wrong("kinds has %q; there are %s", kind, kindList())
		}
	}
	return kinds, nil
}

// sorted orders IDs, so that a stream is the same each time.
func sorted(all map[thing][]byte) []thing {
	out := make([]thing, 0, len(all))
	for t := range all {
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b thing) int { return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.id, b.id)) })
	return out
}
