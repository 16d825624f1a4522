package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/show/view"
)

// runs makes the world run every submitted job by script.
func (w *world) runs(script func(job fleet.JobID)) {
	w.answers(func(r fleet.Request) (fleet.Answer, error) {
		const job = fleet.JobID("j1")
		switch r.Verb {
		case fleet.Submit:
			w.Change(func(s *fleet.Snapshot) {
				s.Jobs[job] = fleet.Job{ID: job, Spec: *r.Spec, State: fleet.JobRunning, Submitted: time.Now()}
			})
			go script(job)
			return fleet.Answer{Job: job, Notes: []string{"host2 was left out"}}, nil
		case fleet.Cancel:
			go w.ends(r.Job, fleet.Job{Result: fleet.JobCancelled, Cause: "by request"})
		}
		return fleet.Answer{}, nil
	})
}

// ends ends a job with how's result, cause and exit, and its streams.
func (w *world) ends(job fleet.JobID, how fleet.Job) {
	w.Change(func(s *fleet.Snapshot) {
		j := s.Jobs[job]
		j.State, j.Result, j.Cause, j.Exit, j.Ended = fleet.JobEnded, how.Result, how.Cause, how.Exit, time.Now()
		s.Jobs[job] = j
	})
	w.says(job, fleet.Stdout, "", true)
	w.says(job, fleet.Stderr, "", true)
}

func exited(code int) fleet.Job {
	return fleet.Job{Result: fleet.JobFinished, Exit: &fleet.Exit{Code: code}}
}

func TestRunCarriesStreamsAndExit(t *testing.T) {
	w := newWorld(t)
	input := strings.Repeat("a line of input\n", 50) + "no newline at the end"
	w.runs(func(job fleet.JobID) {
		w.says(job, fleet.Stdout, "one\x00\xff\ntwo", false)
		w.says(job, fleet.Stderr, "oops\n", false)
		w.says(job, fleet.Stdout, w.heard(job), false)
		w.ends(job, exited(7))
	})
	t.Chdir(t.TempDir())
	got := w.pagurus(input, "run", "-n", "4", "--env", "A=b", "--mem", "1G", "--cap", "75%", "--", "./a.out", "-n", "--help")
	if got.out != "one\x00\xff\ntwo"+input || got.err != "oops\n" || got.code != 7 {
		t.Errorf("got %q, %q, %d", got.out, got.err, got.code)
	}
	spec := w.Asked()[0].Spec
	dir, _ := filepath.EvalSymlinks(".")
	dir, _ = filepath.Abs(dir)
	if strings.Join(spec.Args, " ") != "./a.out -n --help" || spec.Dir != dir || spec.Export != dir || spec.Machine != "machine" {
		t.Errorf("asked for %+v", spec)
	}
	if spec.Ranks != 4 || spec.Guests != 2 || spec.Need != (fleet.Resources{CPUs: 2, MemoryBytes: 1 << 30}) || spec.Env[0] != "A=b" || spec.Cap != 0.75 || !spec.Trace {
		t.Errorf("asked for %+v", spec)
	}
}

func TestRunSaysWhyItFailed(t *testing.T) {
	w := newWorld(t)
	w.runs(func(job fleet.JobID) {
		w.ends(job, fleet.Job{Result: fleet.JobFailed, Cause: "guest j1g0 ended by itself"})
	})
	t.Chdir(t.TempDir())
	got := w.pagurus("", "run", "-v", "-n", "1", "true")
	if got.code != 125 || !strings.Contains(got.err, "pagurus: j1: guest j1g0 ended by itself") || !strings.Contains(got.err, "host2 was left out") {
		t.Errorf("got %+v", got)
	}
	w.answers(nil)
	if got := w.pagurus("", "run", "-n", "1", "true"); got.code != 125 || got.err != "pagurus: there is no room; try fewer guests\n" {
		t.Errorf("got %+v", got)
	}
}

func TestRunSurvivesTheController(t *testing.T) {
	w := newWorld(t)
	w.runs(func(job fleet.JobID) {
		w.says(job, fleet.Stdout, "before ", false)
		w.stop()
		w.says(job, fleet.Stdout, "meanwhile ", false)
		time.Sleep(300 * time.Millisecond)
		w.serve()
		w.says(job, fleet.Stdout, "after", false)
		w.ends(job, exited(0))
	})
	t.Chdir(t.TempDir())
	if got := w.pagurus("", "run", "-n", "1", "true"); got.out != "before meanwhile after" || got.code != 0 || got.err != "" {
		t.Errorf("got %+v", got)
	}
}

func TestInterruptCancels(t *testing.T) {
	w := newWorld(t)
	w.runs(func(job fleet.JobID) {
		w.heard(job) // now it stays with the job
		if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
			t.Error(err)
		}
	})
	t.Chdir(t.TempDir())
	if got := w.pagurus("", "run", "-n", "1", "sleep", "100"); got.code != 130 {
		t.Errorf("got %+v", got)
	}
	if last := w.Asked()[len(w.Asked())-1]; last.Verb != fleet.Cancel || last.Job != "j1" {
		t.Errorf("asked for %+v", last)
	}
}

func TestDetachClosesInput(t *testing.T) {
	w := newWorld(t)
	w.runs(func(fleet.JobID) {})
	t.Chdir(t.TempDir())
	if got := w.pagurus("not for the job", "run", "-d", "-n", "1", "true"); got.out != "j1\n" || got.code != 0 {
		t.Errorf("got %+v", got)
	}
	if text := w.heard("j1"); text != "" {
		t.Errorf("it was given %q", text)
	}
}

func TestWaitAndLogs(t *testing.T) {
	w := newWorld(t)
	w.Change(func(s *fleet.Snapshot) {
		s.Jobs["j1"] = fleet.Job{ID: "j1", State: fleet.JobRunning}
		s.Jobs["j2"] = fleet.Job{ID: "j2", State: fleet.JobRunning}
	})
	w.says("j1", fleet.Stdout, "some output\n", false)
	w.says("j1", fleet.Stderr, "some errors\n", false)
	if got := w.pagurus("", "logs", "j1"); got.out != "some output\n" || got.err != "some errors\n" || got.code != 0 {
		t.Errorf("got %+v", got)
	}
	go func() {
		w.ends("j1", exited(0))
		w.ends("j2", exited(3))
	}()
	if got := w.pagurus("", "wait", "j1", "j2", "j1"); got.code != 3 || got.err != "" {
		t.Errorf("got %+v", got)
	}
	if got := w.pagurus("", "logs", "-f", "j1"); got.out != "some output\n" || got.code != 0 {
		t.Errorf("got %+v", got)
	}
}

// Output that cannot be written cancels the job of a `run`, which is its one reader, but not
// that of a `logs -f`.
func TestOutputThatCannotBeWritten(t *testing.T) {
	w := newWorld(t)
	w.runs(func(job fleet.JobID) { w.says(job, fleet.Stdout, "some output\n", false) })
	t.Chdir(t.TempDir())
	if got := w.pagurusInto(full{}, "", "run", "-n", "1", "true"); got.code != 125 || w.Asked()[len(w.Asked())-1].Verb != fleet.Cancel {
		t.Errorf("run: %+v, asked for %+v", got, w.Asked())
	}
	w = newWorld(t)
	w.runs(func(fleet.JobID) {})
	w.Change(func(s *fleet.Snapshot) { s.Jobs["j1"] = fleet.Job{ID: "j1", State: fleet.JobRunning} })
	w.says("j1", fleet.Stdout, "some output\n", false)
	if got := w.pagurusInto(full{}, "", "logs", "-f", "j1"); got.code != 1 || !strings.Contains(got.err, "no space left") || len(w.Asked()) != 0 {
		t.Errorf("logs -f: %+v, asked for %+v", got, w.Asked())
	}
}

// move makes a migration with its move.
func move(s *fleet.Snapshot, phase fleet.Phase, cause string) {
	whole := fleet.Move{ID: "m1", Migrations: []fleet.MigrationID{"m1.j1g0"}, Why: "asked for", Begun: time.Now()}
	if phase.Ended() {
		whole.Ended = time.Now()
	}
	s.Moves["m1"] = whole
	m := fleet.Migration{ID: "m1.j1g0", Move: "m1", Guest: "j1g0", Job: "j1", From: "host1", To: "host2", Phase: phase, Cause: cause,
		Entered: []fleet.Entered{{Phase: fleet.Preparing, At: time.Now()}}}
	if phase == fleet.Finished {
		m.Cost = fleet.Progress{Rounds: 3, SentBytes: 100 << 20, TotalBytes: 512 << 20, Downtime: 12 * time.Millisecond}
		m.Entered = append(m.Entered, fleet.Entered{Phase: fleet.Finished, At: time.Now()})
	}
	s.Migrations[m.ID] = m
}

func TestMigrateWaits(t *testing.T) {
	for _, c := range []struct {
		phase fleet.Phase
		cause string
		code  int
		says  string
	}{
		{fleet.Finished, "", 0, "downtime 12 ms"},
		{fleet.Aborted, "host2 has no room", 1, "pagurus: j1g0 stays at host1: host2 has no room"},
		{fleet.Lost, "", 1, "j1g0 is lost"},
	} {
		w := newWorld(t)
		w.answers(func(fleet.Request) (fleet.Answer, error) {
			w.Change(func(s *fleet.Snapshot) { move(s, fleet.Preparing, "") })
			return fleet.Answer{Moves: []fleet.MoveID{"m1"}}, nil
		})
		if got := w.pagurus("", "migrate", "j1g0", "--to", "host2"); got.out != "m1\n" || got.code != 0 {
			t.Errorf("without --wait: %+v", got)
		}
		b := w.beginCommand("migrate", "j1g0", "--to", "host2", "--wait")
		b.shows("preparing")
		w.Change(func(s *fleet.Snapshot) { move(s, c.phase, c.cause) })
		if code := <-b.code; code != c.code || !strings.Contains(b.out.String()+b.err.String(), c.says) {
			t.Errorf("%s: %d, %q, %q", c.phase, code, b.out.String(), b.err.String())
		}
	}
}

// Ctrl-C ends the wait and not the move, and a message says so.
func TestInterruptLeavesTheMoveAlone(t *testing.T) {
	w := newWorld(t)
	w.answers(func(fleet.Request) (fleet.Answer, error) {
		w.Change(func(s *fleet.Snapshot) {
			s.Hosts["host1"] = fleet.Host{ID: "host1", State: fleet.HostDraining}
			s.Moves["m1"] = fleet.Move{ID: "m1", Migrations: []fleet.MigrationID{"m1.g"}}
			s.Migrations["m1.g"] = fleet.Migration{ID: "m1.g", Move: "m1", Guest: "j1g0", Job: "j1", From: "host1", To: "host2", Phase: fleet.Copying}
		})
		return fleet.Answer{Moves: []fleet.MoveID{"m1"}}, nil
	})
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"migrate", "j1g0", "--to", "host2", "--wait"}, "`pagurus move cancel m1` cancels it"},
		{[]string{"drain", "host1", "--wait"}, "`pagurus undrain host1` cancels it"},
	} {
		asked := len(w.Asked())
		b := w.beginCommand(c.args...)
		b.shows("copying") // before this the signal is not caught
		if e := syscall.Kill(os.Getpid(), syscall.SIGINT); e != nil {
			t.Fatal(e)
		}
		if got := <-b.code; got != 130 || !strings.Contains(b.err.String(), c.says) {
			t.Errorf("%v: %d, %q", c.args, got, b.err.String())
		}
		if len(w.Asked()) != asked+1 {
			t.Errorf("it asked for %+v", w.Asked()[asked:])
		}
	}
}

func TestDrainAsksForLimits(t *testing.T) {
	w := newWorld(t)
	w.answers(func(fleet.Request) (fleet.Answer, error) { return fleet.Answer{}, nil })
	got := w.pagurus("", "drain", "host1", "--bandwidth", "200M/s", "--page-cache", "drop", "--compress", "off")
	want := fleet.Limits{BytesPerSecond: 200 << 20, PageCache: fleet.DropCache, Compress: fleet.CompressOff}
	if r := w.Asked()[0]; got.code != 0 || r.Verb != fleet.Drain || r.Host != "host1" || r.Limits != want {
		t.Errorf("got %+v, asked for %+v", got, r)
	}
}

func TestMigrateAsksForAGang(t *testing.T) {
	w := newWorld(t)
	w.answers(func(fleet.Request) (fleet.Answer, error) {
		return fleet.Answer{Moves: []fleet.MoveID{"m1"}, Notes: []string{"guest j1g2 is already on host2 and stays there"}}, nil
	})
	got := w.pagurus("", "migrate", "j1g0", "j1g1", "j1g2", "--to", "host2", "--bandwidth", "200M/s", "--max-downtime", "30ms", "--deadline", "10s")
	if got.out != "m1\n" || !strings.Contains(got.err, "stays there") || got.code != 0 {
		t.Errorf("got %+v", got)
	}
	r := w.Asked()[0]
	if len(r.Guests) != 3 || r.To != "host2" || r.Limits != (fleet.Limits{BytesPerSecond: 200 << 20, Downtime: 30 * time.Millisecond, Deadline: 10 * time.Second}) {
		t.Errorf("asked for %+v", r)
	}
	w.pagurus("", "migrate", "--job", "j1", "--mode", "stop-and-copy")
	if r := w.Asked()[1]; r.Job != "j1" || len(r.Guests) != 0 || r.Limits != (fleet.Limits{Mode: fleet.StopAndCopy}) {
		t.Errorf("asked for %+v", r)
	}
	if got := w.pagurus("", "moves", "cancel", "m1"); got.out != "m1\n" || got.code != 0 || w.Asked()[2].Verb != fleet.CancelMove || w.Asked()[2].Move != "m1" {
		t.Errorf("got %+v, asked for %+v", got, w.Asked()[2])
	}
}

func TestMovesShow(t *testing.T) {
	w := newWorld(t)
	w.Change(func(s *fleet.Snapshot) { move(s, fleet.Finished, "") })
	if got := w.pagurus("", "moves", "show", "m1"); !strings.Contains(got.out, "m1: 1 guest, because: asked for") || !strings.Contains(got.out, "PREPARING") || got.code != 0 {
		t.Errorf("got %+v", got)
	}
	var m view.Move
	if got := w.pagurus("", "moves", "show", "m1", "--json"); json.Unmarshal([]byte(got.out), &m) != nil || m.ID != "m1" || len(m.Parts) != 1 {
		t.Errorf("got %+v", got)
	}
	if got := w.pagurus("", "move", "show", "m9"); got.code != 1 || !strings.Contains(got.err, "pagurus move ls") {
		t.Errorf("got %+v", got)
	}
}

func TestDrainSaysWhoStays(t *testing.T) {
	w := newWorld(t)
	w.Change(func(s *fleet.Snapshot) {
		s.Guests["j1g0"] = fleet.Guest{ID: "j1g0", State: fleet.GuestRunning, Home: "host1"}
	})
	w.answers(func(fleet.Request) (fleet.Answer, error) {
		w.Change(func(s *fleet.Snapshot) {
			h := s.Hosts["host1"]
			h.State = fleet.HostDraining
			s.Hosts["host1"] = h
		})
		time.AfterFunc(50*time.Millisecond, func() { w.Ahead(2 * stuckAfter) })
		return fleet.Answer{Notes: []string{"j1g0 has nowhere to go"}}, nil
	})
	got := w.pagurus("", "drain", "host1", "--wait")
	for _, want := range []string{"pagurus: j1g0 has nowhere to go", "host1 still has j1g0", "because of j1g0", "undrain host1"} {
		if !strings.Contains(got.err, want) {
			t.Errorf("%q is not in %q", want, got.err)
		}
	}
	if got.code != 1 {
		t.Errorf("exit %d", got.code)
	}
	w.Change(func(s *fleet.Snapshot) { delete(s.Guests, "j1g0") })
	if got := w.pagurus("", "drain", "host1", "--wait"); got.code != 0 {
		t.Errorf("an empty host: %+v", got)
	}
}

// A guest that is starting, or whose next try is scheduled, is not stuck: it leaves later.
func TestDrainWaitsForWhoLeavesLater(t *testing.T) {
	for what, later := range map[string]func(now time.Time, g *fleet.Guest){
		"starts":         func(_ time.Time, g *fleet.Guest) { g.State = fleet.GuestStarting },
		"is tried again": func(now time.Time, g *fleet.Guest) { g.RetryAt = now.Add(time.Minute) },
	} {
		w := newWorld(t)
		w.Change(func(s *fleet.Snapshot) {
			s.Guests["j1g0"] = fleet.Guest{ID: "j1g0", State: fleet.GuestRunning, Home: "host1"}
			s.Hosts["host1"] = fleet.Host{ID: "host1", State: fleet.HostDraining}
		})
		w.answers(func(fleet.Request) (fleet.Answer, error) { return fleet.Answer{}, nil })
		now := w.Clock() // Change holds what Clock waits for
		w.Change(func(s *fleet.Snapshot) {
			g := s.Guests["j1g0"]
			later(now, &g)
			s.Guests["j1g0"] = g
		})
		b := w.beginCommand("drain", "host1", "--wait")
		for range 3 { // longer than it waits for stuck guests
			time.Sleep(50 * time.Millisecond)
			w.Ahead(2 * stuckAfter)
		}
		select {
		case code := <-b.code:
			t.Errorf("%s: it gave up: %d, %q", what, code, b.err.String())
		case <-time.After(100 * time.Millisecond):
			w.Change(func(s *fleet.Snapshot) { delete(s.Guests, "j1g0") })
			if code := <-b.code; code != 0 {
				t.Errorf("%s: when it has left: %d, %q", what, code, b.err.String())
			}
		}
	}
}

func TestDrainPrintsItsMovesAsJSON(t *testing.T) {
	w := newWorld(t)
	w.answers(func(fleet.Request) (fleet.Answer, error) {
		w.Change(func(s *fleet.Snapshot) {
			h := s.Hosts["host1"]
			h.State = fleet.HostDraining
			s.Hosts["host1"] = h
			move(s, fleet.Copying, "")
		})
		time.AfterFunc(100*time.Millisecond, func() { w.Change(func(s *fleet.Snapshot) { move(s, fleet.Finished, "") }) })
		return fleet.Answer{Moves: []fleet.MoveID{"m1"}}, nil
	})
	var m view.Move
	if got := w.pagurus("", "drain", "host1", "--wait", "--json"); json.Unmarshal([]byte(got.out), &m) != nil || m.ID != "m1" || got.code != 0 {
		t.Errorf("%+v", got)
	}
}

func TestTables(t *testing.T) {
	w := newWorld(t)
	if got := w.pagurus("", "hosts"); !strings.Contains(got.out, "host2  up") || got.code != 0 {
		t.Errorf("got %+v", got)
	}
	var hosts []view.Host
	if got := w.pagurus("", "hosts", "--json"); json.Unmarshal([]byte(got.out), &hosts) != nil || len(hosts) != 2 || hosts[0].ID != "host1" {
		t.Errorf("got %+v", got)
	}
	for _, what := range []string{"guests", "jobs", "moves", "job ls", "guest ls", "move", "moves ls"} {
		if got := w.pagurus("", append(strings.Fields(what), "--json")...); got.out != "[]\n" {
			t.Errorf("%s: %+v", what, got)
		}
	}
	w.Change(func(s *fleet.Snapshot) { move(s, fleet.Finished, "") })
	for id, want := range map[string]string{"host1": "because of host1", "m1": "m1: 1 guest, because: asked for"} {
		if got := w.pagurus("", "explain", id); !strings.HasPrefix(got.out, want) {
			t.Errorf("explain %s: %+v", id, got)
		}
	}
}

func TestCompletion(t *testing.T) {
	w := newWorld(t)
	for _, args := range [][]string{{"drain", ""}, {"host", "drain", ""}, {"hosts", "undrain", ""}, {"guest", "migrate", "g", "--to", ""}, {"migrate", "g", "--to", ""}, {"explain", ""}, {"run", "--on", "host1,"}} {
		if got := w.pagurus("", append([]string{"__complete"}, args...)...); !strings.Contains(got.out, "host2\tup, 0 guests") {
			t.Errorf("%v: %+v", args, got)
		}
	}
}

func TestBadCommandLines(t *testing.T) {
	w := newWorld(t)
	t.Chdir(t.TempDir())
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"run -n 1", 125, "no program"},
		{"run -n 0 true", 125, "-n: 0 is too few: write 1 or more"},
		{"run -np 4 true", 125, "-n 4"},
		{"run -N 2 true", 125, "--guests"},
		{"run --oversubscribe -n 2 true", 125, "leave --oversubscribe out"},
		{"run -npernode 2 true", 125, "for 2 ranks a guest"},
		{"run -npersocket 2 true", 125, "ranks fill guests in order"},
		{"run -c 3 true", 125, "write -n 3 where mpirun has -c 3"},
		{"run -cpus-per-proc 3 true", 125, "--cpus says how many CPUs a guest has"},
		{"run -ntasks 4 true", 125, "write -n 4 where srun has --ntasks 4"},
		{"run --nodes=2 true", 125, "write --guests 2 where srun has --nodes 2"},
		{"run -N2 true", 125, "for 2 ranks a guest"},
		{"run -n four true", 125, `-n: "four" is not a number`},
		{"run -hostfile f -n 2 true", 125, "name hosts by --on host1,host2"},
		{"run -host a,b -n 2 true", 125, "write --on a,b where mpirun has --host a,b"},
		{"run --mca btl tcp true", 125, "--env OMPI_MCA_"},
		{"run -mca btl tcp true", 125, "--env OMPI_MCA_"},
		{"run --hostfile hosts true", 125, "--on host1,host2"},
		{"run -H mars true", 125, "mars"},
		{"run -x =y true", 125, "NAME"},
		{"run --kind docker true", 125, "vm, container, xen or auto"},
		{"run --class best true", 125, "gold, normal or bronze"},
		{"run -n 2 --guests 3 true", 125, "--guests"},
		{"run --mem lots true", 125, "lots"},
		{"run --cap 150% true", 125, "150%"},
		{"run --on mars true", 125, "mars"},
		{"run --env =x true", 125, "NAME"},
		{"run --bogus true", 125, "--bogus"},
		{"run --export /usr true", 125, "/usr"},
		{"logs j9", 1, "j9"},
		{"logs", 1, "pagurus job ls"},
		{"wait j9", 125, "j9"},
		{"wait", 125, "pagurus job ls"},
		{"wait --bogus j9", 125, "--bogus"},
		{"explain nothing", 1, "nothing"},
		{"hosts host1", 1, "host1"},
		{"hostss", 1, `did you mean "hosts"?`},
		{"hots", 1, `did you mean "host"?`},
		{"gust", 1, `did you mean "guest"?`},
		{"jobs shw", 1, `did you mean "show"?`},
		{"qwerty", 1, `"qwerty"; see`},
		{"jbo ls", 1, `did you mean "job"?`},
		{"job lst", 1, `"job lst", did you mean "ls"?`},
		{"host derain host1", 1, `did you mean "drain"?`},
		{"job wait", 125, "pagurus job wait --help"},
		{"job run -np 4 true", 125, "-n 4"},
		{"migrate j1g0 --bandwidh 1M", 1, "did you mean --bandwidth?"},
		{"cancel j9", 1, "no room"},
		{"migrate", 1, "--job"},
		{"migrate j1g0 --job j1", 1, "--job"},
		{"migrate j1g0 --bandwidth fast", 1, "200M"},
		{"migrate j1g0 --wait --dry-run", 1, "dry-run"},
		{"drain host1 --wait --dry-run", 1, "dry-run"},
		{"drain host1 --bandwidth fast", 1, "200M"},
		{"migrate j1g0 --max-downtime 1us", 1, "1ms"},
		{"migrate j1g0 --deadline -1s", 1, "30s"},
		{"moves m1", 1, "m1"},
		{"moves show", 1, "one move"},
		{"moves cancel m9", 1, "no room"},
	} {
		got := w.pagurus("", strings.Fields(c.args)...)
		if got.code != c.code || !strings.Contains(got.err, c.says) || !strings.HasPrefix(got.err, "pagurus: ") {
			t.Errorf("%s: %+v, want %d and %q", c.args, got, c.code, c.says)
		}
	}
	w.stop()
	if got := w.pagurus("", "hosts"); got.code != 1 || !strings.Contains(got.err, "pagurus lab up") {
		t.Errorf("nobody there: %+v", got)
	}
	if got := w.pagurus("", "wait", "j9"); got.code != 125 {
		t.Errorf("nobody there to wait with: %+v", got)
	}
	if got := w.pagurus("", "--controller", "127.0.0.1:1", "--credentials", "/none", "hosts"); !strings.Contains(got.err, "pagurus login 127.0.0.1:1") {
		t.Errorf("without credentials: %+v", got)
	}
}

func TestManPages(t *testing.T) {
	w, dir := newWorld(t), t.TempDir()
	if got := w.pagurus("", "man", dir); got.code != 0 {
		t.Fatalf("got %+v", got)
	}
	text, err := os.ReadFile(filepath.Join(dir, "pagurus-run.1"))
	if err != nil || !strings.Contains(string(text), "mpirun") {
		t.Errorf("%v: %.200s", err, text)
	}
}

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]int64{"512M": 512 << 20, "1.5G": 3 << 29, "2GiB": 2 << 30, "1048576": 1 << 20, "64kb": 64 << 10, " 1t ": 1 << 40} {
		if got, err := ParseBytes(text); err != nil || got != want {
			t.Errorf("%q is %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "M", "-1M", "0", "0.5", "1X", "NaN", "Inf", "9e99G", "1 0"} {
		if got, err := ParseBytes(text); err == nil {
			t.Errorf("%q is %d", text, got)
		}
	}
}

// Flags of one kind are read and refused alike, and help shows an example.
func TestQuantities(t *testing.T) {
	for text, want := range map[string]float64{"50%": 0.5, "0.5": 0.5, " 0 ": 0, "1 %": 0.01, "0.5 %": 0.005, "0.02": 0.02, " 10%": 0.1} {
		if got, err := ParseShare(text); err != nil || got != want {
			t.Errorf("%q is %g, %v", text, got, err)
		}
	}
	for _, bad := range []string{"", "%", "many", "1%%", "NaN"} {
		if got, err := ParseShare(bad); err == nil {
			t.Errorf("%q is %g", bad, got)
		}
	}
	if got, err := ParseRate("200M/s"); err != nil || got != 200<<20 || bytesText(got) != "200M" || bytesText(1000) != "1000" {
		t.Errorf("200M/s is %d, %v, written %s", got, err, bytesText(got))
	}
	for n, want := range map[int64]string{25 << 19: "12.5M", 1536: "1.5K", 512: "512", 1025: "1025", 3 << 39: "1.5T", 3 << 49: "1536T", 1 << 30: "1G"} {
		if got, err := ParseBytes(want); err != nil || got != n || bytesText(n) != want {
			t.Errorf("%s is %d, %v, and %d is written %s", want, got, err, n, bytesText(n))
		}
	}
	for d, want := range map[time.Duration]string{30 * time.Minute: "30m", time.Hour: "1h", 90 * time.Second: "1m30s", 50 * time.Millisecond: "50ms"} {
		if got, err := ParseDuration(want); err != nil || got != d || fleet.ShortDuration(d) != want {
			t.Errorf("%s is %s, %v", want, got, err)
		}
	}
	w := newWorld(t)
	for args, says := range map[string]string{
		"run --mem lots true":           `--mem: "lots" is not a size`,
		"migrate j1g0 --bandwidth 0":    `--bandwidth: "0" is not a rate`,
		"run --cap 150% true":           `--cap: "150%" is not a share`,
		"host policy host1 --cap NaN":   `--cap: "NaN" is not a share`,
		"cancel j1 --grace -1s":         `--grace: "-1s" is not a duration`,
		"drain host1 --timeout shortly": `--timeout: "shortly" is not a duration`,
		"run -n many true":              `-n: "many" is not a number`,
	} {
		if got := w.pagurus("", strings.Fields(args)...); got.code == 0 || !strings.Contains(got.err, says) {
			t.Errorf("%s: %+v, want %s", args, got, says)
		}
	}
}

func TestCheckExport(t *testing.T) {
	for _, ok := range [][2]string{{"/home/me", "/home/me/run"}, {"/home/me", "/home/me"}, {"/usrlocal", "/usrlocal"}, {"/tmp/x", "/tmp/x"}, {"/var/tmp/x", "/var/tmp/x"}} {
		if err := checkExport(ok[0], ok[1]); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range [][2]string{{"/", "/"}, {"/usr", "/usr/x"}, {"/usr/lib", "/usr/lib/x"}, {"/usr/local", "/usr/local"}, {"/etc/x", "/etc/x"},
		{"/lib64/x", "/lib64/x"}, {"/usr/local/src/x", "/usr/local/src/x"}, {"/proc/1", "/proc/1"}, {"/home/me", "/home/mean"}, {"/home/me/a", "/home/me"}} {
		if checkExport(bad[0], bad[1]) == nil {
			t.Errorf("%v was taken", bad)
		}
	}
}

func TestShape(t *testing.T) {
	host := func(cpus int) view.Host {
		return view.Host{Host: fleet.Host{Facts: fleet.Facts{Capacity: fleet.Resources{CPUs: cpus}}}}
	}
	two := []view.Host{host(2), host(4)}
	for _, c := range []struct {
		f            runFlags
		hosts        []view.Host
		guests, cpus int
	}{
		{runFlags{ranks: 4}, two, 2, 2},
		{runFlags{ranks: 1}, two, 1, 1},
		{runFlags{ranks: 64}, two, 2, 4},
		{runFlags{ranks: 4, guests: 4}, two, 4, 1},
		{runFlags{ranks: 4, cpus: 3}, two, 2, 3},
		{runFlags{ranks: 4}, nil, 1, 1},
	} {
		if g, p := shape(&c.f, c.hosts); g != c.guests || p != c.cpus {
			t.Errorf("%+v on %d hosts: %d guests of %d CPUs, want %d of %d", c.f, len(c.hosts), g, p, c.guests, c.cpus)
		}
	}
}
