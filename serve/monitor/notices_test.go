package monitor

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pagurus/fleet"
)

// told is a source that a test speaks for.
type told struct {
	name string
	tell chan func([]fleet.EndNotice, error)
}

func (s told) Name() string { return s.name }
func (s told) Watch(ctx context.Context, tell func([]fleet.EndNotice, error), _ func() bool) {
	s.tell <- tell
	<-ctx.Done()
}

// Nothing is said before all sources have been asked, or have had their time; what stood counts on while a source cannot look; the urgent ones are first.
func TestNotices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := told{"A", make(chan func([]fleet.EndNotice, error), 1)}, told{"B", make(chan func([]fleet.EndNotice, error), 1)}
		n := NewNotices([]fleet.EndNoticeKind{fleet.AWSNotice}, []NoticeSource{a, b}, slog.New(slog.DiscardHandler))
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go n.Run(ctx, func() bool { return true })
		sayA, sayB := <-a.tell, <-b.tell
		if n.Seen() != nil {
			t.Error("it speaks too early")
		}
		late := fleet.EndNotice{Kind: fleet.ShutdownNotice, ID: "1", Says: "later", At: time.Now().Add(time.Hour)}
		soon := fleet.EndNotice{Kind: fleet.AWSNotice, ID: "2", Says: "soon", At: time.Now().Add(time.Minute)}
		sayA([]fleet.EndNotice{late}, nil)
		if n.Seen() != nil {
			t.Error("one source is missing")
		}
		time.Sleep(firstNotices)
		if f := n.Seen(); f == nil || len(f.Pending) != 1 {
			t.Errorf("it waits for ever: %+v", f)
		}
		sayB([]fleet.EndNotice{soon}, nil)
		<-n.News()
		if f := n.Seen(); len(f.Pending) != 2 || f.Pending[0].ID != "2" || f.SaidAt.IsZero() {
			t.Errorf("%+v", f)
		}
		sayB(nil, errors.New("no answer"))
		if f := n.Seen(); len(f.Pending) != 2 || len(f.Blind) != 1 || !strings.Contains(f.Blind[0], "B: no answer") {
			t.Errorf("a source that cannot look: %+v", f)
		}
		sayB(nil, nil)
		if f := n.Seen(); len(f.Pending) != 1 || len(f.Blind) != 0 {
			t.Errorf("withdrawn: %+v", f)
		}
	})
	var none *Notices
	none.Run(t.Context(), nil)
	if none.Seen() != nil || none.News() != nil {
		t.Error("nobody looks, and somebody speaks")
	}
}
