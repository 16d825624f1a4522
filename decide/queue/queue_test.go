package queue

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pagurus/fleet"
)

const (
	minute = time.Minute
	gib    = int64(1) << 30
)

// two hosts of 4 GiB: host1 is full for ten minutes, host2 has 2 GiB free, and all in twenty.
func two() *Plan {
	p := new(Plan)
	p.Add(Host{ID: "host1", Free: 0, Returns: []Return{{10 * minute, 4 * gib, ""}}})
	p.Add(Host{ID: "host2", Free: 2 * gib, Returns: []Return{{20 * minute, 2 * gib, ""}}})
	return p
}

func TestReserve(t *testing.T) {
	both := []fleet.HostID{"host2", "host1"}
	for _, c := range []struct {
		what  string
		a     Ask
		after time.Duration
		on    map[fleet.HostID]int
	}{
		{"there is room", Ask{1, 2 * gib, Forever, both, ""}, 0, map[fleet.HostID]int{"host2": 1}},
		{"when one has ended", Ask{2, 2 * gib, minute, both, ""}, 10 * minute, map[fleet.HostID]int{"host1": 2}},
		{"beside what runs on", Ask{3, 2 * gib, minute, both, ""}, 10 * minute, map[fleet.HostID]int{"host1": 2, "host2": 1}},
		{"when all have", Ask{4, 2 * gib, Forever, both, ""}, 20 * minute, map[fleet.HostID]int{"host1": 2, "host2": 2}},
		{"on one", Ask{2, 2 * gib, Forever, []fleet.HostID{"host2"}, ""}, 20 * minute, map[fleet.HostID]int{"host2": 2}},
		{"a host named twice is one", Ask{2, 2 * gib, Forever, []fleet.HostID{"host2", "host2"}, ""}, 20 * minute, map[fleet.HostID]int{"host2": 2}},
	} {
		r, fits := two().Reserve(c.a)
		if !fits || r.After != c.after || !reflect.DeepEqual(r.Guests, c.on) {
			t.Errorf("%s: %+v %v", c.what, r, fits)
		}
	}
	for _, never := range []Ask{{5, 2 * gib, minute, both, ""}, {1, 5 * gib, minute, both, ""}, {1, gib, minute, nil, ""}, {1, gib, minute, []fleet.HostID{"host3"}, ""}} {
		if r, fits := two().Reserve(never); fits {
			t.Errorf("%+v: %+v", never, r)
		}
	}
}

// devices are those of the hosts of the tests; the first is none.
var devices = []fleet.Passthrough{"", "pci:a", "pci:b"}

// A job that waits for a device begins when there is one, and others have the memory until then.
func TestReserveDevices(t *testing.T) {
	plan := func() *Plan { // host1's device is taken for 10 minutes, host2's is free; both have memory
		p := new(Plan)
		p.Add(Host{ID: "host1", Free: 2 * gib, Returns: []Return{{5 * minute, gib, ""}, {10 * minute, gib, "pci:a"}}})
		p.Add(Host{ID: "host2", Free: 4 * gib, Devices: []fleet.Passthrough{"pci:a"}})
		p.Add(Host{ID: "host3", Free: 8 * gib})
		return p
	}
	all := []fleet.HostID{"host1", "host2", "host3"}
	for _, c := range []struct {
		a     Ask
		fits  bool
		after time.Duration
		on    map[fleet.HostID]int
	}{
		{Ask{1, gib, minute, all, "pci:a"}, true, 0, map[fleet.HostID]int{"host2": 1}},
		{Ask{2, gib, minute, all, "pci:a"}, true, 10 * minute, map[fleet.HostID]int{"host1": 1, "host2": 1}},
		{Ask{1, gib, minute, all[:1], "pci:a"}, true, 10 * minute, map[fleet.HostID]int{"host1": 1}},
		{Ask{3, gib, minute, all, "pci:a"}, false, 0, nil},
		{Ask{1, gib, minute, all, "pci:b"}, false, 0, nil},
		{Ask{1, 5 * gib, minute, all, "pci:a"}, false, 0, nil},
	} {
		if r, fits := plan().Reserve(c.a); fits != c.fits || r.After != c.after || !reflect.DeepEqual(r.Guests, c.on) {
			t.Errorf("%+v: %+v %v", c.a, r, fits)
		}
	}
	p := plan()
	if _, fits := p.Reserve(Ask{2, 2 * gib, minute, all, "pci:a"}); !fits {
		t.Fatal("no room")
	}
	if held := p.Held(10 * minute); len(held) != 0 {
		t.Errorf("nobody needs it before: %v", held)
	}
	want := map[fleet.HostID]Held{"host2": {2 * gib, []fleet.Passthrough{"pci:a"}}} // host1 has enough memory then, and no device now
	if held := p.Held(Forever); !reflect.DeepEqual(held, want) {
		t.Errorf("held are %v", held)
	}
	p = plan()
	p.TakeRoom("host2", Ask{1, gib, 3 * minute, nil, "pci:a"})
	if r, fits := p.Reserve(Ask{1, gib, Forever, all, "pci:a"}); !fits || r.After != 3*minute || r.Guests["host2"] != 1 {
		t.Errorf("%+v", r)
	}
	if held := p.Held(minute); len(held) != 0 {
		t.Errorf("what a guest has is not held: %v", held)
	}
}

// A job that is over before a reservation begins is not kept from its room.
func TestHeld(t *testing.T) {
	p := two()
	if _, fits := p.Reserve(Ask{4, 2 * gib, minute, []fleet.HostID{"host1", "host2"}, ""}); !fits {
		t.Fatal("no room")
	}
	if held := p.Held(20 * minute); len(held) != 0 {
		t.Errorf("it ends in time: %v", held)
	}
	if held := p.Held(20*minute + 1); held["host2"].Bytes != 2*gib || len(held) != 1 {
		t.Errorf("it does not: %v", held)
	}
	p.TakeRoom("host2", Ask{Bytes: 2 * gib, Lasts: 5 * minute})
	if r, fits := p.Reserve(Ask{1, gib, minute, []fleet.HostID{"host2"}, ""}); !fits || r.After != 5*minute {
		t.Errorf("%+v", r)
	}
}

// Whatever hosts and jobs there are: at no time is more reserved than is free, a reservation is the earliest that leaves
// those before it theirs, and a job that begins in what is not held delays none.
func TestNothingIsReservedTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, ids := new(Plan), []fleet.HostID{}
		for i := range rapid.IntRange(1, 4).Draw(t, "hosts") {
			h := Host{ID: fleet.HostID(fmt.Sprint("host", i)), Free: int64(rapid.IntRange(0, 4).Draw(t, "free"))}
			for range rapid.IntRange(0, 3).Draw(t, "jobs") {
				h.Returns = append(h.Returns, Return{time.Duration(rapid.IntRange(1, 20).Draw(t, "ends")), int64(rapid.IntRange(1, 4).Draw(t, "bytes")), ""})
			}
			for _, d := range devices[1:] {
				switch n := rapid.IntRange(0, 2).Draw(t, "has"); {
				case n == 1:
					h.Devices = append(h.Devices, d)
				case n == 2 && len(h.Returns) > 0 && h.Returns[0].Device == "":
					h.Returns[0].Device = d
				}
			}
			ids = append(ids, h.ID)
			p.Add(h)
		}
		var asks []Ask
		for range rapid.IntRange(1, 6).Draw(t, "waiting") {
			on := slices.DeleteFunc(slices.Clone(ids), func(fleet.HostID) bool { return rapid.IntRange(0, 3).Draw(t, "out") == 0 })
			asks = append(asks, Ask{rapid.IntRange(1, 5).Draw(t, "guests"), int64(rapid.IntRange(1, 4).Draw(t, "each")), time.Duration(rapid.IntRange(1, 12).Draw(t, "lasts")), on, rapid.SampledFrom(devices).Draw(t, "device")})
		}
		before := p.Clone()
		all := reserveAll(t, p, asks)
		late := Ask{1, 1, time.Duration(rapid.IntRange(1, 30).Draw(t, "lasts")), ids, rapid.SampledFrom(devices).Draw(t, "device")}
		held := p.Held(late.Lasts)
		for _, id := range ids {
			lacks := late.Device != "" && (before.devices[id][late.Device].free == 0 || slices.Contains(held[id].Devices, late.Device))
			if p := before.Clone(); before.free[id]-held[id].Bytes >= late.Bytes && !lacks {
				p.TakeRoom(id, late)
				if after := reserveAll(t, p, asks); !reflect.DeepEqual(all, after) {
					t.Fatalf("%+v on %s delays: %+v, then %+v", late, id, all, after)
				}
			}
		}
	})
}

// reserveAll reserves for each in turn, and checks that each reservation is the first there can be.
func reserveAll(t *rapid.T, p *Plan, asks []Ask) (out []Reservation) {
	for _, a := range asks {
		before := p.Clone()
		r, fits := p.Reserve(a)
		for at := time.Duration(0); at < 300 && (!fits || at < r.After); at++ {
			if room := before.roomAt(a, at); room >= a.Guests {
				t.Fatalf("%+v fits at %d, and gets %+v", a, at, r)
			}
		}
		for id, line := range p.hosts {
			for i, s := range line {
				if s.free < 0 && before.hosts[id].least(s.at, 1) >= 0 {
					t.Fatalf("%s has %d free at step %d", id, s.free, i)
				}
			}
		}
		for id, all := range p.devices {
			for name, d := range all {
				if slices.ContainsFunc(d.line, func(s step) bool { return s.free < 0 }) {
					t.Fatalf("%s of %s is given twice: %v", name, id, d.line)
				}
			}
		}
		out = append(out, r)
	}
	return out
}

// has reports whether a host has the device of a job from a time on, moment by moment.
func (p *Plan) has(id fleet.HostID, a Ask, from time.Duration) bool {
	d, known := p.devices[id][a.Device]
	for at := from; a.Device != "" && at < from+a.Lasts; at++ {
		if !known || d.line.least(at, 1) == 0 {
			return false
		}
	}
	return true
}

// roomAt counts the guests that fit from a time on, moment by moment.
func (p *Plan) roomAt(a Ask, from time.Duration) (n int) {
	for _, id := range a.Hosts {
		least := p.hosts[id].least(from, 1)
		for at := from; at < from+a.Lasts; at++ {
			if free := p.hosts[id].least(at, 1); free < least {
				least = free
			}
		}
		if least > 0 && p.has(id, a, from) {
			fit := int(least / a.Bytes)
			if a.Device != "" {
				fit = min(fit, 1)
			}
			n += fit
		}
	}
	return n
}

// Of devices that are alike a host has as many as are free, and what is reserved of them is kept from others one by one.
func TestAlikeDevicesAreCounted(t *testing.T) {
	const net = fleet.NetFunction
	var p Plan
	p.Add(Host{ID: "host1", Free: 10, Devices: []fleet.Passthrough{net, net}, Returns: []Return{{After: time.Hour, Bytes: 1, Device: net}}})
	ask := func(guests int) Ask {
		return Ask{Guests: guests, Bytes: 1, Device: net, Lasts: 2 * time.Hour, Hosts: []fleet.HostID{"host1"}}
	}
	if _, fits := p.Clone().Reserve(ask(4)); fits {
		t.Error("there is room for more guests than devices")
	}
	q := p.Clone()
	if r, fits := q.Reserve(ask(3)); !fits || r.After != time.Hour {
		t.Errorf("three begin after %s, %v", r.After, fits)
	}
	if held := q.Held(2 * time.Hour)["host1"].Devices; !slices.Equal(held, []fleet.Passthrough{net, net}) {
		t.Errorf("from a long job %v are kept", held)
	}
	if held := q.Held(time.Minute)["host1"].Devices; len(held) != 0 {
		t.Errorf("from a short one %v are", held)
	}
	p.TakeRoom("host1", ask(1))
	if r, fits := p.Reserve(ask(2)); !fits || r.After != time.Hour {
		t.Errorf("beside one that begins two begin after %s, %v", r.After, fits)
	}
}
