// This file keeps an embedded store small while it is used: what was written since old revisions were last dropped decides, not
// the time. It also repairs a store that has reached its quota, which etcd leaves to an administrator.

package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pagurus/internal/pause"
)

const (
	tidyEvery = time.Second
	// heldFor is how long a revision stays readable, for who reads the store in pages.
	heldFor = 5 * time.Second
	// compactBytes of old revisions are let gather.
	compactBytes = 8 << 20
	// roomyBytes is the file up to which its free space is left to what comes.
	roomyBytes = 64 << 20
)

// mark is which revision was the newest when, and how many bytes had been written until then.
type mark struct {
	at                time.Time
	revision, written int64
}

// tidiness is what is known of an embedded store's room. The member's tidying guards it.
type tidiness struct {
	marks          []mark    // the oldest first; of those that nobody needs any more only the newest
	written, inUse int64     // until, and at, the newest mark
	dropped        int64     // of written, what lies before the revisions that are kept
	stuck          time.Time // when nothing more could go from a store that is nearly full
}

// noteRevision adds a mark, and returns the newest that is no longer needed; none: its revision is 0.
func (t *tidiness) noteRevision(now time.Time, revision, inUse int64) (old mark) {
	t.written, t.inUse = t.written+max(0, inUse-t.inUse), inUse
	t.marks = append(t.marks, mark{now, revision, t.written})
	for len(t.marks) > 1 && now.Sub(t.marks[1].at) >= heldFor {
		t.marks = t.marks[1:]
	}
	if now.Sub(t.marks[0].at) >= heldFor {
		old = t.marks[0]
	}
	return old
}

// keepTidy tidies until etcd stops or is stopped.
func (s *Store) keepTidy() {
	m := s.member
	ctx, cancel := s.untilFault(m.living)
	defer cancel()
	for said := ""; ctx.Err() == nil; _ = pause.For(ctx, tidyEvery) {
		now, why := time.Now(), ""
		if err := s.tidy(ctx, now); err != nil {
			why = err.Error()
		}
		if why != said && why != "" && ctx.Err() == nil {
			fmt.Fprintf(m.log, "%s\tcannot tidy the store, and tries again: %s\n", now.Format(time.RFC3339), why)
		}
		said = why
	}
}

// tidy drops old revisions, gives free space back to the disk, and ends the alarm of a full store, each where there is a reason.
// After an error nothing is lost, and it may be called again.
func (s *Store) tidy(ctx context.Context, now time.Time) error {
	m := s.member
	m.tidying.Lock()
	defer m.tidying.Unlock()
	if m.living.Err() != nil || m.fault.cause() != nil {
		return errStops
	}
	server, t := m.etcd.Server, &m.tidiness
	alarm := slices.ContainsFunc(server.Alarms(), func(a *pb.AlarmMember) bool { return a.Alarm == pb.AlarmType_NOSPACE })
	full := alarm || m.crowded() && now.Sub(t.stuck) >= tidyEvery
	if full || server.Leader() == server.MemberID() { // of several one is enough, and all do then
		if err := s.compact(ctx, now, full); err != nil {
			return err
		}
	}
	if size, used := server.Backend().Size(), server.Backend().SizeInUse(); size > m.roomy && used < size/2 || full && used < size/8*7 {
		if err := m.defragment(used); err != nil {
			return err
		}
		t.inUse = server.Backend().SizeInUse()
	}
	if m.crowded() {
		t.stuck = now
	}
	if !alarm {
		return nil
	}
	return s.disarm(ctx)
}

// crowded reports whether the store is nearly full.
func (m *member) crowded() bool { return m.etcd.Server.Backend().Size() > m.quota/8*7 }

// makeRoom refuses a change while the disk is almost full, and tidies before the store is: a change at its limit etcd makes, and says that it did not.
func (s *Store) makeRoom(ctx context.Context) error {
	if s.member == nil {
		return nil
	}
	if err := s.member.room(); err != nil {
		return err
	}
	if s.member.crowded() {
		_ = s.tidy(ctx, time.Now()) // if it cannot, the change says what there is to say
	}
	return nil
}

// compact drops the revisions that nobody reads any more; all but the newest where the store is full.
func (s *Store) compact(ctx context.Context, now time.Time, full bool) error {
	server, t := s.member.etcd.Server, &s.member.tidiness
	old := t.noteRevision(now, server.KV().Rev(), server.Backend().SizeInUse())
	switch {
	case full:
		old = t.marks[len(t.marks)-1]
	case old.revision == 0, old.written-t.dropped < s.member.compactAfter:
		return nil
	}
	ctx, cancel := s.limited(ctx)
	defer cancel()
	_, err := s.client.Compact(ctx, old.revision, clientv3.WithCompactPhysical())
	if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return s.explained(ctx, "dropping the store's old revisions", err)
	}
	t.dropped, t.inUse = old.written, server.Backend().SizeInUse()
	return nil
}

// defragment writes the file again without its free space. Reading and writing wait for it: 64 MiB take about 0.3 s.
func (m *member) defragment(used int64) error {
	if !m.copying.TryLock() {
		return nil // a backup reads the file, and all would wait for it; the next time will do
	}
	defer m.copying.Unlock()
	free, err := freeBytes(m.dir)
	if err != nil {
		return err
	}
	if free < used+m.reserve {
		return fmt.Errorf("its disk has %d MiB free, and to make the store's file small takes %d", free>>20, (used+m.reserve)>>20)
	}
	if err := m.etcd.Server.Backend().Defrag(); err != nil {
		return fmt.Errorf("making the store's file small: %w", err)
	}
	return nil
}

// disarm ends the alarm of a full store where there is room again, other members' too: one that has none raises it again, and makes
// its own file small.
func (s *Store) disarm(ctx context.Context) error {
	if size := s.member.etcd.Server.Backend().Size(); size > s.member.quota/16*15 {
		return fmt.Errorf("%d MiB of the store's %d are in use", size>>20, s.member.quota>>20)
	}
	ctx, cancel := s.limited(ctx)
	defer cancel()
	for _, a := range s.member.etcd.Server.Alarms() {
		if a.Alarm != pb.AlarmType_NOSPACE {
			continue
		}
		if _, err := s.client.AlarmDisarm(ctx, (*clientv3.AlarmMember)(a)); err != nil {
			return s.explained(ctx, "disarming the store", err)
		}
	}
	return nil
}
