package host

import (
	"context"
	"errors"
	"sync"
	"testing"
)

// TestOneAtATime: calls for one guest exclude each other, those for two do not, and no
// lock is kept afterwards.
func TestOneAtATime(t *testing.T) {
	var turns Locks
	var all sync.WaitGroup
	inside, total := 0, 0
	for range 50 {
		all.Go(func() {
			release, err := turns.Lock(t.Context(), "g1")
			if err != nil {
				t.Error(err)
				return
			}
			if inside++; inside != 1 {
				t.Errorf("%d calls at once", inside)
			}
			total++
			inside--
			release()
		})
	}
	all.Wait()
	if total != 50 || len(turns.all) != 0 {
		t.Errorf("%d calls had their turn, %d turns are kept", total, len(turns.all))
	}
	release, err := turns.Lock(t.Context(), "g1")
	if err != nil {
		t.Fatal(err)
	}
	other, err := turns.Lock(t.Context(), "g2")
	if err != nil {
		t.Fatal(err)
	}
	other()
	ctx, cancel := context.WithCancel(t.Context())
	waits := make(chan error)
	go func() {
		_, err := turns.Lock(ctx, "g1")
		waits <- err
	}()
	cancel()
	if err := <-waits; !errors.Is(err, context.Canceled) {
		t.Errorf("who no longer waits is told %v", err)
	}
	if _, err := turns.Lock(ctx, "g3"); err == nil {
		t.Error("a call whose context had ended had its turn")
	}
	release()
	if len(turns.all) != 0 {
		t.Errorf("%d turns are kept", len(turns.all))
	}
}
