package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pagurus/fleet"
	"pagurus/serve/wire"
)

// in runs a test with a rig of its own, on synctest's clock.
func in(t *testing.T, f func(*testing.T, *rig)) {
	synctest.Test(t, func(t *testing.T) { f(t, newRig(t)) })
}

// block makes one driver call wait until release is called. A Switch ignores the end of its
// context.
func (r *rig) block(call string) (release func(error)) {
	gate := make(chan error, 1)
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	r.d.hook = func(ctx context.Context, c string) error {
		if c != call {
			return nil
		}
		select {
		case err := <-gate:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return func(err error) { gate <- err }
}

func (r *rig) hook(h func(call string) error) {
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	r.d.hook = func(_ context.Context, c string) error { return h(c) }
}

func TestJobFromStartToStop(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 1))
		g := r.d.guest("j1g0")
		if s := g.setups[0]; s.Hostname != "guest0" || s.Addr.String() != "10.128.3.1" || s.Share.String() != "10.128.3.254" ||
			len(s.Peers) != 2 || s.Peers[1].Slots != 2 || s.MTU != 1450 || !s.Clock.Equal(time.Now()) {
			t.Errorf("setup %+v", s)
		}
		r.send(task(fleet.Watch, 1))
		r.c.spool["j1stdin"], r.c.ended["j1stdin"] = []byte("input"), true
		run := task(fleet.Run, 1)
		r.send(run)
		time.Sleep(time.Minute) // the program takes its input in small pieces
		g.write(fleet.Stdout, []byte("hello"))
		g.write(fleet.Stderr, []byte("oops"))
		g.finish(7)
		if rep := r.expect(run.Order, fleet.Done); rep.Exit == nil || rep.Exit.Code != 7 {
			t.Errorf("report %+v", rep)
		}
		if out, err := r.c.spool["j1stdout"], r.c.spool["j1stderr"]; string(out) != "hello" || string(err) != "oops" ||
			!r.c.ended["j1stdout"] || !r.c.ended["j1stderr"] {
			t.Errorf("stdout %q, stderr %q", out, err)
		}
		if string(g.stdin) != "input" || !g.stdinEOF {
			t.Errorf("stdin %q, ended %v", g.stdin, g.stdinEOF)
		}
		r.do(task(fleet.Stop, 1))
		if r.d.count("shutdown j1g0") != 1 || r.d.guest("j1g0") != nil {
			t.Errorf("calls %q", r.d.calls)
		}
		r.silence() // the watch ended without a report
	})
}

func TestSameOrderIsCarriedOutOnce(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		release := r.block("start j1g0")
		start := task(fleet.Start, 1)
		for range 3 {
			r.send(start)
		}
		synctest.Wait()
		release(nil)
		r.expect(start.Order, fleet.Done)
		r.do(start) // answered again
		r.silence()
		if n := r.d.count("start j1g0"); n != 1 {
			t.Errorf("started %d times", n)
		}
	})
}

func TestRestartFindsEverything(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		start, hold, run := task(fleet.Start, 1), task(fleet.Watch, 1), task(fleet.Run, 1)
		r.do(start)
		r.send(hold)
		r.send(run)
		g := r.d.guest("j1g0")
		g.write(fleet.Stdout, []byte("before "))
		time.Sleep(time.Second)
		r.stop()
		g.write(fleet.Stdout, []byte("between "))
		r.start()
		r.do(start)
		r.send(hold)
		r.send(run) // its Have is old: the controller knows better
		time.Sleep(time.Second)
		g.write(fleet.Stdout, []byte("after"))
		g.finish(0)
		r.expect(run.Order, fleet.Done)
		if got := string(r.c.spool["j1stdout"]); got != "before between after" {
			t.Errorf("stdout %q", got)
		}
		if n := r.d.count("start j1g0"); n != 1 {
			t.Errorf("started %d times", n)
		}
		r.d.remains = &fleet.Remains{Why: "it switched itself off", Console: []string{"Power down"}}
		r.d.end("j1g0")
		rep := r.expect(hold.Order, fleet.Done)
		if want := "guest j1g0 ended by itself on host1: it switched itself off; its last console line: Power down"; rep.Cause != want || rep.Remains == nil {
			t.Errorf("cause %q, remains %v", rep.Cause, rep.Remains)
		}
	})
}

func TestFailedIsRefusedEverAfter(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 1))
		r.hook(func(c string) error {
			if c == "copy j1g0" {
				return errors.New("the line is cut")
			}
			return nil
		})
		o := task(fleet.Copy, 1)
		r.send(o)
		cause := r.expect(o.Order, fleet.Failed).Cause
		if !strings.Contains(cause, "the line is cut") {
			t.Errorf("cause %q", cause)
		}
		r.hook(func(string) error { return nil })
		for range 2 {
			r.send(o)
			if again := r.expect(o.Order, fleet.Failed).Cause; again != cause {
				t.Errorf("cause %q, then %q", cause, again)
			}
			r.stop()
			r.start()
		}
		if n := r.d.count("copy j1g0"); n != 1 {
			t.Errorf("copied %d times", n)
		}
		o.Order.Attempt = 1
		r.do(o)
	})
}

func TestUnsureIsUnknown(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 1))
		fail := true
		r.hook(func(c string) error {
			if c == "switch j1g0" && fail {
				fail = false
				return fmt.Errorf("sending the rest: %w", ErrUnsure)
			}
			return nil
		})
		o := task(fleet.Switch, 2)
		r.send(o)
		r.expect(o.Order, fleet.Unknown)
		if rep := r.do(o); rep.Cost == nil || rep.Cost.Rounds != 3 {
			t.Errorf("report %+v", rep)
		}
	})
}

func TestACopyReportsItsRounds(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 1))
		want := []fleet.Round{{Number: 1, SentBytes: 5}, {Number: 2, SentBytes: 10}}
		if rep := r.do(task(fleet.Copy, 1)); !slices.Equal(rep.Rounds, want) {
			t.Errorf("they are %+v", rep.Rounds)
		}
	})
}

// Only the target can say whether an absent guest was handed over before, whether this agent
// or an earlier one began its switch.
func TestGuestThatEndedAsItSwitched(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 1))
		r.do(task(fleet.Copy, 1))
		r.hook(func(c string) error {
			if c == "switch j1g0" {
				return fmt.Errorf("switch guest j1g0: %w; %w", ErrAbsent, ErrUnsure)
			}
			return nil
		})
		sw := task(fleet.Switch, 2)
		r.send(sw)
		r.expect(sw.Order, fleet.Gone)
	})
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 1))
		r.do(task(fleet.Copy, 1))
		why := fmt.Errorf("sending the rest: %w", ErrUnsure)
		r.hook(func(c string) error {
			if c == "switch j1g0" {
				return why
			}
			return nil
		})
		sw := task(fleet.Switch, 2)
		r.send(sw)
		r.expect(sw.Order, fleet.Unknown)
		r.stop()
		r.start()
		why = fmt.Errorf("switch guest j1g0: %w; %w", ErrAbsent, ErrUnsure)
		sw.Order.Attempt = 1
		r.send(sw)
		r.expect(sw.Order, fleet.Gone)
	})
}

// If the source is lost, the memory that has not arrived never will. Otherwise the order is
// repeated.
func TestGuestThatHasNotArrivedWhole(t *testing.T) {
	for _, orphan := range []bool{false, true} {
		in(t, func(t *testing.T, r *rig) {
			r.do(task(fleet.Receive, 1))
			r.hook(func(c string) error {
				if c == "resume j1g0" {
					return fmt.Errorf("%w: its memory is missing", fleet.ErrNotWhole)
				}
				return nil
			})
			activate := task(fleet.Activate, 2)
			activate.Orphan = orphan
			r.send(activate)
			r.expect(activate.Order, map[bool]fleet.Outcome{true: fleet.Failed, false: fleet.Unknown}[orphan])
		})
	}
}

func TestOlderGenerationIsRefused(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 3))
		for range 2 {
			old := task(fleet.Stop, 2)
			r.send(old)
			r.expect(old.Order, fleet.Failed)
			r.stop()
			r.start()
		}
		if r.d.guest("j1g0") == nil {
			t.Error("the guest was stopped")
		}
	})
}

func TestNothingTouchesASwitch(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 1))
		release := r.block("switch j1g0")
		sw, stop := task(fleet.Switch, 2), task(fleet.Stop, 2)
		r.send(sw)
		synctest.Wait() // only once it has begun: before, it would just be cancelled
		r.send(stop)
		r.want("c1", 11) // not even this stops it
		time.Sleep(5 * time.Second)
		if r.d.count("stop j1g0") != 0 {
			t.Error("stopped in the middle of a switch")
		}
		release(nil)
		r.expect(sw.Order, fleet.Done)
		r.expect(stop.Order, fleet.Done)
		if r.d.guest("j1g0") != nil {
			t.Error("not stopped after it")
		}
	})
}

func TestSupersededOrderSaysNothing(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 1))
		r.block("copy j1g0")
		r.send(task(fleet.Copy, 1))
		r.do(task(fleet.Stop, 1))
		r.silence()
		r.block("start j1g0")
		again := task(fleet.Start, 1)
		again.Order.Attempt = 1
		r.send(again)
		synctest.Wait()
		r.block("nothing")
		again.Order.Attempt = 2
		r.do(again)
		r.silence()
	})
}

func TestGuestThatLeftIsHeldNoMore(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 1))
		r.send(task(fleet.Watch, 1))
		r.send(task(fleet.Run, 1))
		r.do(task(fleet.Copy, 1))
		time.Sleep(2 * time.Second)
		if p := r.facts().Copies["m1.j1g0"]; p.Rounds != 2 {
			t.Errorf("facts %+v", r.facts())
		}
		r.do(task(fleet.Switch, 2))
		r.do(task(fleet.Retire, 2))
		r.silence()
		hold := task(fleet.Watch, 2)
		r.send(hold)
		r.expect(hold.Order, fleet.Failed)
	})
}

func TestFailedSwitchLeavesThePumpGoing(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 1))
		run := task(fleet.Run, 1)
		r.send(run)
		r.hook(func(c string) error {
			if c == "switch j1g0" {
				return errors.New("the target is gone")
			}
			return nil
		})
		sw := task(fleet.Switch, 2)
		r.send(sw)
		r.expect(sw.Order, fleet.Failed)
		if !r.overlay.forwards(0) {
			t.Error("what came for the guest while it was suspended was lost")
		}
		r.do(task(fleet.Revert, 3))
		if r.overlay.forwards(0) {
			t.Error("what comes for the guest still goes to the target")
		}
		r.d.guest("j1g0").finish(0)
		r.expect(run.Order, fleet.Done)
		synctest.Wait()
		if n := r.d.count("setup j1g0"); n != 2 {
			t.Errorf("set up %d times; the clock is to be set after a revert", n)
		}
	})
}

// The target may be told to run the program before the guest arrives, since Home changes
// before the guest moves.
func TestRunWaitsForTheGuestToArrive(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		if listen := r.do(task(fleet.Receive, 1)).Listen; listen == "" {
			t.Error("nowhere to take in state")
		}
		run := task(fleet.Run, 2)
		r.send(run)
		r.send(task(fleet.Watch, 2))
		time.Sleep(5 * time.Second)
		r.do(task(fleet.Activate, 2))
		r.d.guest("j1g0").write(fleet.Stdout, []byte("arrived"))
		r.d.guest("j1g0").finish(0)
		r.expect(run.Order, fleet.Done)
		if got := string(r.c.spool["j1stdout"]); got != "arrived" {
			t.Errorf("stdout %q", got)
		}
	})
}

func TestStartThatFailsLeavesNothing(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.hook(func(c string) error {
			if c == "setup j1g0" {
				return errors.New("the share at 10.128.3.254 does not answer")
			}
			return nil
		})
		start := task(fleet.Start, 1)
		r.send(start)
		if rep := r.expect(start.Order, fleet.Failed); !strings.Contains(rep.Cause, "does not answer") {
			t.Errorf("cause %q", rep.Cause)
		}
		if r.d.guest("j1g0") != nil {
			t.Error("the guest is still there")
		}
		run := task(fleet.Run, 1)
		r.send(run)
		r.expect(run.Order, fleet.Failed)
	})
}

// A guest waits a minute for its files and then knows only of a timeout. The host that
// should serve them knows the cause at once.
func TestFilesThatCannotBeServedAreToldAtOnce(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.block("setup j1g0")
		start := task(fleet.Start, 1)
		start.Job.ShareHost = "host1"
		begun := time.Now()
		r.send(start)
		time.Sleep(time.Second)
		r.shares.fail(errors.New("the file server said no"))
		rep := r.expect(start.Order, fleet.Failed)
		if took := time.Since(begun); !strings.Contains(rep.Cause, "the file server said no") || took > 2*time.Second {
			t.Errorf("after %v: %q", took, rep.Cause)
		}
		// It does not affect guests of other hosts, or those that mount no files.
		for change, of := range map[string]func(*fleet.Task){
			"served elsewhere": func(t *fleet.Task) { t.Job.ShareHost = "host2" },
			"a container":      func(t *fleet.Task) { t.Guest.Kind = fleet.Container },
		} {
			other := task(fleet.Start, 1)
			other.Order.Attempt++
			other.Job.ShareHost = "host1"
			of(&other)
			ctx, cancel := r.a.mayBeServed(t.Context(), other)
			time.Sleep(10 * filesInterval)
			if ctx.Err() != nil {
				t.Errorf("%s: %v", change, context.Cause(ctx))
			}
			cancel(nil)
		}
	})
}

func TestGuestThatNeverComesUp(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.block("setup j1g0")
		start := task(fleet.Start, 1)
		r.send(start)
		if rep := r.expect(start.Order, fleet.Failed); !strings.Contains(rep.Cause, "did not come up within") {
			t.Errorf("cause %q", rep.Cause)
		}
		start.Order.Attempt = 1
		r.send(start)
		time.Sleep(time.Second)
		r.d.end("j1g0")
		if rep := r.expect(start.Order, fleet.Failed); !strings.Contains(rep.Cause, "it ended by itself") {
			t.Errorf("cause %q", rep.Cause)
		}
	})
}

func TestProgramThatIsMissing(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 1))
		run := task(fleet.Run, 1)
		run.Job.Spec.Args = []string{"missing"}
		r.send(run)
		if rep := r.expect(run.Order, fleet.Failed); !strings.Contains(rep.Cause, "no program named missing") {
			t.Errorf("cause %q", rep.Cause)
		}
	})
}

func TestStopThatFailsIsNoPromise(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 1))
		r.hook(func(c string) error {
			if c == "stop j1g0" {
				return errors.New("busy")
			}
			return nil
		})
		stop := task(fleet.Stop, 1)
		r.send(stop)
		r.expect(stop.Order, fleet.Unknown)
		r.hook(func(string) error { return nil })
		r.do(stop)
	})
}

func TestPanicEndsOneOrderOnly(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.hook(func(c string) error {
			if c == "start j1g0" {
				panic("out of paper")
			}
			return nil
		})
		start := task(fleet.Start, 1)
		r.send(start)
		r.expect(start.Order, fleet.Unknown)
		other := start
		other.Order.Guest, other.Guest.ID = "j1g1", "j1g1"
		r.do(other)
	})
}

func TestReportWaitsForASession(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		release := r.block("start j1g0")
		start := task(fleet.Start, 1)
		r.send(start)
		synctest.Wait()
		r.c.reach(false)
		time.Sleep(time.Minute)
		release(nil)
		time.Sleep(time.Minute)
		r.c.reach(true)
		r.attach()
		r.expect(start.Order, fleet.Done)
	})
}

func TestOtherClusterIsRefused(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 1))
		r.want("c2", 99)
		r.send(task(fleet.Stop, 1))
		r.attach() // the session ended
		if r.s.hello.Cluster != "c1" {
			t.Errorf("hello %+v", r.s.hello)
		}
		r.silence()
		if r.d.guest("j1g0") == nil {
			t.Error("a foreign controller destroyed the guest")
		}
	})
}

func TestWanted(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 1))
		r.want("c1", 9) // older: ignored
		time.Sleep(5 * time.Second)
		if r.d.guest("j1g0") == nil {
			t.Fatal("an old wish destroyed the guest")
		}
		r.overlay.set(errors.New("no such device"))
		r.want("c1", 11, "j1g0")
		time.Sleep(5 * time.Second)
		if tr := r.facts().Troubles; len(tr) != 1 || !strings.Contains(tr[0], "no such device") {
			t.Errorf("troubles %q", tr)
		}
		r.overlay.set(nil)
		time.Sleep(5 * time.Second)
		if tr := r.facts().Troubles; len(tr) != 0 {
			t.Errorf("troubles %q", tr)
		}
		n := r.overlay.count()
		time.Sleep(5 * time.Second)
		if r.overlay.count() != n {
			t.Error("what is as wanted was applied again")
		}
		r.want("c1", 20, "j1g0")
		r.c.reach(false)
		r.c.reach(true)
		r.attach() // an older revision counts here: the store may have been restored from a backup
		r.want("c1", 11)
		time.Sleep(5 * time.Second)
		if r.d.guest("j1g0") != nil || r.d.count("shutdown j1g0") != 0 {
			t.Errorf("calls %q", r.d.calls)
		}
		r.silence()
	})
}

func TestGuestNoLongerWantedStopsStarting(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.block("setup j1g0")
		r.send(task(fleet.Start, 1))
		time.Sleep(2 * time.Second)
		r.want("c1", 11)
		time.Sleep(5 * time.Second)
		if r.d.guest("j1g0") != nil {
			t.Error("still there")
		}
	})
}

func TestNothingCountsBeforeWanted(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.c.reach(false)
		r.c.reach(true)
		r.s = <-r.c.attached
		r.send(task(fleet.Start, 1))
		r.silence()
		r.want("c1", 10, "j1g0")
		r.do(task(fleet.Start, 1))
	})
}

func TestNonsenseIsRefused(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		for name, spoil := range map[string]func(*fleet.Task){
			"unknown verb": func(t *fleet.Task) { t.Order.Verb = "dance" },
			"inner verb":   func(t *fleet.Task) { t.Order.Verb = settleVerb },
			"path":         func(t *fleet.Task) { t.Guest.ID = "../../etc/x" },
			"no guest":     func(t *fleet.Task) { t.Guest.ID, t.Order.Guest, t.Job.ID = "", "", "" },
			"unknown kind": func(t *fleet.Task) { t.Guest.Kind = "jail" },
		} {
			bad := task(fleet.Start, 1)
			spoil(&bad)
			r.send(bad)
			if rep := r.expect(bad.Order, fleet.Failed); rep.Cause == "" || strings.HasSuffix(name, "verb") != strings.HasSuffix(rep.Cause, "upgrade the agent") {
				t.Errorf("%s: %q", name, rep.Cause)
			}
		}
		other := task(fleet.Start, 1)
		other.Order.Host = "host9"
		r.send(other)
		r.silence()
		zero := task(fleet.Start, 1)
		zero.Job = fleet.Job{} // without guests and ranks
		r.do(zero)
	})
}

func TestTraces(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 1))
		time.Sleep(2 * time.Second)
		r.s.down <- wire.Down{Query: &wire.Query{ID: 4, Trace: "j1g0", About: fleet.TraceQuery{To: time.Unix(9, 0)}}}
		if rep := <-r.c.replies; rep.ID != 4 || len(rep.Traces) != 1 || rep.Traces[0].At.Unix() != 9 || rep.Error != "" {
			t.Errorf("reply %+v", rep)
		}
		r.s.down <- wire.Down{Query: &wire.Query{ID: 5, Trace: "j9g9"}}
		if rep := <-r.c.replies; rep.ID != 5 || rep.Error == "" {
			t.Errorf("reply %+v", rep)
		}
	})
}

// The streams arrive whole whatever breaks and when: calls that fail before or after their
// effect, an agent that ends, a controller that is away.
func TestStreamsArriveWholeAcrossCuts(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 1))
		g := r.d.guest("j1g0")
		random := rand.NewChaCha8([32]byte{1})
		var want [2]bytes.Buffer
		stdin := make([]byte, 30_000)
		_, _ = random.Read(stdin)
		r.c.flaky = true
		r.c.spool["j1stdin"], r.c.ended["j1stdin"] = stdin, true
		run := task(fleet.Run, 1)
		r.send(run)
		for i := range 60 {
			b := make([]byte, 1+rand.IntN(5000))
			_, _ = random.Read(b)
			want[i%2].Write(b)
			g.write([]string{fleet.Stdout, fleet.Stderr}[i%2], b)
			time.Sleep(time.Duration(rand.IntN(2000)) * time.Millisecond)
			switch i % 15 {
			case 3:
				r.stop()
				r.start()
				r.send(run)
			case 8:
				r.c.reach(false)
				time.Sleep(10 * time.Second)
				r.c.reach(true)
				r.attach()
				r.send(run)
			}
		}
		for n := 0; n < 1000 && !g.stdinEOF; n++ {
			time.Sleep(time.Second)
		}
		g.finish(0)
		r.expect(run.Order, fleet.Done)
		for i, stream := range []string{fleet.Stdout, fleet.Stderr} {
			if !bytes.Equal(r.c.spool["j1"+stream], want[i].Bytes()) || !r.c.ended["j1"+stream] {
				t.Errorf("%s: %d bytes, want %d", stream, len(r.c.spool["j1"+stream]), want[i].Len())
			}
		}
		if !bytes.Equal(g.stdin, stdin) || !g.stdinEOF {
			t.Errorf("stdin: %d bytes, want %d, ended %v", len(g.stdin), len(stdin), g.stdinEOF)
		}
		if r.d.count("start j1g0") != 1 {
			t.Error("started twice")
		}
	})
}

// A guest that its copy left suspended is resumed when no order comes, also by the next
// agent.
func TestNoGuestIsSuspendedForNothing(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 1))
		r.do(task(fleet.Copy, 1))
		r.d.put("j1g0", fleet.Suspended)
		time.Sleep(gateLimit / 2)
		if r.d.count("resume j1g0") != 0 {
			t.Error("the order to switch was not waited for")
		}
		time.Sleep(2 * gateLimit)
		if g := r.d.guest("j1g0"); g.run != fleet.Running {
			t.Errorf("it is %s", g.run)
		}
		r.stop()
		r.d.put("j1g0", fleet.Suspended)
		r.start()
		r.send(task(fleet.Watch, 1))
		time.Sleep(time.Second)
		if g := r.d.guest("j1g0"); g.run != fleet.Running {
			t.Errorf("held, it is %s", g.run)
		}
		// If the next agent gets watch and then switch, it does not resume the guest between
		// them.
		r.do(task(fleet.Copy, 1))
		r.stop()
		r.d.put("j1g0", fleet.Suspended)
		woken := r.d.count("resume j1g0")
		r.start()
		r.send(task(fleet.Watch, 1))
		time.Sleep(patience / 2)
		r.do(task(fleet.Switch, 2))
		if n := r.d.count("resume j1g0"); n != woken {
			t.Errorf("woken %d times before its switch", n-woken)
		}
	})
}

func TestASlowFileServerDelaysNothingElse(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.stop()
		r.shares.slow = time.Minute
		r.start()
		begun, served := time.Now(), r.shares.count()
		r.do(task(fleet.Start, 1))
		if took := time.Since(begun); took > time.Second {
			t.Errorf("a start waited %s for a file server", took)
		}
		time.Sleep(3 * time.Minute)
		if r.shares.count() == served {
			t.Error("nothing was served")
		}
	})
}

// A controller whose disk has lost output asks for bytes that the guest no longer has. The
// job ends all the same, and the stream says so.
func TestOutputThatIsLostIsSaidToBe(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 1))
		run := task(fleet.Run, 1)
		r.send(run)
		g := r.d.guest("j1g0")
		g.write(fleet.Stdout, []byte("many words"))
		time.Sleep(5 * time.Second)
		r.c.mu.Lock()
		r.c.spool["j1stdout"] = []byte("many")
		r.c.mu.Unlock()
		g.mu.Lock()
		g.out[fleet.Stdout].forgot = 10
		g.mu.Unlock()
		g.write(fleet.Stdout, []byte(" more"))
		time.Sleep(time.Minute)
		g.finish(3)
		if exit := r.expect(run.Order, fleet.Done).Exit; exit == nil || exit.Code != 3 {
			t.Errorf("exit %+v", exit)
		}
		if got := string(r.c.spool["j1stdout"]); !strings.HasPrefix(got, "many\npagurus: the rest of stdout is lost") {
			t.Errorf("stdout %q", got)
		}
	})
}

// TestWithoutTheMechanism: an agent without the mechanism of a kind of guest refuses new
// ones. For guests that an earlier agent may have left, which may still run, it answers
// unknown.
func TestWithoutTheMechanism(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.a.journal.Write("j1g0", journalEntry{LastGen: 1})
		for _, c := range []struct {
			verb fleet.Verb
			gen  uint64
			want fleet.Outcome
		}{
			{fleet.Watch, 1, fleet.Unknown}, {fleet.Start, 1, fleet.Unknown}, {fleet.Stop, 1, fleet.Unknown}, {fleet.Switch, 1, fleet.Unknown},
			{fleet.Switch, 2, fleet.Failed}, {fleet.Receive, 2, fleet.Failed}, {fleet.Copy, 2, fleet.Failed}, {fleet.Start, 2, fleet.Failed},
			{fleet.Activate, 2, fleet.Unknown}, {fleet.Revert, 2, fleet.Unknown}, {fleet.Discard, 2, fleet.Unknown}, {fleet.Watch, 2, fleet.Unknown},
		} {
			tk := task(c.verb, c.gen)
			tk.Guest.Kind = fleet.Container
			r.send(tk)
			if rep := r.expect(tk.Order, c.want); !strings.Contains(rep.Cause, `runs no guests of kind "container" at present`) {
				t.Errorf("%s: %s", c.verb, rep.Cause)
			}
		}
	})
}
