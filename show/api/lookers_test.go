package api

import (
	"context"
	"slices"
	"sync"
	"testing"

	"pagurus/fleet"
	"pagurus/show/view"
)

// A feed whose look takes long keeps no other from looking where there are processors.
func TestFeedsLookBesideEachOther(t *testing.T) {
	looking := lookers(4)
	if cap(lookers(1)) != 1 || cap(looking) != 2 {
		t.Fatalf("of 4 processors %d look, and of one %d", cap(looking), cap(lookers(1)))
	}
	var both sync.WaitGroup
	both.Add(2)
	over := make(chan struct{})
	close(over)
	var feeds sync.WaitGroup
	for range 2 {
		f := newFeed(false)
		f.looking, f.cancel = looking, func() {}
		f.read = func(s fleet.Snapshot) view.Cluster {
			both.Done()
			both.Wait() // for the other's look
			return view.Read(s)
		}
		feeds.Go(func() { f.run(context.Background(), slices.Values([]fleet.Snapshot{fleet.NewSnapshot()}), over) })
	}
	feeds.Wait()
}
