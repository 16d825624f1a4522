package etcd

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// TestUsageIsBesideTheState: records and marks come back as they were, do not change the cluster's revision, and a damaged one keeps nobody
// from reading the others.
func TestUsageIsBesideTheState(t *testing.T) {
	ctx := contract(t)
	s := opened(t, ctx, t.TempDir())
	before, err := s.Load(ctx)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	day := fleet.UsageRecord{Period: "2026-03-04", UID: 7, Job: "j1", Born: 5, Hosts: map[fleet.HostID]fleet.Usage{"host/1": {CPUSeconds: 1.5}}, About: &fleet.UsedBy{Name: "a", Submitted: at},
		Read: []fleet.UsageReading{{Guest: "j1g0", Host: "host/1", Started: at, CPU: time.Second, At: at}}, Moved: []fleet.MigrationID{"m1.j1g0"}}
	month := fleet.UsageRecord{Period: "2026-02", UID: 7, Hosts: map[fleet.HostID]fleet.Usage{"host/1": {Moves: 2}}}
	gone := fleet.UsageRecord{Period: "2026-02-01", UID: 7, Job: "j0", Hosts: map[fleet.HostID]fleet.Usage{"h": {}}}
	if err := s.KeepUsage(ctx, []fleet.UsageRecord{day, month, gone}, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.KeepUsage(ctx, nil, []fleet.UsageID{gone.ID()}); err != nil {
		t.Fatal(err)
	}
	if err := s.KeepNoticeMarks(ctx, []fleet.NoticeMark{{Receiver: "mail a", Through: at, Told: []fleet.NoticeID{"x/y/1"}}, {Receiver: "mail b", Through: at}}, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.KeepNoticeMarks(ctx, nil, []string{"mail b"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.Put(ctx, usages+"bad", "{"); err != nil {
		t.Fatal(err)
	}
	all, bad, err := s.LoadUsage(ctx)
	slices.SortFunc(all, func(a, b fleet.UsageRecord) int { return strings.Compare(a.Period, b.Period) })
	if err != nil || !reflect.DeepEqual(all, []fleet.UsageRecord{month, day}) || len(bad) != 1 || !strings.Contains(bad[0].Error(), usages+"bad") {
		t.Errorf("%+v, %v, %v", all, bad, err)
	}
	marks, bad, err := s.LoadNoticeMarks(ctx)
	if err != nil || len(bad) > 0 || len(marks) != 1 || marks[0].Receiver != "mail a" || marks[0].Told[0] != "x/y/1" {
		t.Errorf("%+v, %v, %v", marks, bad, err)
	}
	after, err := s.Load(ctx)
	if err != nil || after.Revision != before.Revision {
		t.Errorf("the state is at %d, was at %d: %v", after.Revision, before.Revision, err)
	}
}
