package planner

import (
	"strings"
	"testing"
	"time"

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
