// This file keeps what is beside the snapshot: records of usage, and how far receivers of notices were told. No
// decision of the planner depends on it, and controllers of before it was kept do not read it.

package etcd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/url"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pagurus/fleet"
)

// The beginnings of their keys.
const (
	usages      = "/pagurus/usage/"
	noticeMarks = "/pagurus/notices/"
)

func usageKey(id fleet.UsageID) string { return usages + url.PathEscape(string(id)) }

// markKey is where a receiver's mark is. Its name may be long.
func markKey(receiver string) string {
	sum := sha256.Sum256([]byte(receiver))
	return noticeMarks + hex.EncodeToString(sum[:16])
}

// LoadUsage reads all records of usage. One that cannot be understood is left out, and left as it is: bad says
// which, for the log.
func (s *Store) LoadUsage(ctx context.Context) (all []fleet.UsageRecord, bad []error, err error) {
	return loadBeside(ctx, s, usages, func(r fleet.UsageRecord) string { return usageKey(r.ID()) })
}

// KeepUsage writes and removes records of usage in one transaction. After an error it may have been done or not; doing it
// again does no harm. Only the process that leads can.
func (s *Store) KeepUsage(ctx context.Context, put []fleet.UsageRecord, gone []fleet.UsageID) error {
	w := writer{}
	for _, r := range put {
		w.put(usageKey(r.ID()), r)
	}
	for _, id := range gone {
		w.add(usageKey(id), clientv3.OpDelete(usageKey(id)))
	}
	return s.keepBeside(ctx, w)
}

// LoadNoticeMarks reads how far receivers were told. bad is as in LoadUsage.
func (s *Store) LoadNoticeMarks(ctx context.Context) (all []fleet.NoticeMark, bad []error, err error) {
	return loadBeside(ctx, s, noticeMarks, func(m fleet.NoticeMark) string { return markKey(m.Receiver) })
}

// KeepNoticeMarks writes marks, and removes those of receivers that are gone, as KeepUsage does.
func (s *Store) KeepNoticeMarks(ctx context.Context, put []fleet.NoticeMark, gone []string) error {
	w := writer{}
	for _, m := range put {
		w.put(markKey(m.Receiver), m)
	}
	for _, receiver := range gone {
		w.add(markKey(receiver), clientv3.OpDelete(markKey(receiver)))
	}
	return s.keepBeside(ctx, w)
}

// loadBeside reads objects whose keys begin alike.
func loadBeside[T any](ctx context.Context, s *Store, prefix string, key func(T) string) (all []T, bad []error, err error) {
	ctx, cancel := s.limited(ctx)
	defer cancel()
	from, at := prefix, int64(0)
	for again := 0; ; {
		got, err := patiently(ctx, s, func() (*clientv3.GetResponse, error) {
			return s.client.Get(ctx, from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)), clientv3.WithLimit(loadPage), clientv3.WithRev(at))
		})
		if errors.Is(err, rpctypes.ErrCompacted) && again < rereads { // it read for longer than old revisions are kept
			again++
			from, at, all, bad = prefix, 0, nil, nil
			continue
		}
		if err != nil {
			return nil, nil, s.explained(ctx, "reading "+prefix+" in the store", err)
		}
		at = got.Header.Revision
		for _, kv := range got.Kvs {
			var o T
			err := read(string(kv.Key), kv.Value, &o)
			if err == nil && key(o) != string(kv.Key) {
				err = damaged(string(kv.Key), errors.New("it calls itself "+key(o)))
			}
			if err != nil {
				bad = append(bad, err)
				continue
			}
			all = append(all, o)
		}
		if !got.More || len(got.Kvs) == 0 {
			return all, bad, nil
		}
		from = string(got.Kvs[len(got.Kvs)-1].Key) + "\x00"
	}
}

// keepBeside writes what a writer has, if this process leads.
func (s *Store) keepBeside(ctx context.Context, w writer) error {
	if w.err != nil || len(w.ops) == 0 {
		return w.err
	}
	if err := s.makeRoom(ctx, w.ops, false); err != nil {
		return err
	}
	ctx, cancel := s.limited(ctx)
	defer cancel()
	var guards []clientv3.Cmp
	if still := s.leading.Load(); still != nil {
		guards = append(guards, clientv3.Compare(clientv3.CreateRevision(still.key), "=", still.since))
	}
	done, err := patiently(ctx, s, func() (*clientv3.TxnResponse, error) {
		return s.client.Txn(ctx).If(guards...).Then(w.ops...).Commit()
	})
	switch {
	case err != nil:
		return s.explained(ctx, "writing beside the cluster's state", err)
	case !done.Succeeded:
		return errors.New("another controller leads now")
	}
	return nil
}
