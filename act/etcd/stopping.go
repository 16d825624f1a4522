package etcd

import (
	"context"
	"errors"

	clientv3 "go.etcd.io/etcd/client/v3"
)

var errStops = errors.New("etcd stops")

// stopping is the keys of the embedded etcd. When etcd has stopped by itself, as a member does that was removed, its database is
// closed, and a read there would panic.
type stopping struct {
	clientv3.KV
	begun <-chan struct{} // closed when it begins to stop
}

// Get reads keys.
func (k stopping) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (got *clientv3.GetResponse, err error) {
	defer func() {
		if k.stops() {
			_ = recover() // it read in the moment in which the database was closed
			got, err = nil, errStops
		}
	}()
	if k.stops() {
		return nil, errStops
	}
	return k.KV.Get(ctx, key, opts...)
}

func (k stopping) stops() bool {
	select {
	case <-k.begun:
		return true
	default:
		return false
	}
}
