package monitor

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"time"

	"pagurus/fleet"
)

// NoticeSource looks for notices that this host goes away.
type NoticeSource interface {
	// Name is what it asks, for people.
	Name() string
	// Watch looks until ctx ends. It tells what stands as soon as it knows, and when that changes; with an error, that it is unknown.
	// empty reports whether the host has no guests.
	Watch(ctx context.Context, tell func([]fleet.EndNotice, error), empty func() bool)
}

// firstNotices is how long at most nothing is said of notices, so that all sources have been asked.
const firstNotices = 15 * time.Second

// Notices collects what sources say. Run must be called once; other methods at any time. A nil Notices does nothing.
type Notices struct {
	kinds   []fleet.EndNoticeKind
	sources []NoticeSource
	log     *slog.Logger

	mu    sync.Mutex
	begun time.Time
	said  []said // by source
	news  chan struct{}
}

// said is what a source has told.
type said struct {
	known   bool
	pending []fleet.EndNotice
	blind   string
}

// NewNotices makes a Notices and starts nothing.
func NewNotices(kinds []fleet.EndNoticeKind, sources []NoticeSource, log *slog.Logger) *Notices {
	return &Notices{kinds: kinds, sources: sources, log: log, said: make([]said, len(sources)), news: make(chan struct{}, 1)}
}

// News receives when Seen has changed.
func (n *Notices) News() <-chan struct{} {
	if n == nil {
		return nil
	}
	return n.news
}

// Run watches until ctx ends.
func (n *Notices) Run(ctx context.Context, empty func() bool) {
	if n == nil {
		return
	}
	n.mu.Lock()
	n.begun = time.Now()
	n.mu.Unlock()
	var all sync.WaitGroup
	for i, s := range n.sources {
		all.Go(func() {
			s.Watch(ctx, func(pending []fleet.EndNotice, err error) { n.tell(i, pending, err) }, empty)
		})
	}
	all.Wait()
}

// tell notes what a source says. What stood before counts on when it cannot say.
func (n *Notices) tell(i int, pending []fleet.EndNotice, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	before := n.said[i]
	is := said{known: true, pending: slices.Clone(pending)}
	if err != nil {
		is.pending, is.blind = before.pending, fmt.Sprintf("%s: %s", n.sources[i].Name(), err)
	}
	if reflect.DeepEqual(before, is) {
		return
	}
	n.said[i] = is
	if is.blind != before.blind && is.blind != "" {
		n.log.Warn("notices cannot be seen", "cause", is.blind)
	}
	for _, p := range is.pending {
		if !slices.ContainsFunc(before.pending, func(b fleet.EndNotice) bool { return b.Key() == p.Key() }) {
			n.log.Warn("this host goes away", "by", p.Kind, "what", p.Says, "at", p.At)
		}
	}
	for _, p := range before.pending {
		if !slices.ContainsFunc(is.pending, func(b fleet.EndNotice) bool { return b.Key() == p.Key() }) {
			n.log.Warn("a notice was withdrawn", "by", p.Kind, "what", p.Says, "at", p.At)
		}
	}
	select {
	case n.news <- struct{}{}:
	default:
	}
}

// Seen is what the controller is told; nil: nobody looks, or not all is known yet.
func (n *Notices) Seen() *fleet.EndNotices {
	if n == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	out := fleet.EndNotices{Watched: n.kinds, SaidAt: now.UTC().Round(0)}
	for _, s := range n.said {
		if !s.known && (n.begun.IsZero() || now.Sub(n.begun) < firstNotices) {
			return nil
		}
		for _, p := range s.pending {
			p.At, p.Since = p.At.UTC().Round(0), p.Since.UTC().Round(0)
			out.Pending = append(out.Pending, p)
		}
		if s.blind != "" {
			out.Blind = append(out.Blind, s.blind)
		}
	}
	slices.SortStableFunc(out.Pending, func(a, b fleet.EndNotice) int { return a.At.Compare(b.At) })
	return &out
}
