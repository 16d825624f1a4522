package planner

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// Every refusal says what is wrong and what to do.
func TestSubmitRefuses(t *testing.T) {
	for want, change := range map[string]func(*fleet.Request){
		"a job cannot have 0 ranks; ask for one or more with -n":                                                                                                    func(r *fleet.Request) { r.Spec.Ranks = 0 },
		"a job cannot have 0 guests; ask for one or more with --guests":                                                                                             func(r *fleet.Request) { r.Spec.Guests = 0 },
		"3 guests are too many for 2 ranks; ask for no more guests than ranks":                                                                                      func(r *fleet.Request) { r.Spec.Guests = 3 },
		"300 guests are more than the 250 that a job may have; give each more ranks with --guests 250":                                                              func(r *fleet.Request) { r.Spec.Guests, r.Spec.Ranks = 300, 300 },
		"64 MiB of memory cannot hold a guest; give it 128 MiB or more with --mem":                                                                                  func(r *fleet.Request) { r.Spec.Need.MemoryBytes = 64 << 20 },
		"a guest cannot have -1 CPUs; ask for 1 to 255, or for more guests with --guests":                                                                           func(r *fleet.Request) { r.Spec.Need.CPUs = -1 },
		`"-n" is no program: flags of ` + "`pagurus run` stand before --, and those of mpirun are not taken; for a program of this name write ./-n":                 func(r *fleet.Request) { r.Spec.Args = []string{"-n", "2", "./a.out"} },
		"there is no program to run; name it after --":                                                                                                              func(r *fleet.Request) { r.Spec.Args = nil },
		"an argument or variable holds a zero byte, which no program can be given; leave it out":                                                                    func(r *fleet.Request) { r.Spec.Args = []string{"a\x00b"} },
		"a variable of the environment is not of the form NAME=value; correct it":                                                                                   func(r *fleet.Request) { r.Spec.Env = []string{"=x"} },
		`the working directory "work" is not an absolute path; give one that begins with / and has no .. in it`:                                                     func(r *fleet.Request) { r.Spec.Dir = "work" },
		`the shared directory "/a/../b" is not an absolute path; give one that begins with / and has no .. in it`:                                                   func(r *fleet.Request) { r.Spec.Export = "/a/../b" },
		"the working directory /home/me/work is not inside the shared directory /home/m; start the job inside it":                                                   func(r *fleet.Request) { r.Spec.Export = "/home/m" },
		"the whole file system cannot be shared with guests, they have their own; name a directory with --export":                                                   func(r *fleet.Request) { r.Spec.Export = "/" },
		"the directory \"/home/me/a\\nb\" cannot be shared with guests, because its name has a quotation mark or a control character; start the job in another one": func(r *fleet.Request) { r.Spec.Dir = "/home/me/a\nb" },
		"the directory \"/home/\\\"me\" cannot be shared with guests, because its name has a quotation mark or a control character; start the job in another one":   func(r *fleet.Request) { r.Spec.Dir, r.Spec.Export = "/home/\"me", "" },
		"the working directory's path has 5001 bytes; start the job in one whose path has 4095 or fewer":                                                            func(r *fleet.Request) { r.Spec.Dir, r.Spec.Export = "/"+strings.Repeat("d", 5000), "" },
		"17 directories are more than the 16 that a job may have beside its own; name one above several of them with --files":                                       func(r *fleet.Request) { r.Spec.Files = make([]fleet.Directory, 17) },
		"the directory \"data\" cannot be shared with guests; name an absolute path that is not / and has no .. in it with --files":                                 func(r *fleet.Request) { r.Spec.Files = []fleet.Directory{{Path: "data"}} },
		"the directory \"/a\\nb\" cannot be shared with guests, because its name has a quotation mark or a control character; rename it":                            func(r *fleet.Request) { r.Spec.Files = []fleet.Directory{{Path: "/a\nb"}} },
		"of the directories /home/me and /home/me/data one is inside the other; leave out --files /home/me/data, or share what is above both with --export":         func(r *fleet.Request) { r.Spec.Files = []fleet.Directory{{Path: "/home/me/data"}} },
		"of the directories /data and /data one is inside the other; leave out --files /data, or share what is above both with --export":                            func(r *fleet.Request) { r.Spec.Files = []fleet.Directory{{Path: "/data"}, {Path: "/data"}} },
		"of the directories /home/me and /home one is inside the other; leave out --files /home, or share what is above both with --export":                         func(r *fleet.Request) { r.Spec.Files = []fleet.Directory{{Path: "/home"}} },
		"the directories' paths have 4098 bytes together; name directories whose paths have 4095 or fewer":                                                          func(r *fleet.Request) { r.Spec.Files = []fleet.Directory{{Path: "/" + strings.Repeat("d", 4089)}} },
		"you are in 1025 groups, and a job's user can be in at most 1024; submit it as another user":                                                                func(r *fleet.Request) { r.Spec.Groups = make([]uint32, 1025) },
		"the arguments, the environment and the working directory take 49 KiB, and a guest accepts 48; put some of them into a file":                                func(r *fleet.Request) { r.Spec.Args = append(r.Spec.Args, strings.Repeat("x", 48<<10)) },
		"the arguments, the environment and the working directory take 61 KiB, and a guest accepts 48; put some of them into a file":                                func(r *fleet.Request) { r.Spec.Env = []string{"X=" + strings.Repeat("<", 10<<10)} },
		"3 hosts are named and the cluster has 2; name each host once":                                                                                              func(r *fleet.Request) { r.Spec.On = []fleet.HostID{"host1", "host1", "host1"} },
		"the request's ID has 145 bytes; give it one of 144 or fewer":                                                                                               func(r *fleet.Request) { r.ID = fleet.RequestID(strings.Repeat("x", 145)) },
		"a guest's share of its CPUs must be more than 0 and at most 100%; give one with --cap":                                                                     func(r *fleet.Request) { r.Spec.Cap = math.NaN() },
		`there is no kind of guest "palacios"; use auto, vm, container or xen`:                                                                                      func(r *fleet.Request) { r.Spec.Kind = "palacios" },
		"there is no image openmpi; `pagurus image ls` lists them, `pagurus image build openmpi` makes it":                                                          func(r *fleet.Request) { r.Image = nil },
		"there is no host host9; `pagurus host ls` lists them":                                                                                                      func(r *fleet.Request) { r.Spec.On = []fleet.HostID{"host9"} },
		"no host can serve /home/me to the guests, because no agent on this machine is connected; start one here with `pagurus agent`":                              func(r *fleet.Request) { r.Spec.Machine = "elsewhere" },
		"2 ranks on 2 guests of 3072 MiB never fit; the largest that would is 2 guests of 2048 MiB: ask for it with --guests and --mem":                             func(r *fleet.Request) { r.Spec.Need.MemoryBytes = 3 << 30 },
		"the request has no job in it; pagurus and its controller may be of different versions, see `pagurus version`":                                              func(r *fleet.Request) { r.Spec = nil },
	} {
		w := newWorld(t, "host1", "host2")
		r := submission(2)
		change(&r)
		_, err := w.ask(r)
		if err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
		if len(w.s.Jobs)+len(w.s.Guests) != 0 {
			t.Errorf("%s: something was begun", want)
		}
	}
}

// The longest accepted program fits into a message to a guest, and so does the setup of
// the largest job.
func TestWhatIsTakenFits(t *testing.T) {
	const message = 64<<10 - 1<<10 // the rest of the message takes less than a KiB
	w := newWorld(t, "host1")
	r := submission(1)
	r.Spec.Args = append(r.Spec.Args, strings.Repeat("x", fleet.ProgramBytes-200))
	w.must(r)
	s := r.Spec
	program, err := json.Marshal(fleet.Program{ID: "j1", Args: s.Args, Env: s.Env, Dir: s.Dir, MPI: true, Ranks: fleet.MostRanks, Trace: true})
	if err != nil || len(program) > message {
		t.Errorf("a program of %d bytes, %v", len(program), err)
	}
	u := fleet.Setup{Guest: "j1000000g249", Hostname: "guest249", Export: strings.Repeat("<", fleet.PathBytes), MPI: "openmpi"}
	for range fleet.MostGroups {
		u.Groups = append(u.Groups, 1<<32-1)
	}
	for i := range fleet.MaxGuestsPerJob {
		u.Peers = append(u.Peers, fleet.Peer{Hostname: fleet.GuestName(i), Addr: fleet.MaxSubnet.GuestAddr(i), MAC: fleet.MaxSubnet.GuestMAC(i), Slots: fleet.MostRanks})
	}
	setup, err := json.Marshal(u)
	if err != nil || len(setup) > message {
		t.Errorf("a setup of %d bytes, %v", len(setup), err)
	}
}

func TestSubmitIsAllOrNone(t *testing.T) {
	w := newWorld(t, "host1", "host2")
	if _, err := w.ask(submission(9)); err == nil || len(w.s.Guests) != 0 {
		t.Errorf("nine guests on room for eight: %v", err)
	}
	w.must(submission(8))
	r := submission(1)
	r.Now = true
	if _, err := w.ask(r); err == nil || !strings.HasPrefix(err.Error(), "there is no room for guest 1 of 1 (512 MiB each); ask for fewer guests with --guests, less memory with --mem, or wait for room without --now (host1, host2: has 0 MiB") {
		t.Errorf("a ninth guest: %v", err)
	}
}

func TestSubmitTwiceIsSubmitOnce(t *testing.T) {
	w := newWorld(t, "host1")
	r := submission(1)
	r.ID = "r1"
	if a, b := w.must(r), w.must(r); a.Job != "j1" || b.Job != "j1" || len(w.s.Jobs) != 1 {
		t.Errorf("%v %v", a, b)
	}
	r.ID = "r2"
	if a := w.must(r); a.Job != "j2" || w.s.Jobs["j2"].Subnet == w.s.Jobs["j1"].Subnet {
		t.Errorf("%v", a)
	}
}

// An ID that is given to a second request means the first, or nothing: one that asks something else is refused.
func TestOneIDMeansOneRequest(t *testing.T) {
	w := newWorld(t, "host1", "host2")
	r := submission(1)
	r.ID, r.Asks, r.Spec.Grow = "r1", "a", 2
	first, again := w.must(r), w.must(r)
	if again.Job != first.Job || len(w.s.Jobs) != 1 || strings.Join(first.Notes, "\n") != strings.Join(again.Notes, "\n") {
		t.Fatalf("%+v, then %+v", first, again)
	}
	w.answerAll()
	refused := func(r fleet.Request, id fleet.RequestID, asks, made string) {
		t.Helper()
		r.ID, r.Asks = id, asks
		if _, err := w.ask(r); err == nil || !strings.Contains(err.Error(), "asks something else, which made "+made+"; give this one an ID of its own") {
			t.Errorf("%s %s: %v", r.Verb, asks, err)
		}
	}
	refused(r, "r1", "b", "job j1")
	move := fleet.Request{Verb: fleet.Migrate, ID: "m", Asks: "a", Guest: "j1g0"}
	refused(move, "r1", "c", "job j1")
	save := fleet.Request{Verb: fleet.MakeCheckpoint, ID: "c", Asks: "a", Job: "j1"}
	w.must(save)
	w.answerAll()
	refused(save, "c", "b", "checkpoint j1c1")
	grow := fleet.Request{Verb: fleet.Grow, ID: "g", Asks: "a", Job: "j1", Count: 1, Within: time.Minute}
	w.must(grow)
	w.must(grow)
	grow.Count = 2
	refused(grow, "g", "b", "job j1 grow by 1 guest")
	w.answerAll()
	w.must(move)
	w.must(move)
	refused(move, "m", "b", "move m1")
	move.Asks = "" // as programs of the private protocol do: the ID alone counts
	w.must(move)
	w.answerAll()
	signal := fleet.Request{Verb: fleet.SendSignal, ID: "s", Asks: "a", Job: "j1", Signal: "USR1"}
	w.must(signal)
	w.must(signal)
	if n := len(w.s.Jobs["j1"].Signals); n != 1 {
		t.Errorf("one signal is known %d times", n)
	}
	refused(signal, "s", "b", "a signal for job j1")
	refused(signal, "g", "b", "job j1 grow by 1 guest")
	j := w.s.Jobs["j1"]
	j.Incarnation++
	w.s.Jobs["j1"] = j
	if _, err := w.ask(signal); err == nil || !strings.Contains(err.Error(), "as it was before it began again") {
		t.Errorf("a signal of before: %v", err)
	}
	for i := range 2 * fleet.SignalsKept {
		signal.ID = fleet.RequestID(fmt.Sprint("s", i))
		w.must(signal)
	}
	signal.ID, signal.Asks = "plain", ""
	w.must(signal)
	if kept := w.s.Jobs["j1"].Signals; len(kept) != fleet.SignalsKept || kept[fleet.SignalsKept-1].Request != fleet.RequestID(fmt.Sprint("s", 2*fleet.SignalsKept-1)) {
		t.Errorf("%d are known: %+v", len(kept), kept)
	}
}

// A token that is asked for twice under one key is one, and nobody else's.
func TestOneKeyMakesOneToken(t *testing.T) {
	m := newMembers(t)
	hour := m.s.At.Add(time.Hour)
	root := fleet.Request{Verb: fleet.AddToken, ID: "0/k", Asks: "a", Token: &fleet.JoinToken{ID: "t1", Hash: "h1", Role: fleet.HostRole, Uses: 1, Expires: hour, Salt: "s", Request: "0/x", Maker: "eve"}}
	m.ask(root, "")
	again := root
	again.Token = &fleet.JoinToken{ID: "t2", Hash: "h2", Role: fleet.HostRole, Uses: 1, Expires: hour, Salt: "s2"}
	m.ask(again, "")
	if k := m.s.Tokens["t1"]; len(m.s.Tokens) != 1 || k.Salt != "s" || k.Request != "0/k" || k.Asks != "a" || k.Maker != "" {
		t.Errorf("%+v", m.s.Tokens)
	}
	m.enrol("node", fleet.Enrolment{Token: "t1", Hash: "h1", Key: "k1", Machine: "m1"}, "")
	m.ask(again, "") // it gets no further use
	if k := m.s.Tokens["t1"]; len(m.s.Tokens) != 1 || k.Uses != 0 {
		t.Errorf("%+v", m.s.Tokens)
	}
	other := again
	other.Asks = "b"
	m.ask(other, "made token t1")
	m.ask(fleet.Request{Verb: fleet.SetUser, ID: "0/k", Asks: "c", User: &fleet.User{ID: "ada", Role: fleet.UserRole, UID: 1000}}, "made token t1")
	eve := again
	eve.By = fleet.Caller{Admin: true, User: "eve"}
	m.ask(eve, "made token t1")
	again.Asks = "" // without a key, as the command line asks
	m.ask(again, "")
	if len(m.s.Tokens) != 2 {
		t.Errorf("%+v", m.s.Tokens)
	}
	m.s.At = hour
	m.ask(root, "--ttl from")
}

func TestSubmitOnTheHostsAskedFor(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3")
	r := submission(4)
	r.Spec.On = []fleet.HostID{"host2", "host3"}
	w.must(r)
	for _, g := range w.s.Guests {
		if g.Home == "host1" {
			t.Errorf("%s is on host1", g.ID)
		}
	}
}

func TestSubnetsAreUsedAgainLate(t *testing.T) {
	w := newWorld(t, "host1")
	w.s.Cluster.NextSubnet = fleet.MaxSubnet
	for i, want := range []fleet.Subnet{fleet.MaxSubnet, 0, 1} {
		j := w.must(submission(1)).Job
		if got := w.s.Jobs[j].Subnet; got != want {
			t.Errorf("job %d has network %d, want %d", i, got, want)
		}
	}
}

func TestMigrateRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(*world) fleet.Request
		want string
	}{
		{"unknown guest", func(w *world) fleet.Request { return fleet.Request{Guest: "j9g9"} }, "there is no guest j9g9; `pagurus guest ls` lists them"},
		{"unknown host", func(w *world) fleet.Request { return fleet.Request{Guest: "j1g0", To: "host9"} }, "there is no host host9; `pagurus host ls` lists them"},
		{"already there", func(w *world) fleet.Request { return fleet.Request{Guest: "j1g0", To: w.s.Guests["j1g0"].Home} }, "is on host1 already"},
		{"draining", func(w *world) fleet.Request {
			w.must(fleet.Request{Verb: fleet.Drain, Host: "host3"})
			return fleet.Request{Guest: "j1g0", To: "host3"}
		}, "cannot move to host3, which is draining"},
		{"nowhere", func(w *world) fleet.Request {
			w.cut("host2")
			w.cut("host3")
			w.now = w.now.Add(time.Minute)
			return fleet.Request{Guest: "j1g0"}
		}, "no host can take guest j1g0 now; free a host or add one, then ask again (host1 is where it runs now; host2, host3: has not been heard from for 1m0s)"},
		{"silent source", func(w *world) fleet.Request {
			w.cut("host1")
			w.now = w.now.Add(time.Minute)
			return fleet.Request{Guest: "j1g0"}
		}, "the agent of host1 has not been heard from"},
		{"moving", func(w *world) fleet.Request {
			w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", To: "host2"})
			return fleet.Request{Guest: "j1g0", To: "host3"}
		}, "it is moving from host1 to host2 with m1"},
		{"stopping", func(w *world) fleet.Request {
			w.must(fleet.Request{Verb: fleet.Cancel, Job: "j1", Grace: atOnce()})
			return fleet.Request{Guest: "j1g0"}
		}, "it is being stopped with its job"},
	} {
		w, _ := running(t, 1, "host1", "host2", "host3")
		r := c.make(w)
		r.Verb = fleet.Migrate
		if _, err := w.ask(r); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", c.name, err, c.want)
		}
	}
}

func TestWhoMay(t *testing.T) {
	w, j := running(t, 1, "host1", "host2")
	other := fleet.Caller{UID: 1000}
	job := w.s.Jobs[j]
	job.Spec.UID = 1001
	w.s.Jobs[j] = job
	for _, r := range []fleet.Request{
		{Verb: fleet.Cancel, Job: j}, {Verb: fleet.SendSignal, Job: j, Signal: "USR1"}, {Verb: fleet.Migrate, Guest: "j1g0"}, {Verb: fleet.Drain, Host: "host1"},
		{Verb: fleet.Undrain, Host: "host1"}, {Verb: fleet.Forget, Host: "host1"},
	} {
		r.By, r.At = other, w.now
		var no *Refusal
		if _, err := w.step(r); !errors.As(err, &no) || !strings.Contains(err.Error(), "administrator") {
			t.Errorf("%s: %v", r.Verb, err)
		}
	}
	other.UID = 1001
	for _, r := range []fleet.Request{{Verb: fleet.Migrate, Guest: "j1g0"}, {Verb: fleet.SendSignal, Job: j, Signal: "USR1"}, {Verb: fleet.Cancel, Job: j}} {
		r.By, r.At = other, w.now
		if _, err := w.step(r); err != nil {
			t.Errorf("%s: %v", r.Verb, err)
		}
	}
}

func TestHostsJoinAndAreForgotten(t *testing.T) {
	w, j := running(t, 1, "host1", "host2")
	refused := func(r fleet.Request, want string) {
		t.Helper()
		if _, err := w.ask(r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s %s: got %v, want %s", r.Verb, r.Host, err, want)
		}
	}
	w.must(fleet.Request{Verb: fleet.Drain, Host: "host2"})
	w.observe(fleet.Observation{Called: "host2"})
	if w.s.Hosts["host2"].State != fleet.HostDraining {
		t.Error("joining again undid a drain")
	}
	if _, err := w.p.Step(w.s, fleet.Observation{Called: "../x"}); err == nil || !strings.Contains(err.Error(), "cannot be the name of a host") {
		t.Errorf("a host called ../x: %v", err)
	}
	refused(fleet.Request{Verb: fleet.Forget, Host: "host2"}, "stop the agent first")
	refused(fleet.Request{Verb: fleet.Drain, Host: "host9"}, "there is no host host9")
	w.cut("host1")
	w.cut("host2")
	w.now = w.now.Add(time.Minute)
	refused(fleet.Request{Verb: fleet.Forget, Host: "host1"}, "guest j1g0 may still be on host1; cancel job j1 first")
	w.must(fleet.Request{Verb: fleet.Forget, Host: "host2"})
	w.must(fleet.Request{Verb: fleet.Cancel, Job: j})
	w.tick(3 * time.Minute)
	w.must(fleet.Request{Verb: fleet.Forget, Host: "host1"})
	if len(w.s.Hosts) != 0 {
		t.Error("a host is still known")
	}
	refused(fleet.Request{Verb: "dance"}, `there is no request "dance"`)
}

func TestExplainInWords(t *testing.T) {
	w, j := running(t, 2, "host1", "host2")
	has := func(about Subject, want ...string) {
		t.Helper()
		lines, err := w.p.Explain(w.s, about)
		text := strings.Join(lines, "\n")
		for _, x := range want {
			if err != nil || !strings.Contains(text, x) {
				t.Errorf("%+v: %v\n%s\nlacks %s", about, err, text, x)
			}
		}
	}
	has(Subject{Guest: "j1g0"}, "j1g0 is guest 0 of job j1, of kind vm, and has been running", "Its home is host1: ", "If it had to leave, host2 would take it")
	has(Subject{Job: j}, "j1 runs ./a.out as 2 ranks in 2 guests", "On host1: j1g0.", "Its program runs in guest 0")
	has(Subject{Host: "host1"}, "host1 has been up", "1536 MiB of 2048 MiB of memory free", "j1g0 is running here.")
	w.must(fleet.Request{Verb: fleet.Drain, Host: "host2"})
	has(Subject{Guest: "j1g1"}, "It moves from host2 to host1 with m1 (host2 is draining) and has been preparing", "It waits for host1 to receive it (try 1).")
	has(Subject{Host: "host1"}, "j1g1 is coming from host2 (preparing).")
	w.fault(fleet.Receive, "failed")
	w.answerAll()
	has(Subject{Guest: "j1g1"}, "host2 is draining, so it is to leave when it is its turn.", "1 move in a row failed, the last one because refused before", "It is tried again in 30s")
	w.must(fleet.Request{Verb: fleet.Drain, Host: "host1"})
	has(Subject{Host: "host1"}, "j1g0 cannot leave, because no host can take it: host1 is where it runs now; host2 is draining.")
	w.cut("host1")
	w.now = w.now.Add(time.Minute)
	w.hear()
	has(Subject{Guest: "j1g0"}, "host1 has not been heard from for 1m0s; what runs there may run on")
	has(Subject{Host: "host1"}, "Its agent was last heard from 1m0s ago")
	w.must(fleet.Request{Verb: fleet.Cancel, Job: j})
	has(Subject{Job: j}, "It was cancelled: cancelled by uid 0.", "It waits for 2 guests to end")
	for _, about := range []Subject{{Guest: "x"}, {Job: "x"}, {Host: "x"}, {}} {
		var no *Refusal
		if _, err := w.p.Explain(w.s, about); !errors.As(err, &no) {
			t.Errorf("%+v: %v", about, err)
		}
	}
}

func TestNonsenseIsAnError(t *testing.T) {
	w, _ := running(t, 1, "host1")
	o := Pending(w.s)[0]
	if _, err := w.p.Step(w.s, fleet.Report{Order: o, Outcome: "perhaps"}); err == nil {
		t.Error("an unknown outcome was taken")
	}
	if _, err := w.p.Step(w.s, nil); err == nil {
		t.Error("no event was taken")
	}
	for _, r := range []fleet.Report{
		{Order: fleet.Order{Verb: fleet.Run, Job: "j9"}, Outcome: fleet.Done},
		{Order: fleet.Order{Verb: fleet.Copy, Migration: "m9"}, Outcome: fleet.Done},
		{Order: fleet.Order{Verb: fleet.Watch, Guest: "x"}, Outcome: fleet.Done}, {},
	} {
		if d, err := w.p.Step(w.s, r); err != nil || !d.Change.Empty() || len(d.Orders) != 0 {
			t.Errorf("%+v: %+v %v", r, d, err)
		}
	}
}

func TestAStallIsRecordedOnce(t *testing.T) {
	w, _ := running(t, 1, "host1", "host2")
	moves := w.must(fleet.Request{Verb: fleet.Migrate, Guest: "j1g0"}).Moves
	id := w.s.Moves[moves[0]].Migrations[0]
	seen := func(took time.Duration) *fleet.Stall { return &fleet.Stall{Gap: fleet.Gap{Took: took}} }
	w.observe(fleet.Observation{Migration: id, Stall: seen(1)})
	if w.s.Migrations[id].Stall != nil {
		t.Error("it is not over yet")
	}
	w.answerAll()
	for _, took := range []time.Duration{7, 9} {
		w.observe(fleet.Observation{Migration: id, Stall: seen(took)})
	}
	w.observe(fleet.Observation{Migration: "m99.j1g0", Stall: seen(3)})
	w.observe(fleet.Observation{Migration: id})
	if s := w.s.Migrations[id].Stall; s == nil || s.Took != 7 {
		t.Errorf("%+v", s)
	}
}
