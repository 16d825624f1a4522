package agent

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"pagurus/fleet"
)

// The main loop says that it lives, without a controller's word, too, and says nothing when
// it hangs.
func TestLoopSaysThatItLives(t *testing.T) {
	var signs atomic.Int64
	var hangs atomic.Bool
	hung, release := make(chan struct{}, 1), make(chan struct{})
	n := &memoryNetwork{}
	c := newController()
	a := New(Config{
		Host: "host1", Run: t.TempDir(), Drivers: map[fleet.Kind]Driver{}, Overlay: n, Shares: n, Images: memoryImages{}, Controller: c,
		Facts: func() fleet.Facts {
			if hangs.Load() {
				select {
				case hung <- struct{}{}:
				default:
				}
				<-release
			}
			return fleet.Facts{Machine: "m1"}
		},
		Alive: func() { signs.Add(1) }, Log: slog.New(slog.DiscardHandler),
	})
	ctx, stop := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() { defer close(over); _ = a.Run(ctx) }()
	defer func() { stop(); <-over }()
	<-c.attached
	for begin := signs.Load(); signs.Load() < begin+3; time.Sleep(copiesEvery / 4) {
		if t.Context().Err() != nil {
			t.Fatal("a session without news gives no signs of life")
		}
	}
	hangs.Store(true)
	<-hung
	before := signs.Load()
	time.Sleep(3 * copiesEvery)
	if after := signs.Load(); after != before {
		t.Errorf("a loop that hangs gave %d signs of life", after-before)
	}
	hangs.Store(false)
	close(release)
}
