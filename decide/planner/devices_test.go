package planner

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pagurus/decide/desired"
	"pagurus/decide/lifecycle"
	"pagurus/decide/state"
	"pagurus/fleet"
)

const aDevice fleet.Passthrough = "pci:0000:03:10.0"

// lends gives hosts a device.
func (w *world) lends(trouble string, hosts ...fleet.HostID) {
	for _, id := range hosts {
		h := w.s.Hosts[id]
		h.Facts.Devices = []fleet.Device{{Address: aDevice.Address(), Kind: fleet.NetDevice, Trouble: trouble}}
		w.s.Hosts[id] = h
	}
}

// passing asks for a job whose guests have the device.
func passing(guests int) fleet.Request {
	r := submission(guests)
	r.Spec.Need.Device = aDevice
	return r
}

// Each guest of a job gets a device of a host of its own. The next job waits until the devices are free, and begins then.
func TestDevicesAreGivenAndComeBack(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3")
	w.lends("", "host1", "host3")
	w.must(passing(2))
	w.answerAll()
	if a, b := w.s.Guests["j1g0"], w.s.Guests["j1g1"]; a.Home == b.Home || a.Home == "host2" || b.Home == "host2" || a.Need.Device != aDevice {
		t.Fatalf("the guests are %+v and %+v", a, b)
	}
	answer := w.must(passing(1))
	if all := strings.Join(answer.Notes, "\n"); !strings.Contains(all, "j2 waits") || w.s.Jobs["j2"].State != fleet.JobPending {
		t.Errorf("the second job is told %q and is %s", all, w.s.Jobs["j2"].State)
	}
	said, err := w.p.Explain(w.s, Subject{Job: "j2"})
	if all := strings.Join(said, "\n"); err != nil || !strings.Contains(all, "has given its device 0000:03:10.0 to a guest") {
		t.Errorf("Explain says %q, %v", all, err)
	}
	w.must(submission(1)) // one without a device does not wait
	if at := w.s.Guests["j3g0"].Home; at == "" {
		t.Error("a job without a device waits for one")
	}
	w.must(fleet.Request{Verb: fleet.Cancel, Job: "j1"})
	w.answerAll()
	w.tick(2 * time.Second)
	w.answerAll()
	if j := w.s.Jobs["j2"]; j.State != fleet.JobRunning {
		t.Errorf("the devices are free, and the second job is %s: %s", j.State, j.Reason)
	}
}

// A job that waits for a device is told when the device is free, and others use the memory until then; nobody takes the device before it.
func TestDevicesAreReserved(t *testing.T) {
	w := newWorld(t, "host1")
	w.lends("", "host1")
	limited := func(r fleet.Request, mib int64, limit time.Duration) fleet.Request {
		r.Spec.Need.MemoryBytes, r.Spec.Time = mib<<20, limit
		return r
	}
	w.must(limited(passing(1), 512, 30*time.Minute))
	w.answerAll()
	w.must(limited(passing(1), 1024, time.Hour))
	said, err := w.p.Explain(w.s, Subject{Job: "j2"})
	if all := strings.Join(said, "\n"); err != nil || !strings.Contains(all, "It starts in 31m10s at the latest") {
		t.Errorf("Explain says %q, %v", all, err)
	}
	w.must(limited(submission(1), 1024, 10*time.Minute)) // j2 had reserved it
	if w.s.Jobs["j3"].State == fleet.JobPending {
		t.Errorf("a job that is over before waits: %s", w.s.Jobs["j3"].Reason)
	}
	w.must(limited(submission(1), 512, 2*time.Hour)) // leaves enough
	w.must(limited(passing(1), 512, time.Minute))
	if a, b := w.s.Jobs["j4"].State, w.s.Jobs["j5"].State; a == fleet.JobPending || b != fleet.JobPending {
		t.Errorf("j4 is %s and j5 is %s", a, b)
	}
	w.must(fleet.Request{Verb: fleet.Cancel, Job: "j1"})
	w.answerAll()
	w.tick(2 * time.Second)
	w.answerAll()
	if a, b := w.s.Jobs["j2"].State, w.s.Jobs["j5"].State; a != fleet.JobPending || b == fleet.JobPending {
		t.Errorf("j2 has no memory yet and is %s; j5, which is over before that, is %s", a, b)
	}
}

// What no host can give is refused at once, with the reason.
func TestDeviceThatNobodyHasIsRefused(t *testing.T) {
	w := newWorld(t, "host1", "host2")
	for _, c := range []struct {
		lend, guests int
		trouble      string
		want         string
	}{
		{0, 1, "", "no host can run them"},
		{2, 3, "", "3 guests of 512 MiB never fit"},
		{2, 1, "it is in no IOMMU group", "no host can run them"},
	} {
		w.lends("", "host1", "host2")
		if c.lend == 0 {
			for _, id := range []fleet.HostID{"host1", "host2"} {
				h := w.s.Hosts[id]
				h.Facts.Devices = nil
				w.s.Hosts[id] = h
			}
		} else {
			w.lends(c.trouble, "host1", "host2")
		}
		if _, err := w.ask(passing(c.guests)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got %v", c, err)
		}
	}
}

// A guest that has a device neither moves nor is written to a checkpoint: requests are refused, and a drain says that it
// stays.
func TestGuestWithDeviceStays(t *testing.T) {
	w := newWorld(t, "host1", "host2")
	w.lends("", "host1", "host2")
	r := passing(1)
	r.Spec.On = []fleet.HostID{"host1"}
	w.must(r)
	w.answerAll()
	for verb, r := range map[string]fleet.Request{
		"move":       {Verb: fleet.Migrate, Guest: "j1g0", To: "host2"},
		"checkpoint": {Verb: fleet.MakeCheckpoint, Job: "j1"},
		"suspend":    {Verb: fleet.SuspendJob, Job: "j1"},
	} {
		if _, err := w.ask(r); err == nil || !strings.Contains(err.Error(), aDevice.Holds()) {
			t.Errorf("%s: got %v", verb, err)
		}
	}
	d := w.must(fleet.Request{Verb: fleet.Drain, Host: "host1"})
	if all := strings.Join(d.Notes, "\n"); !strings.Contains(all, "j1g0 stays for now: "+aDevice.Holds()) {
		t.Errorf("the drain says %q", all)
	}
	w.answerAll()
	if g := w.s.Guests["j1g0"]; g.Home != "host1" || g.State != fleet.GuestRunning {
		t.Errorf("the guest is %s on %s", g.State, g.Home)
	}
}

// cards gives hosts a card with virtual functions for any guest.
func (w *world) cards(functions int, hosts ...fleet.HostID) {
	for _, id := range hosts {
		h := w.s.Hosts[id]
		h.Facts.Devices = []fleet.Device{{Address: "0000:01:00.0", Kind: fleet.NetDevice, ForNet: true, Trouble: "it is a card"}}
		for i := range functions {
			h.Facts.Devices = append(h.Facts.Devices, fleet.Device{Address: fmt.Sprintf("0000:01:10.%d", i), Of: "0000:01:00.0", ForNet: true})
		}
		w.s.Hosts[id] = h
	}
}

func onVLAN(guests int) fleet.Request {
	r := submission(guests)
	r.Spec.Need.Device = fleet.NetFunction
	return r
}

// A job whose guests get virtual functions has a VLAN of its own for as long as it lives, and the next waits for one. Its guests move, also to
// a host without a function left, and no checkpoint is made of them.
func TestGuestsWithFunctionsMove(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3")
	w.p.VLANs = fleet.VLANs{First: 100, Last: 101}
	w.cards(2, "host1", "host2")
	w.cards(0, "host3")
	w.must(onVLAN(2))
	w.answerAll()
	w.must(onVLAN(1))
	w.answerAll()
	one, two := w.s.Jobs["j1"], w.s.Jobs["j2"]
	if one.VLAN == two.VLAN || min(one.VLAN, two.VLAN) != 100 || max(one.VLAN, two.VLAN) != 101 || one.MTU != 1500 {
		t.Fatalf("the jobs have VLANs %d and %d, the first an MTU of %d", one.VLAN, two.VLAN, one.MTU)
	}
	for _, id := range []fleet.GuestID{"j1g0", "j1g1", "j2g0"} {
		if at := w.s.Guests[id].Home; at == "host3" {
			t.Errorf("%s begins where there is no virtual function", id)
		}
	}
	for _, n := range desired.Wanted(w.s, w.s.Guests["j1g0"].Home).Networks {
		if n.VLAN != w.s.Jobs[n.Job].VLAN || len(n.Peers) != 0 {
			t.Errorf("the network of %s is VLAN %d, and takes frames from %v", n.Job, n.VLAN, n.Peers)
		}
	}
	answer := w.must(onVLAN(1))
	if all := strings.Join(answer.Notes, "\n"); !strings.Contains(all, "all VLANs for jobs are in use, 100 to 101") {
		t.Errorf("a third job is told %q", all)
	}
	said := strings.Join(w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", To: "host3"}).Notes, "\n")
	if !strings.Contains(said, "guest j1g0: host3 has no virtual function free: it goes on there by virtio") {
		t.Errorf("the move is answered %q", said)
	}
	w.answerAll()
	if g := w.s.Guests["j1g0"]; g.Home != "host3" || w.s.Jobs["j1"].VLAN != one.VLAN {
		t.Errorf("the guest is on %s, and its network VLAN %d", g.Home, w.s.Jobs["j1"].VLAN)
	}
	h := w.s.Hosts["host3"]
	h.Facts.Guests = map[fleet.GuestID]fleet.GuestFacts{"j1g0": {Run: fleet.Running, Standby: fleet.ErrNoFunction.Error()}}
	w.s.Hosts["host3"] = h
	told, err := w.p.Explain(w.s, Subject{Guest: "j1g0"})
	if all := strings.Join(told, "\n"); err != nil || !strings.Contains(all, "It has virtio alone") || !strings.Contains(all, fleet.ErrNoFunction.Error()) {
		t.Errorf("Explain says %q, %v", all, err)
	}
	for _, verb := range []fleet.RequestVerb{fleet.MakeCheckpoint, fleet.SuspendJob} {
		if _, err := w.ask(fleet.Request{Verb: verb, Job: "j2"}); err == nil || !strings.Contains(err.Error(), "whose state nothing can save") {
			t.Errorf("%s: got %v", verb, err)
		}
	}
	w.must(fleet.Request{Verb: fleet.Cancel, Job: "j2"})
	w.answerAll()
	w.tick(2 * time.Second)
	w.answerAll()
	if j := w.s.Jobs["j3"]; j.State != fleet.JobRunning || j.VLAN != two.VLAN {
		t.Errorf("the third job is %s on VLAN %d: %s", j.State, j.VLAN, j.Reason)
	}
}

// Jobs that begin at once have different VLANs, and one that begins again may have another.
func TestVLANsAreOneJobs(t *testing.T) {
	w := newWorld(t, "host1")
	w.p.VLANs = fleet.VLANs{First: 7, Last: 8}
	w.cards(0, "host1")
	d := newDraft(w.p, state.NewIndex(w.s, nil))
	spec := onVLAN(1).Spec
	first, ok := d.vlan(*spec, 4)
	second, also := d.vlan(*spec, 6)
	if third, more := d.vlan(*spec, 0); !ok || !also || more || first+second != 15 || third != 0 {
		t.Errorf("three jobs get %d, %d and %d", first, second, third)
	}
	if none, ok := d.vlan(*submission(1).Spec, 0); none != 0 || !ok {
		t.Errorf("a job with tunnels gets VLAN %d", none)
	}
	if j := lifecycle.Enqueue(fleet.Job{VLAN: 7}, "", t0); j.VLAN != 0 {
		t.Errorf("a waiting job keeps VLAN %d", j.VLAN)
	}
}

// What stands in the way of virtual functions is said, with what to do.
func TestFunctionsAreRefused(t *testing.T) {
	for _, c := range []struct {
		want string
		set  func(w *world)
	}{
		{"starts the controller with --encryption none", func(w *world) { w.s.Cluster.Encryption = fleet.AutoEncryption }},
		{"gives the controller a range with --vlans", func(w *world) { w.p.VLANs = fleet.VLANs{} }},
		{"its agent has no --device-net", func(w *world) { w.lends("", "host1", "host2") }},
		{"no virtual function of it that a guest could have", func(w *world) { w.cards(0, "host1", "host2") }},
		{"has a card for them: give its agent --device-net", func(w *world) {
			for id, h := range w.s.Hosts {
				h.Facts.Machine = string(id)
				w.s.Hosts[id] = h
			}
			w.lends("", "host1")
		}},
		{"where the job's network is", func(w *world) {
			for id, h := range w.s.Hosts {
				h.Facts.Site = string(id)
				w.s.Hosts[id] = h
			}
			w.cards(0, "host1")
		}},
	} {
		w := newWorld(t, "host1", "host2")
		w.p.VLANs = fleet.VLANs{First: 7, Last: 8}
		w.cards(2, "host1", "host2")
		c.set(w)
		r := onVLAN(1)
		if r.Spec.Machine == "machine" && c.want[:3] == "has" {
			r.Spec.Machine = "host1"
		}
		answer, err := w.ask(r)
		if said := fmt.Sprint(err, answer.Notes); !strings.Contains(said, c.want) {
			t.Errorf("got %s, want %q", said, c.want)
		}
	}
}

// Whatever moves a guest, it goes to a host with a virtual function free before a better one without, and Explain says that it would.
func TestMovesAndDrainsPreferFunctions(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3")
	w.p.VLANs = fleet.VLANs{First: 100, Last: 101}
	w.cards(1, "host2", "host3")
	w.cards(0, "host1") // the first of equals
	w.must(onVLAN(1))
	w.answerAll()
	at := func() fleet.HostID { return w.s.Guests["j1g0"].Home }
	for range 2 {
		from := at()
		to := map[fleet.HostID]fleet.HostID{"host2": "host3", "host3": "host2"}[from]
		told, err := w.p.Explain(w.s, Subject{Guest: "j1g0"})
		if all := strings.Join(told, "\n"); err != nil || !strings.Contains(all, fmt.Sprintf("%s would take it: with a virtual function, which is free there; ", to)) {
			t.Errorf("Explain says %q, %v", all, err)
		}
		if notes := w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0"}).Notes; len(notes) > 0 {
			t.Errorf("it is told %q", notes)
		}
		w.answerAll()
		if at() != to {
			t.Fatalf("from %s it moved to %q, and %s has a virtual function free", from, at(), to)
		}
	}
	from := at()
	w.must(fleet.Request{Verb: fleet.Drain, Host: from})
	w.tick(time.Second)
	w.answerAll()
	if at() == from || at() == "host1" {
		t.Errorf("from %s it was drained to %s", from, at())
	}
	w.must(fleet.Request{Verb: fleet.Drain, Host: at()})
	w.tick(time.Second)
	w.answerAll()
	if at() != "host1" {
		t.Errorf("with no function free it is on %s", at())
	}
}
