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
	unseenShare  = 64 // of the quota: what may be written that the file's size does not show yet
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
	if size, used := server.Backend().Size(), server.Backend().SizeInUse(); size > m.roomy && used < size/2 || full && size-used > m.quota/32 {
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

// noteWrites has what was written put into the file when it is much. Otherwise that takes up to a second, within which nobody sees how full it is.
func (m *member) noteWrites(ops []clientv3.Op) {
	bytes := int64(0)
	for _, op := range ops {
		bytes += int64(len(op.KeyBytes()) + len(op.ValueBytes()))
	}
	if all := m.unseen.Add(bytes); all > m.quota/unseenShare && m.unseen.CompareAndSwap(all, 0) {
		_ = m.apart(func() error { m.etcd.Server.Backend().ForceCommit(); return nil }) // the change meets the fault, too
	}
}

// isFull is the error of a change that finds no space.
func (m *member) isFull() error {
	return fmt.Errorf("the store of %d MiB is full, and what is old in it has gone already: remove jobs that are over with `pagurus job rm`, or ask again in a minute", m.quota>>20)
}

// crowded reports whether the store is nearly full.
func (m *member) crowded() bool { return m.etcd.Server.Backend().Size() > m.quota/8*7 }

// makeRoom refuses a change while the disk is almost full, and tidies before the store is. What adds to a store that is full
// nevertheless is refused; what only changes or removes has the space that etcd has more.
func (s *Store) makeRoom(ctx context.Context, ops []clientv3.Op, adds bool) error {
	if s.member == nil {
		return nil
	}
	if err := s.member.room(); err != nil {
		return err
	}
	s.member.noteWrites(ops)
	if s.member.crowded() {
		_ = s.tidy(ctx, time.Now()) // if it cannot, the change says what there is to say
	}
	if adds && s.member.etcd.Server.Backend().SizeInUse() > s.member.quota/16*15 {
		return s.member.isFull()
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
	err := s.member.apart(func() error {
		_, err := s.client.Compact(ctx, old.revision, clientv3.WithCompactPhysical())
		return err
	})
	if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return s.explained(ctx, "dropping the store's old revisions", err)
	}
	t.dropped, t.inUse = old.written, server.Backend().SizeInUse()
	return nil
}

// apart does something in a goroutine of its own, which is all that ends where etcd would end the process.
func (m *member) apart(do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return err
	case <-m.fault.done:
		return m.fault.cause()
	}
}

// defragment writes the file again without its free space. Reading and writing wait for it.
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
	m.fault.stays.Store(true) // etcd has no file in between, and whoever came then would fall
	err = m.apart(m.etcd.Server.Backend().Defrag)
	m.fault.stays.Store(m.fault.cause() != nil)
	if err != nil {
		return fmt.Errorf("making the store's file small: %w", err)
	}
	return nil
}

// disarm ends the alarm of a full store where there is room again, other members' too: one that has none raises it again, and makes
// its own file small.
func (s *Store) disarm(ctx context.Context) error {
	if size := s.member.etcd.Server.Backend().Size(); size > s.member.quota/16*17 {
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
