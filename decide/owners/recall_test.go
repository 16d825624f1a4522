package owners

import (
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

var recallNoon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

// recallCase is a gang of two leaving host1, with left bytes of each copy remaining.
type recallCase struct {
	v       fleet.Move
	members []fleet.Migration
	hosts   map[fleet.HostID]fleet.Host
	guests  map[fleet.GuestID]fleet.Guest
}

func away(at fleet.HostID, since time.Duration) fleet.Host {
	return fleet.Host{ID: at, State: fleet.HostUp, Facts: fleet.Facts{
		SeenAt: recallNoon, Connected: true, Owner: &fleet.Owner{State: fleet.OwnerAbsent, Since: recallNoon.Add(-since)},
	}}
}

func leaving(left int64) *recallCase {
	s := &recallCase{
		v:      fleet.Move{ID: "m1", Drains: "host1", ForOwner: "host1"},
		hosts:  map[fleet.HostID]fleet.Host{"host1": away("host1", time.Second), "host2": away("host2", 12*time.Hour)},
		guests: map[fleet.GuestID]fleet.Guest{},
	}
	from := s.hosts["host1"]
	from.Facts.Copies = map[fleet.MigrationID]fleet.Progress{}
	for _, g := range []fleet.GuestID{"j1g0", "j1g1"} {
		m := fleet.Migration{ID: fleet.MigrationID("m1." + g), Guest: g, From: "host1", To: "host2", Phase: fleet.Copying, Predicted: &fleet.Prediction{}}
		m.Predicted.Total.Value, m.Predicted.Downtime.Value = 20*time.Second, 100*time.Millisecond
		s.members = append(s.members, m)
		s.guests[g] = fleet.Guest{ID: g, Home: "host1", State: fleet.GuestMoving, Need: fleet.Resources{MemoryBytes: 1000 << 20}}
		from.Facts.Copies[m.ID] = fleet.Progress{Rounds: 1, TotalBytes: 1000 << 20, RemainingBytes: left, BytesPerSecond: 50 << 20}
	}
	s.hosts["host1"] = from
	return s
}

func (s *recallCase) evaluate() (fleet.Move, []fleet.Migration, bool) {
	return CancelForOwner(s.v, s.members, RecallView{At: recallNoon,
		Host:  func(id fleet.HostID) fleet.Host { return s.hosts[id] },
		Guest: func(id fleet.GuestID) fleet.Guest { return s.guests[id] }})
}

func (s *recallCase) host(id fleet.HostID, change func(*fleet.Host)) {
	h := s.hosts[id]
	o := *h.Facts.Owner
	h.Facts.Owner = &o
	change(&h)
	s.hosts[id] = h
}

func off(members []fleet.Migration) bool { return members[0].Phase != fleet.Copying }

// The more a gang has sent, the sooner it goes on. Going on is final, and a cancel
// applies to the whole gang.
func TestHowMuchIsLeft(t *testing.T) {
	goesOn := false
	for left := int64(1000); left >= 0; left -= 50 {
		s := leaving(left << 20)
		v, members, changed := s.evaluate()
		if !changed || goesOn && off(members) || off(members) != off(members[1:]) {
			t.Errorf("%d MiB left: changed %v, off %v %v", left, changed, off(members), off(members[1:]))
		}
		goesOn = !off(members)
		if !strings.Contains(v.Weighed, "the owner of host1 is gone") || off(members) && members[0].Cause != v.Weighed {
			t.Errorf("%q, %q", v.Weighed, members[0].Cause)
		}
		if !goesOn {
			continue
		}
		s.v, s.members = v, members
		s.host("host1", func(h *fleet.Host) { h.Facts.Copies = nil })
		if _, members, again := s.evaluate(); again || off(members) {
			t.Errorf("%d MiB left: weighed twice", left)
		}
	}
	if !goesOn {
		t.Error("what is sent does not go on")
	}
	v, members, _ := leaving(900 << 20).evaluate()
	if !off(members) || !strings.HasPrefix(v.Weighed, "cancelled: the owner of host1 is gone, and 1800 MiB of 2000 MiB were still to be sent") {
		t.Errorf("%q", v.Weighed)
	}
}

// A link's present speed is unknown before anything was sent: the prediction alone does
// not decide.
func TestUnknownLineIsWaitedFor(t *testing.T) {
	s, copies := leaving(100<<20), map[fleet.MigrationID]fleet.Progress{}
	for id, p := range s.hosts["host1"].Facts.Copies {
		p.BytesPerSecond = 0
		copies[id] = p
	}
	s.host("host1", func(h *fleet.Host) { h.Facts.Copies = copies })
	for i, m := range s.members {
		if v, members, changed := s.evaluate(); changed || off(members) || v.Weighed != "" {
			t.Errorf("%d of 2 lines are known: changed %v, off %v: %q", i, changed, off(members), v.Weighed)
		}
		p := copies[m.ID]
		p.BytesPerSecond = 50 << 20
		copies[m.ID] = p
	}
	if v, members, changed := s.evaluate(); !changed || off(members) || v.Weighed == "" {
		t.Errorf("the line is as foretold: changed %v, off %v: %q", changed, off(members), v.Weighed)
	}
}

// Only a container's occupied memory is sent, and the rest is counted from that.
func TestLeftOfAContainer(t *testing.T) {
	s := leaving(200 << 20)
	from := s.hosts["host1"]
	m := s.members[0]
	from.Facts.Guests = map[fleet.GuestID]fleet.GuestFacts{m.Guest: {ResidentBytes: 210 << 20}}
	g := s.guests[m.Guest]
	for _, c := range []struct {
		kind fleet.Kind
		sent int64 // bytes sent, as reported by its host
		say  int64 // bytes remaining, as reported
		want int64
	}{
		{fleet.Container, 10 << 20, 200 << 20, 200 << 20},
		{fleet.Container, 0, 220 << 20, 210 << 20},
		{fleet.Container, 10 << 20, 30 << 20, 200 << 20}, // it occupied 40 when the round began
		{fleet.VM, 0, 200 << 20, 42 << 20},
	} {
		g.Kind = c.kind
		p := from.Facts.Copies[m.ID]
		p.SentBytes, p.RemainingBytes = c.sent, c.say
		from.Facts.Copies[m.ID] = p
		if all, left := BytesLeft(from, g, m); all != 210<<20 || left != c.want {
			t.Errorf("%s: %d of %d MiB are left, not %d of 210", c.kind, left>>20, all>>20, c.want>>20)
		}
	}
}

// Each reason to go on alone, when half is sent.
func TestWhatSpeaksForGoingOn(t *testing.T) {
	const left = 150 << 20
	for name, c := range map[string]struct {
		change func(*recallCase)
		off    bool
	}{
		"it may soon be back": {func(*recallCase) {}, false},
		"this owner has been away for as long": {func(s *recallCase) {
			s.host("host1", func(h *fleet.Host) { h.Facts.Owner.Since = recallNoon.Add(-12 * time.Hour) })
		}, true},
		"that one has just gone, too": {func(s *recallCase) {
			s.host("host2", func(h *fleet.Host) { h.Facts.Owner.Since = recallNoon })
		}, true},
		"this host has no owner any more": {func(s *recallCase) {
			s.host("host1", func(h *fleet.Host) { h.Facts.Owner.State = "" })
		}, true},
		"that one has no owner": {func(s *recallCase) { s.host("host2", func(h *fleet.Host) { h.Facts.Owner = nil }) }, false},
		"to be suspended is dear": {func(s *recallCase) {
			for i := range s.members {
				s.members[i].Predicted.Downtime.Value = 20 * time.Second
			}
		}, true},
		"it is called back all the time": {cancelledBefore(time.Minute), false},
		"it was called back long ago":    {cancelledBefore(time.Hour), true},
	} {
		s := leaving(left)
		c.change(s)
		if v, members, changed := s.evaluate(); !changed || off(members) != c.off {
			t.Errorf("%s: off %v: %q", name, off(members), v.Weighed)
		}
	}
}

// cancelledBefore gives a guest whose copy has sent nothing an earlier cancelled move.
func cancelledBefore(ago time.Duration) func(*recallCase) {
	return func(s *recallCase) {
		g := s.guests["j1g1"]
		g.Aborts, g.RetryAt = 1, recallNoon.Add(-ago)
		s.guests["j1g1"] = g
		s.host("host1", func(h *fleet.Host) { h.Facts.Copies = nil })
	}
}

// If the move is not for the owner, the owner is not known to be gone, or the switch has
// begun, nothing changes.
func TestLeftAlone(t *testing.T) {
	for name, change := range map[string]func(*recallCase){
		"somebody's wish":  func(s *recallCase) { s.v.Drains, s.v.ForOwner = "", "" },
		"a person's drain": func(s *recallCase) { s.host("host1", func(h *fleet.Host) { h.State = fleet.HostDraining }) },
		"the owner is there": func(s *recallCase) {
			s.v.Drains = ""
			s.host("host1", func(h *fleet.Host) { h.Facts.Owner.Present = true })
		},
		"not heard from": func(s *recallCase) {
			s.v.Drains = ""
			s.host("host1", func(h *fleet.Host) { h.Facts.Connected = false })
		},
		"one has switched": func(s *recallCase) { s.members[1].Phase = fleet.Switching },
	} {
		s := leaving(1000 << 20)
		change(s)
		if v, members, changed := s.evaluate(); changed || off(members) || v.Weighed != "" {
			t.Errorf("%s: %q %+v", name, v.Weighed, members[0])
		}
	}
}

// A drain that ends while the owner is present cancels its moves; an owner who comes to a
// target cancels those to it.
func TestOtherwiseOff(t *testing.T) {
	s := leaving(0)
	s.host("host1", func(h *fleet.Host) { h.Facts.Owner.Present = true })
	if _, members, _ := s.evaluate(); members[0].Cause != "host1 no longer drains" {
		t.Errorf("%+v", members[0])
	}
	s = leaving(0)
	s.v.Weighed = "goes on"
	s.host("host2", func(h *fleet.Host) { h.Facts.Owner.Present = true })
	if _, members, _ := s.evaluate(); members[0].Cause != "the owner of host2 has come" {
		t.Errorf("%+v", members[0])
	}
}

// A move is for a present owner, unless a person drains the host.
func TestSign(t *testing.T) {
	h := away("host1", 0)
	if v := SignMove(fleet.Move{}, h); v.ForOwner != "" {
		t.Errorf("without an owner: %+v", v)
	}
	h.Facts.Owner.Present = true
	if v := SignMove(fleet.Move{}, h); v.ForOwner != "host1" {
		t.Errorf("asked for by a policy: %+v", v)
	}
	if v := SignMove(fleet.Move{Drains: "host1"}, h); v.ForOwner != "" {
		t.Errorf("a person's drain: %+v", v)
	}
	h.ForOwner = true
	if v := SignMove(fleet.Move{Drains: "host1"}, h); v.ForOwner != "host1" {
		t.Errorf("the owner's drain: %+v", v)
	}
}
