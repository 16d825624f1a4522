package container_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pagurus/act/container"
	"pagurus/act/guestlink"
	"pagurus/fleet"
	"pagurus/internal/testkit"
)

const jobUser = 1234 // has no name on this machine or in images

// job is one job's guests, wherever they are.
type job struct {
	*world
	t       *testing.T
	drivers [2]*container.Driver
	tasks   [guests]fleet.Task
	inside  [guests]*guestlink.Client

	mu sync.Mutex
	at [guests]int // host
}

// newJob starts a job with a guest on each host.
func newJob(t *testing.T, image string, ranksEach int) *job {
	t.Helper()
	return newJobOf(t, image, ranksEach, jobUser)
}

// newJobOf is newJob for a user's programs. The user's group number is one higher, except
// root's.
func newJobOf(t *testing.T, image string, ranksEach int, user uint32) *job {
	t.Helper()
	w := newWorld(t)
	agent, err := build("guest", "pagurus/cmd/pagurus-guest")
	if err != nil {
		t.Fatal(err)
	}
	group := user
	if user != 0 {
		group++
	}
	w.agent, w.image = agent, testkit.Image(t, image)
	if err := os.Chown(w.files, int(user), int(group)); err != nil {
		t.Fatal(err)
	}
	j := &job{world: w, t: t}
	for i := range j.drivers {
		j.drivers[i] = w.open(t, i)
	}
	t.Cleanup(func() {
		for _, d := range j.drivers {
			for g := range guests {
				if err := d.Stop(context.Background(), j.tasks[g].Guest.ID); err != nil {
					t.Error(err)
				}
			}
		}
		for i, d := range j.drivers {
			for _, what := range w.left(t, i, j.tasks[0].Guest.ID) {
				t.Errorf("left behind on host %d: %s", i, what)
			}
			d.Close()
		}
	})
	var peers []fleet.Peer
	for g := range guests {
		peers = append(peers, fleet.Peer{Hostname: fleet.GuestName(g), Addr: subnet.GuestAddr(g), MAC: subnet.GuestMAC(g), Slots: ranksEach})
	}
	var all sync.WaitGroup
	for g := range guests {
		tk := task(fleet.GuestID(fmt.Sprintf("j1g%d", g)))
		tk.Guest.Index, tk.Job.Spec.Export, tk.Guest.Need.MemoryBytes = g, "/work dir", 1<<30
		tk.Job.Spec.UID, tk.Job.Spec.GID = user, group
		j.tasks[g], j.at[g] = tk, g
		j.lead(t, g, g)
		begun := time.Now()
		if err := j.drivers[g].Start(t.Context(), tk); err != nil {
			t.Fatal(err)
		}
		j.inside[g] = guestlink.New(func(ctx context.Context) (io.ReadWriteCloser, error) {
			j.mu.Lock()
			d := j.drivers[j.at[g]]
			j.mu.Unlock()
			return d.Link(ctx, tk.Guest.ID)
		})
		t.Cleanup(func() { j.inside[g].Close() })
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err := j.inside[g].Setup(ctx, fleet.Setup{
				Guest: tk.Guest.ID, Hostname: fleet.GuestName(g), Index: g, Addr: subnet.GuestAddr(g), Prefix: fleet.SubnetPrefixBits,
				MAC: subnet.GuestMAC(g), MTU: fleet.NetworkMTU, Peers: peers, Share: subnet.ShareAddr(), Export: tk.Job.Spec.Export,
				UID: user, GID: group, Groups: []uint32{3456}, MPI: strings.TrimRight(image, "4"), Clock: time.Now(), Seed: make([]byte, 32),
			})
			if err != nil {
				t.Errorf("guest %d: %v", g, err)
			}
			t.Logf("guest %d is a member of its job after %s", g, time.Since(begun))
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return j
}

// move moves a guest to the other host.
func (j *job) move(g, n int) fleet.Progress {
	j.t.Helper()
	p, err := j.tryMove(g, n)
	if err != nil {
		j.t.Fatalf("move %d of guest %d: switch: %v", n, g, err)
	}
	j.t.Logf("guest %d moved: %d rounds, %d KiB sent, %s in all, %s down", g, p.Rounds, p.SentBytes>>10, p.Elapsed.Round(time.Millisecond), p.Downtime.Round(time.Millisecond))
	return p
}

// tryMove is move for a guest that may refuse to be switched; then it keeps running. Every
// second move is by post-copy.
func (j *job) tryMove(g, n int) (fleet.Progress, error) {
	j.t.Helper()
	tk := j.tasks[g]
	tk.Order.Migration = fleet.MigrationID(fmt.Sprintf("m%d.%s", n, tk.Guest.ID))
	tk.Limits.Downtime, tk.Limits.Mode = time.Minute, modes[n%len(modes)]
	here := j.at[g]
	from, to := j.drivers[here], j.drivers[1-here]
	must := func(what string, err error) {
		j.t.Helper()
		if err != nil {
			j.t.Fatalf("move %d of guest %d: %s: %v", n, g, what, err)
		}
	}
	var err error
	tk.Listen, err = to.Receive(j.t.Context(), tk)
	must("receive", err)
	must("copy", from.Copy(j.t.Context(), tk, func(fleet.Progress) {}))
	lead := func(away bool) { // as the overlay does
		if away {
			j.lead(j.t, g, 1-here)
		} else {
			j.lead(j.t, g, here)
		}
	}
	p, err := from.Switch(j.t.Context(), tk, lead)
	if err != nil {
		must("resume", from.Resume(j.t.Context(), tk.Guest.ID))
		lead(false)
		must("discard", to.Stop(j.t.Context(), tk.Guest.ID))
		return p, err
	}
	must("resume", to.Resume(j.t.Context(), tk.Guest.ID))
	j.mu.Lock()
	j.at[g] = 1 - here
	j.mu.Unlock()
	must("fetch", to.FetchRemaining(j.t.Context(), tk.Guest.ID))
	must("retire", from.Stop(j.t.Context(), tk.Guest.ID))
	return p, nil
}

// outcome is a program's result.
type outcome struct {
	stdout, stderr string
	exit           fleet.Exit
}

// do runs a program in a guest to its end, as the host's agent does.
func (j *job) do(g int, limit time.Duration, p fleet.Program, stdin string) (o outcome) {
	t := j.t
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	p.ID, p.Dir = fmt.Sprintf("p%d", time.Now().UnixNano()), j.tasks[g].Job.Spec.Export
	in := j.inside[g]
	if err := in.Launch(ctx, p); err != nil {
		t.Errorf("%v: %v", p.Args, err)
		return o
	}
	if _, err := in.Write(ctx, p.ID, 0, []byte(stdin), true); err != nil {
		t.Errorf("%v: %v", p.Args, err)
	}
	var all sync.WaitGroup
	for name, to := range map[string]*string{fleet.Stdout: &o.stdout, fleet.Stderr: &o.stderr} {
		all.Go(func() {
			var got []byte
			for eof := false; !eof; {
				data, end, err := in.Read(ctx, p.ID, name, int64(len(got)))
				if err != nil {
					t.Errorf("%v: read %s: %v", p.Args, name, err)
					break
				}
				got, eof = append(got, data...), end
			}
			*to = string(got)
		})
	}
	all.Wait()
	var err error
	if o.exit, err = in.Wait(ctx, p.ID); err != nil {
		t.Errorf("%v: %v", p.Args, err)
	}
	return o
}

func sh(script string) fleet.Program { return fleet.Program{Args: []string{"sh", "-c", script}} }

// compile compiles the witness in the first guest, in the job's files.
func (j *job) compile() { j.t.Helper(); j.compileOf("witness", "witness") }

// compileOf compiles a program of the testkit's folder.
func (j *job) compileOf(folder, name string) {
	j.t.Helper()
	source, err := os.ReadFile(filepath.Join("../../internal/testkit", folder, name+".c"))
	if err != nil {
		j.t.Fatal(err)
	}
	if o := j.do(0, time.Minute, sh("cat >p.c && mpicc -O1 -o "+name+" p.c"), string(source)); o.exit.Code != 0 {
		j.t.Fatalf("compile: %+v", o)
	}
}

// moved tells the witness that no more moves follow.
func (j *job) moved() {
	j.t.Helper()
	if err := os.WriteFile(filepath.Join(j.files, "moved"), nil, 0o644); err != nil {
		j.t.Fatal(err)
	}
}

// TestLarge moves a guest with much memory, some of which its program changes all the time. It
// runs while CRIU still puts memory in place, whatever process dies meanwhile.
func TestLarge(t *testing.T) {
	j := newJob(t, "openmpi", 1)
	j.compile()
	var o outcome
	wait := testkit.Meanwhile(t, func() {
		o = j.do(0, 3*time.Minute, fleet.Program{Args: []string{"./witness", "150", "500", "1000", "moved"}, MPI: true, Ranks: 2, Trace: true}, "")
	})
	until(t, func() bool {
		facts, err := j.drivers[1].Inspect(t.Context())
		return err == nil && facts[j.tasks[1].Guest.ID].ResidentBytes > 500<<20
	})
	move := func(n int) {
		t.Helper()
		if p := j.move(1, n); p.SentBytes < 500<<20 {
			t.Errorf("move %d was of %d bytes: the program has ended", n, p.SentBytes)
		}
	}
	move(1)
	// Its memory no longer depends on the agent.
	j.mu.Lock()
	j.drivers[0].Close()
	j.drivers[0] = j.open(t, 0)
	j.mu.Unlock()
	move(2)
	j.moved()
	wait()
	t.Logf("%v\n%s%s", o.exit, o.stdout, o.stderr)
	if o.exit.Code != 0 || !strings.Contains(o.stdout, "OK") {
		t.Errorf("the program did not end as it should")
	}
}

// TestMPI moves guests that run an unmodified MPI program there and back, including the guest
// that runs mpirun. The ranks communicate by shared memory within a guest and by TCP between
// guests.
func TestMPI(t *testing.T) {
	for _, image := range []string{"openmpi", "mpich"} {
		t.Run(image, func(t *testing.T) {
			j := newJob(t, image, 2)
			j.compile()
			var o outcome
			wait := testkit.Meanwhile(t, func() {
				o = j.do(0, 3*time.Minute, fleet.Program{Args: []string{"./witness", "150", "16", "1000", "moved"}, MPI: true, Ranks: 4, Trace: true}, "")
			})
			testkit.Until(t, time.Minute, "the ranks talk", func() bool {
				time.Sleep(100 * time.Millisecond)
				for _, in := range j.inside {
					if traces, err := in.Trace(t.Context(), fleet.TraceQuery{}); err != nil || len(traces) < 2 {
						return false
					}
				}
				return true
			})
			n := 0
			for range 2 {
				for g := range guests {
					n++
					j.move(g, n)
				}
			}
			j.moved()
			wait()
			t.Logf("%v\n%s%s", o.exit, o.stdout, o.stderr)
			if o.exit.Code != 0 || !strings.Contains(o.stdout, "OK") || !strings.Contains(o.stdout, "START ranks=4") {
				t.Errorf("the program did not end as it should")
			}
			for g, in := range j.inside {
				traces, err := in.Trace(t.Context(), fleet.TraceQuery{})
				if err != nil || len(traces) != 2 {
					t.Errorf("trace of guest %d: %v %v", g, traces, err)
					continue
				}
				for _, r := range traces {
					if len(r.Gaps) > 0 {
						t.Logf("guest %d, rank %d: longest gaps %s %s", g, r.Rank, r.Gaps[0].Took, r.Gaps[min(1, len(r.Gaps)-1)].Took)
					}
				}
			}
			st, err := os.Stat(filepath.Join(j.files, "witness"))
			if err != nil {
				t.Error(err)
			} else {
				t.Logf("%v", st.Mode())
			}
		})
	}
}

// TestPolls: it is known how often a rank polls, and how long it polls and computes.
func TestPolls(t *testing.T) {
	for _, image := range []string{"openmpi", "mpich"} {
		t.Run(image, func(t *testing.T) {
			j := newJob(t, image, 1)
			j.compileOf("pattern", "polls")
			const polls = 1_000_000
			said := func(trace bool) (polled, computed time.Duration) {
				o := j.do(0, time.Minute, fleet.Program{Args: []string{"./polls", strconv.Itoa(polls)}, MPI: true, Ranks: 1, Trace: trace}, "")
				var a, b, got int
				if _, err := fmt.Sscanf(o.stdout, "POLLED %d COMPUTED %d GOT %d", &a, &b, &got); err != nil || got != 1 || o.exit.Code != 0 {
					t.Fatalf("%+v: %v", o, err)
				}
				return time.Duration(a) * time.Millisecond, time.Duration(b) * time.Millisecond
			}
			bare, _ := said(false)
			polled, computed := said(true)
			traces, err := j.inside[0].Trace(t.Context(), fleet.TraceQuery{})
			if err != nil || len(traces) != 1 {
				t.Fatalf("%v %v", traces, err)
			}
			r := traces[0]
			calls := map[fleet.CallClass]fleet.Calls{}
			for class, c := range r.Calls {
				if c.Count > 0 {
					calls[class] = c
				}
			}
			t.Logf("%s without the trace, %s and %s with it; outside of calls %s, of %s; %v", bare, polled, computed, r.Outside, r.Elapsed, calls)
			// A busy machine takes the processor away in a call or between two.
			c := r.Calls[fleet.SendRecv]
			if c.Count != polls+20+2 || c.Took < polled/4 {
				t.Errorf("polls, a message sent and taken: %v", c)
			}
			if c := r.Calls[fleet.WaitCall]; c.Count < 1001 {
				t.Errorf("polls for a message: %v", c)
			}
			if told := c.Took + r.Outside; r.Outside < computed/2 || told < (polled+computed)*9/10 {
				t.Errorf("of %s that it computed %s is told, of all %s", computed, r.Outside, told)
			}
			computing := 0
			for _, g := range r.Gaps {
				if !g.InMPI && g.Took >= 15*time.Millisecond {
					computing++
				}
			}
			if len(r.Gaps) < 10 || computing < 3 { // others are when the processor was taken away in a call
				t.Errorf("the gaps are %+v", r.Gaps)
			}
		})
	}
}
