package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pagurus/fleet"
)

func (d *memoryDriver) FetchRemaining(ctx context.Context, g fleet.GuestID) error {
	return d.call(ctx, "fetch", g)
}

func (d *memoryDriver) Pushed(ctx context.Context, g fleet.GuestID) (fleet.Progress, error) {
	if err := d.call(ctx, "pushed", g); err != nil {
		return fleet.Progress{}, err
	}
	if d.guest(g) == nil {
		return fleet.Progress{}, ErrAbsent
	}
	return fleet.Progress{TotalBytes: 10, PostCopyBytes: int64(d.count("pushed " + string(g)))}, nil
}

func postCopyTask(verb fleet.Verb, gen uint64) fleet.Task {
	t := task(verb, gen)
	t.Order.Migration, t.Order.Peer, t.Limits.Mode = "m1.j1g0", "host2", fleet.PostCopy
	return t
}

// After post-copy the source reports the progress of memory until retire, and then the cost.
func TestSourceTellsWhatFollowsTheGuest(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 1))
		r.do(postCopyTask(fleet.Copy, 1))
		r.do(postCopyTask(fleet.Switch, 2))
		time.Sleep(5 * time.Second)
		if p := r.facts().Copies["m1.j1g0"]; p.PostCopyBytes < 2 {
			t.Errorf("facts %+v", r.facts())
		}
		if rep := r.do(postCopyTask(fleet.Retire, 2)); rep.Cost == nil || rep.Cost.PostCopyBytes < 3 {
			t.Errorf("it cost %+v", rep.Cost)
		}
		time.Sleep(5 * time.Second)
		if p, told := r.facts().Copies["m1.j1g0"]; told {
			t.Errorf("still tells of %+v", p)
		}
		again := postCopyTask(fleet.Retire, 2)
		again.Order.Attempt = 1
		if rep := r.do(again); rep.Cost != nil {
			t.Errorf("what is gone cost %+v", rep.Cost)
		}
	})
}

// A source whose guest dies before all memory is sent does not count as moving without end.
// Otherwise guests would never be sampled again.
func TestSourceThatDiesMovesNothing(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 1))
		r.do(postCopyTask(fleet.Copy, 1))
		r.do(postCopyTask(fleet.Switch, 2))
		time.Sleep(2 * time.Second)
		if !r.a.moving() {
			t.Error("it does not move")
		}
		r.d.end("j1g0")
		time.Sleep(2 * time.Second)
		if r.a.moving() || len(r.facts().Copies) > 0 {
			t.Errorf("still moves: %+v", r.facts().Copies)
		}
	})
}

// Only memory that certainly never comes counts as failed.
func TestFetchSaysWhatItKnows(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(postCopyTask(fleet.Receive, 1))
		r.do(postCopyTask(fleet.Activate, 2))
		fetch := postCopyTask(fleet.Fetch, 2)
		var says error
		r.hook(func(c string) error {
			if c == "fetch j1g0" {
				return says
			}
			return nil
		})
		says = fmt.Errorf("qemu does not answer: %w", ErrUnsure)
		r.send(fetch)
		r.expect(fetch.Order, fleet.Unknown)
		says = nil
		fetch.Order.Attempt = 1
		r.do(fetch)
		fetch.Order.Gen, fetch.Order.Attempt = 3, 0
		fetch.Guest.Gen = 3
		says = errors.New("the line broke")
		r.send(fetch)
		if rep := r.expect(fetch.Order, fleet.Failed); !strings.Contains(rep.Cause, "from host2 the remaining memory of guest j1g0") {
			t.Errorf("cause %q", rep.Cause)
		}
	})
}

// An agent that ends during a fetch reports nothing; the next one gets the order again.
func TestFetchOutlivesTheAgent(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(postCopyTask(fleet.Receive, 1))
		r.do(postCopyTask(fleet.Activate, 2))
		r.block("fetch j1g0")
		fetch := postCopyTask(fleet.Fetch, 2)
		r.send(fetch)
		synctest.Wait()
		r.stop()
		r.block("nothing")
		r.start()
		r.do(fetch)
	})
}
