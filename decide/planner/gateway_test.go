package planner

import (
	"strings"
	"testing"
	"time"

	"pagurus/decide/desired"
	"pagurus/fleet"
)

// lets has hosts' owners let jobs use their ways to the Internet; others do not.
func (w *world) lets(hosts ...fleet.HostID) {
	for id, h := range w.s.Hosts {
		h.Facts.Internet = nil
		for _, may := range hosts {
			if id == may {
				h.Facts.Internet = &fleet.Outlet{Allowed: true}
			}
		}
		w.s.Hosts[id] = h
	}
}

func outward(guests int, on ...fleet.HostID) fleet.Request {
	r := submission(guests)
	r.Spec.Net, r.Spec.On = fleet.Internet, on
	return r
}

// explain is what people are told.
func (w *world) explain(s Subject) string {
	w.s.At = w.now
	lines, err := w.p.Explain(w.s, s)
	if err != nil {
		w.t.Fatalf("explaining %+v: %v", s, err)
	}
	return strings.Join(lines, "\n")
}

// gates are the hosts that are to lead a job, by what each is told.
func gates(w *world, job fleet.JobID) (all []fleet.HostID) {
	for _, id := range []fleet.HostID{"host1", "host2", "host3"} {
		for _, n := range desired.Wanted(w.s, id).Networks {
			if n.Job == job && n.Gateway != nil {
				all = append(all, id)
			}
		}
	}
	return all
}

// TestGatewayIsChosen: a job that asks for the Internet has one gateway, on a host of its own if that may; it is refused in words where none may.
func TestGatewayIsChosen(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3")
	if _, err := w.ask(outward(1)); err == nil || !strings.Contains(err.Error(), "no host leads guests to the Internet") || !strings.Contains(err.Error(), "internet = true") {
		t.Errorf("where no owner allows it: %v", err)
	}
	w.lets("host2", "host3")
	h := w.s.Hosts["host2"]
	h.Facts.Internet.Trouble = "it has no default route"
	w.s.Hosts["host2"] = h
	h = w.s.Hosts["host3"]
	h.State = fleet.HostDraining
	w.s.Hosts["host3"] = h
	if _, err := w.ask(outward(1)); err == nil || !strings.Contains(err.Error(), "it has no default route") || !strings.Contains(err.Error(), "it drains") {
		t.Errorf("where none can: %v", err)
	}
	w = newWorld(t, "host1", "host2", "host3")
	w.lets("host1", "host3")
	job := w.must(outward(1, "host3")).Job
	if j := w.s.Jobs[job]; j.Gateway != "host3" {
		t.Errorf("the gateway of a job on host3 is %q", j.Gateway)
	}
	plain := w.must(submission(1)).Job
	if j := w.s.Jobs[plain]; j.Gateway != "" || len(gates(w, plain)) > 0 {
		t.Errorf("a job that does not ask for it has the gateway %q", j.Gateway)
	}
	r := submission(1)
	r.Spec.Net = "moon"
	if _, err := w.ask(r); err == nil || !strings.Contains(err.Error(), "use --net job or internet") {
		t.Errorf("for the moon: %v", err)
	}
}

// TestGatewayStays: guests move, the gateway does not; it is a peer of all hosts of the job, and its address is known on each.
func TestGatewayStays(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3")
	w.lets("host3")
	job := w.must(outward(2, "host1", "host2")).Job
	w.answerAll()
	check := func(when string) {
		t.Helper()
		if got := gates(w, job); len(got) != 1 || got[0] != "host3" {
			t.Fatalf("%s the gateways are %v", when, got)
		}
		for _, id := range []fleet.HostID{w.s.Guests["j1g0"].Home, w.s.Guests["j1g1"].Home} {
			n := desired.Wanted(w.s, id).Networks[0]
			found := false
			for _, e := range n.Endpoints {
				found = found || e.Gate && e.Host == "host3" && e.Addr == n.Subnet.GatewayAddr() && e.VTEP == w.s.Hosts["host3"].Facts.Address
			}
			if !found {
				t.Errorf("%s %s does not know where the gateway is", when, id)
			}
			if !strings.Contains(strings.Join(n.Peers, " "), w.s.Hosts["host3"].Facts.Address) && id != "host3" {
				t.Errorf("%s %s takes no frames from the gateway", when, id)
			}
		}
	}
	check("at first")
	w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", To: "host2"})
	w.answerAll()
	if w.s.Guests["j1g0"].Home != "host2" {
		t.Fatal("the guest did not move")
	}
	check("after a move")
	says := w.explain(Subject{Job: job})
	if !strings.Contains(says, "reach the Internet through host3") {
		t.Errorf("explain says\n%s", says)
	}
	if says := w.explain(Subject{Host: "host3"}); !strings.Contains(says, "The guests of j1 reach the Internet through it") {
		t.Errorf("explain host3 says\n%s", says)
	}
}

// TestGatewayLeaves: drain names the jobs whose connections break, and another host leads them from then on; a lost gateway is replaced
// likewise, and one that nobody can replace stays.
func TestGatewayLeaves(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3")
	w.lets("host2", "host3")
	job := w.must(outward(1, "host1")).Job
	w.answerAll()
	first := w.s.Jobs[job].Gateway
	other := map[fleet.HostID]fleet.HostID{"host2": "host3", "host3": "host2"}[first]
	a := w.must(fleet.Request{Verb: fleet.Drain, Host: first})
	if says := strings.Join(a.Notes, "\n"); !strings.Contains(says, "connections to the outside break, its own network does not; new ones go through "+string(other)) {
		t.Errorf("drain says %q", says)
	}
	w.tick(time.Second)
	if got := w.s.Jobs[job].Gateway; got != other {
		t.Fatalf("after the drain the gateway is %q", got)
	}
	a = w.must(fleet.Request{Verb: fleet.Drain, Host: other})
	if says := strings.Join(a.Notes, "\n"); !strings.Contains(says, "no other host leads it there") {
		t.Errorf("the second drain says %q", says)
	}
	w.tick(time.Second)
	if got := w.s.Jobs[job].Gateway; got != other {
		t.Errorf("without another host the gateway is %q", got)
	}
	w.must(fleet.Request{Verb: fleet.Undrain, Host: first})
	w.tick(time.Second)
	if got := w.s.Jobs[job].Gateway; got != first {
		t.Errorf("when there is a host again the gateway is %q", got)
	}
	w.must(fleet.Request{Verb: fleet.Undrain, Host: other})
	w.cut(first)
	for range 20 {
		w.tick(time.Second)
	}
	if got := w.s.Jobs[job].Gateway; got != other {
		t.Errorf("after the gateway was lost it is %q", got)
	}
	w.lets(first)
	w.tick(time.Second)
	if got := w.s.Jobs[job].Gateway; got != other {
		t.Errorf("one that nobody replaces is %q", got)
	}
}

// TestGatewayAgain: a job that begins again gets a gateway that there is then, and waits where there is none.
func TestGatewayAgain(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3")
	w.lets("host2")
	r := outward(1, "host1")
	r.Spec.Restarts = 1
	job := w.must(r).Job
	w.answerAll()
	w.lets()
	j := w.s.Jobs[job]
	w.die("j1g0")
	w.answerAll()
	for range 5 {
		w.tick(time.Second)
		w.answerAll()
	}
	if j = w.s.Jobs[job]; j.State != fleet.JobPending || j.Gateway != "" {
		t.Fatalf("the job is %s with the gateway %q", j.State, j.Gateway)
	}
	if says := w.explain(Subject{Job: job}); !strings.Contains(says, "No host leads guests to the Internet") {
		t.Errorf("explain says\n%s", says)
	}
	w.lets("host3")
	w.tick(time.Second)
	if j = w.s.Jobs[job]; j.State == fleet.JobPending || j.Gateway != "host3" {
		t.Errorf("with a way the job is %s with the gateway %q", j.State, j.Gateway)
	}
}

// TestGatewayOfASuspendedJob: a checkpoint of a job that reaches the Internet says what it lacks; while the job is suspended no host leads it, and
// when it is resumed one does, at the same address.
func TestGatewayOfASuspendedJob(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3")
	w.lets("host2")
	j := w.running(1, func(s *fleet.JobSpec) { s.Net = fleet.Internet })
	before := w.s.Jobs[j].Subnet.GatewayAddr()
	a := w.must(fleet.Request{Verb: fleet.SuspendJob, Job: j})
	if says := strings.Join(a.Notes, "\n"); !strings.Contains(says, "connections to the Internet are no part") {
		t.Errorf("the checkpoint says %q", says)
	}
	w.answerAll()
	w.tick(time.Second)
	if is := w.s.Jobs[j]; is.State != fleet.JobSuspended || is.Gateway != "" || len(gates(w, j)) > 0 {
		t.Fatalf("the job is %s with the gateway %q", is.State, is.Gateway)
	}
	if says := w.explain(Subject{Job: j}); !strings.Contains(says, "Of its checkpoints connections to the Internet are no part") {
		t.Errorf("explain says\n%s", says)
	}
	w.must(fleet.Request{Verb: fleet.ResumeJob, Job: j})
	w.answerAll()
	if is := w.s.Jobs[j]; is.State != fleet.JobRunning || is.Gateway != "host2" || is.Subnet.GatewayAddr() != before {
		t.Errorf("the job is %s with the gateway %q at %s", is.State, is.Gateway, is.Subnet.GatewayAddr())
	}
}
