package drivertest

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"pagurus/fleet"
	"pagurus/serve/agent"
)

// absent: a guest that was never here.
func absent(r *trial) {
	d := r.hosts[0]
	r.twice("stop", func() error { return d.Stop(r.ctx, r.id) })
	r.over(d.Ended(r.id))
	r.state(0, fleet.Absent)
	r.task.Listen = "127.0.0.1:1"
	for what, step := range map[string]func() error{
		"copy":   func() error { return d.Copy(r.ctx, r.task, func(fleet.Progress) {}) },
		"switch": func() error { _, err := d.Switch(r.ctx, r.task, func(bool) {}); return err },
		"resume": func() error { return d.Resume(r.ctx, r.id) },
		"link":   func() error { _, err := d.Link(r.ctx, r.id); return err },
	} {
		if err := step(); !errors.Is(err, agent.ErrAbsent) {
			r.Errorf("%s of a guest that is not here: %v", what, err)
		}
	}
}

// start: twice, across the agent's death, and the guest's facts.
func start(r *trial) {
	d := r.hosts[0]
	r.twice("start", func() error { return d.Start(r.ctx, r.task) })
	ended := d.Ended(r.id)
	before := r.healthy(0, report{})
	facts := r.state(0, fleet.Running)
	if facts.Gen != r.task.Guest.Gen || facts.ResidentBytes < 1<<20 || time.Since(facts.StartedAt) > caseLimit*patience {
		r.Errorf("the facts are %+v", facts)
	}
	d = r.reopen(0)
	r.state(0, fleet.Running)
	r.must("start again", d.Start(r.ctx, r.task))
	r.round(0, r.healthy(0, before))
	for r.state(0, fleet.Running).CPUs <= 0 { // measured between two inspections, which may be close to each other
		select {
		case <-r.ctx.Done():
			r.Fatal("a busy guest uses no CPU")
		case <-time.After(100 * time.Millisecond):
		}
	}
	if used := r.state(0, fleet.Running).CPUTime; used <= 0 || used > caseLimit*64 {
		r.Errorf("a busy guest has used %s of processor time", used)
	}
	select {
	case <-ended:
		r.Error("the guest runs and is said to have ended")
	default:
	}
	ended = d.Ended(r.id)
	r.must("resume what runs", d.Resume(r.ctx, r.id))
	r.twice("stop", func() error { return d.Stop(r.ctx, r.id) })
	r.over(ended)
	r.state(0, fleet.Absent)
	r.boot(0)
}

// receive: an empty guest that waits and cannot be resumed.
func receive(r *trial) {
	d := r.hosts[0]
	first, err := d.Receive(r.ctx, r.task)
	r.must("receive", err)
	for range 2 {
		again, err := d.Receive(r.ctx, r.task)
		r.must("receive again", err)
		if again != first || first == "" {
			r.Errorf("it listens at %q and again at %q", first, again)
		}
		r.state(0, fleet.Incoming)
		r.refuses("resume of an empty guest", d.Resume(r.ctx, r.id))
		r.refuses("start of a target", d.Start(r.ctx, r.task))
		r.state(0, fleet.Incoming)
		d = r.reopen(0)
	}
	ended := d.Ended(r.id)
	r.must("stop", d.Stop(r.ctx, r.id))
	r.over(ended)
	r.state(0, fleet.Absent)
}

// link: there is one at a time, and a new one works at once.
func link(r *trial) {
	r.boot(0)
	first, err := r.hosts[0].Link(r.ctx, r.id)
	r.must("link", err)
	defer first.Close()
	r.healthy(0, report{})
	if n, err := first.Read(make([]byte, 1)); err == nil {
		r.Errorf("a second link left the first open: it read %d bytes", n)
	}
	if _, err := first.Write([]byte("0 report\n")); err == nil {
		r.Error("a second link left the first writable")
	}
}

// exits: a guest that ends by itself is gone and leaves nothing.
func exits(r *trial) {
	r.boot(0)
	ended := r.hosts[0].Ended(r.id)
	conn, err := r.hosts[0].Link(r.ctx, r.id)
	r.must("link", err)
	defer conn.Close()
	_, err = io.WriteString(conn, "0 exit\n")
	r.must("tell the guest to exit", err)
	r.over(ended)
	r.state(0, fleet.Absent)
	for _, what := range r.world.Left(r.T, 0, r.id) {
		r.Errorf("left behind by a guest that ended: %s", what)
	}
}

// killed: from outside, while the driver is open and while it is closed.
func killed(r *trial) {
	r.must("start", r.hosts[0].Start(r.ctx, r.task))
	ended := r.hosts[0].Ended(r.id)
	r.world.Kill(r.T, 0, r.id)
	r.over(ended)
	r.state(0, fleet.Absent)
	if err := r.hosts[0].Resume(r.ctx, r.id); !errors.Is(err, agent.ErrAbsent) {
		r.Errorf("resume of a killed guest: %v", err)
	}
	r.must("start after death", r.hosts[0].Start(r.ctx, r.task))
	r.state(0, fleet.Running)
	r.must("close", r.hosts[0].Close())
	r.world.Kill(r.T, 0, r.id)
	r.hosts[0] = r.world.Open(r.T, 0)
	r.over(r.hosts[0].Ended(r.id))
	r.state(0, fleet.Absent)
}

// target makes the empty guest on a host and gives its address to the source.
func (r *trial) target(host int) {
	r.Helper()
	listen, err := r.hosts[host].Receive(r.ctx, r.task)
	r.must("receive", err)
	r.task.Listen = listen
}

// move: every step twice.
func move(r *trial) {
	before := r.boot(0)
	r.target(1)
	var told atomic.Int32
	r.twice("copy", func() error {
		return r.hosts[0].Copy(r.ctx, r.task, func(p fleet.Progress) {
			told.Add(1)
			if p.Rounds < 0 || p.TotalBytes < 0 || p.RemainingBytes < 0 || p.SentBytes < 0 {
				r.Errorf("progress is %+v", p)
			}
		})
	})
	if told.Load() == 0 {
		r.Error("the copy told of no progress")
	}
	r.refuses("resume before the switch", r.hosts[1].Resume(r.ctx, r.id))
	asked := time.Now()
	first, err := r.hosts[0].Switch(r.ctx, r.task, func(bool) {})
	r.must("switch", err)
	again, err := r.hosts[0].Switch(r.ctx, r.task, func(bool) {})
	r.must("switch again", err)
	if !first.SuspendedAt.Equal(again.SuspendedAt) || first.Downtime != again.Downtime || first.SentBytes != again.SentBytes {
		r.Errorf("the switch cost %+v and then %+v", first, again)
	}
	// The copy may have suspended the guest shortly before the switch.
	if first.SuspendedAt.Before(asked.Add(-caseLimit*patience)) || first.SuspendedAt.After(time.Now()) || first.Rounds < 1 ||
		first.SentBytes == 0 || first.TotalBytes < r.task.Guest.Need.MemoryBytes || first.RemainingBytes != 0 {
		r.Errorf("the switch cost %+v", first)
	}
	r.state(0, fleet.Suspended)
	r.state(1, fleet.Suspended)
	r.twice("resume", func() error { return r.hosts[1].Resume(r.ctx, r.id) })
	r.state(0, fleet.Suspended)
	r.state(1, fleet.Running)
	r.refuses("resume of a source after the switch", r.hosts[0].Resume(r.ctx, r.id))
	r.state(0, fleet.Suspended)
	r.twice("retire", func() error { return r.hosts[0].Stop(r.ctx, r.id) })
	r.state(0, fleet.Absent)
	now := r.round(1, before)
	r.Logf("moved at step %d, %d rounds, %d MiB sent, %s in all, %s down", now.steps, first.Rounds, first.SentBytes>>20, first.Elapsed, first.Downtime)
}

// moveReopened: both agents die after every step, and during the copy.
func moveReopened(r *trial) {
	before := r.boot(0)
	reopen := func() { r.reopen(0); r.reopen(1) }
	r.target(1)
	reopen()
	begun := make(chan struct{})
	over := make(chan error, 1)
	var once atomic.Bool
	go func() {
		over <- r.hosts[0].Copy(r.ctx, r.task, func(fleet.Progress) {
			if once.CompareAndSwap(false, true) {
				close(begun)
			}
		})
	}()
	select {
	case <-begun:
	case <-r.ctx.Done():
		r.Fatal("the copy tells nothing")
	}
	r.must("close", r.hosts[0].Close())
	<-over // with or without an error: its agent is dead
	r.hosts[0] = r.world.Open(r.T, 0)
	r.must("copy after the agent's death", r.hosts[0].Copy(r.ctx, r.task, func(fleet.Progress) {}))
	reopen()
	first, err := r.hosts[0].Switch(r.ctx, r.task, func(bool) {})
	r.must("switch", err)
	reopen()
	again, err := r.hosts[0].Switch(r.ctx, r.task, func(bool) {})
	r.must("switch after the agent's death", err)
	if !first.SuspendedAt.Equal(again.SuspendedAt) || first.Downtime != again.Downtime {
		r.Errorf("the switch cost %+v and then %+v", first, again)
	}
	r.state(0, fleet.Suspended)
	r.state(1, fleet.Suspended)
	r.refuses("resume of a source after the switch", r.hosts[0].Resume(r.ctx, r.id))
	r.must("resume", r.hosts[1].Resume(r.ctx, r.id))
	reopen()
	r.must("resume after the agent's death", r.hosts[1].Resume(r.ctx, r.id))
	r.must("retire", r.hosts[0].Stop(r.ctx, r.id))
	reopen()
	r.state(0, fleet.Absent)
	r.state(1, fleet.Running)
	r.round(1, before)
}

// moveBack: a guest that arrived moves back to its first host.
func moveBack(r *trial) {
	before := r.boot(0)
	for i, way := range [][2]int{{0, 1}, {1, 0}} {
		from, to := way[0], way[1]
		r.task.Order.Migration = fleet.MigrationID([]string{"m1.x", "m2.x"}[i])
		r.target(to)
		r.must("copy", r.hosts[from].Copy(r.ctx, r.task, func(fleet.Progress) {}))
		_, err := r.hosts[from].Switch(r.ctx, r.task, func(bool) {})
		r.must("switch", err)
		r.must("resume", r.hosts[to].Resume(r.ctx, r.id))
		r.must("retire", r.hosts[from].Stop(r.ctx, r.id))
		before = r.round(to, before)
		r.refuses("receive of a guest that is here", func() error { _, err := r.hosts[to].Receive(r.ctx, r.task); return err }())
		r.state(to, fleet.Running)
	}
}

// cancelled: a copy whose context ends leaves the guest as it was, and the next one works.
func cancelled(r *trial) {
	before := r.boot(0)
	r.target(1)
	// So slow that it can neither end nor converge.
	r.task.Limits = fleet.Limits{BytesPerSecond: 2 << 20}
	ctx, cancel := context.WithCancel(r.ctx)
	err := r.hosts[0].Copy(ctx, r.task, func(p fleet.Progress) {
		if p.SentBytes > 0 {
			cancel()
		}
	})
	cancel()
	r.refuses("copy whose context ended", err)
	r.state(0, fleet.Running)
	r.refuses("copy again after it was cancelled", r.hosts[0].Copy(r.ctx, r.task, func(fleet.Progress) {}))
	_, err = r.hosts[0].Switch(r.ctx, r.task, func(bool) {})
	r.refuses("switch after the copy was cancelled", err)
	r.state(0, fleet.Running)
	r.refuses("resume of a target that got half", func() error {
		if err := r.hosts[1].Resume(r.ctx, r.id); err != nil {
			return err
		}
		return nil
	}())
	r.must("discard", r.hosts[1].Stop(r.ctx, r.id))
	before = r.round(0, before)
	r.task.Limits = fleet.Limits{Rounds: 1, Downtime: time.Nanosecond, BytesPerSecond: 64 << 20}
	r.task.Order.Migration = "m2.x"
	r.target(1)
	r.refuses("copy that does not converge", r.hosts[0].Copy(r.ctx, r.task, func(fleet.Progress) {}))
	r.state(0, fleet.Running)
	r.must("discard", r.hosts[1].Stop(r.ctx, r.id))
	r.task.Limits = fleet.Limits{}
	r.task.Order.Migration = "m3.x"
	r.target(1)
	r.must("copy", r.hosts[0].Copy(r.ctx, r.task, func(fleet.Progress) {}))
	_, err = r.hosts[0].Switch(r.ctx, r.task, func(bool) {})
	r.must("switch", err)
	r.must("resume", r.hosts[1].Resume(r.ctx, r.id))
	r.round(1, before)
}

// reverted: the source runs on after a complete copy.
func reverted(r *trial) {
	before := r.boot(0)
	r.target(1)
	r.must("copy", r.hosts[0].Copy(r.ctx, r.task, func(fleet.Progress) {}))
	r.reopen(0)
	r.twice("revert", func() error { return r.hosts[0].Resume(r.ctx, r.id) })
	r.state(0, fleet.Running)
	_, err := r.hosts[0].Switch(r.ctx, r.task, func(bool) {})
	r.refuses("switch after revert", err)
	r.twice("discard", func() error { return r.hosts[1].Stop(r.ctx, r.id) })
	r.round(0, before)
	r.state(1, fleet.Absent)
}

// targetDies: between copy and switch, and before the copy.
func targetDies(r *trial) {
	before := r.boot(0)
	r.target(1)
	r.must("copy", r.hosts[0].Copy(r.ctx, r.task, func(fleet.Progress) {}))
	r.kill(1)
	_, err := r.hosts[0].Switch(r.ctx, r.task, func(bool) {})
	r.refuses("switch to a dead target", err)
	r.twice("revert", func() error { return r.hosts[0].Resume(r.ctx, r.id) })
	r.state(0, fleet.Running)
	before = r.round(0, before)
	r.task.Order.Migration = "m2.x"
	r.refuses("copy to an address without a listener", r.hosts[0].Copy(r.ctx, r.task, func(fleet.Progress) {}))
	r.state(0, fleet.Running)
	r.round(0, before)
}

// refused: senseless orders change nothing.
func refused(r *trial) {
	before := r.boot(0)
	_, err := r.hosts[0].Switch(r.ctx, r.task, func(bool) {})
	r.refuses("switch without copy", err)
	for _, listen := range []string{"", "nowhere", "127.0.0.1:0x10", "127.0.0.1:1,x=y", "exec:reboot"} {
		r.task.Listen = listen
		r.refuses("copy to "+listen, r.hosts[0].Copy(r.ctx, r.task, func(fleet.Progress) {}))
	}
	_, err = r.hosts[0].Receive(r.ctx, r.task)
	r.refuses("receive of a guest that is here", err)
	for _, id := range []fleet.GuestID{"", ".", "..", "../x", "a/b", "-x", "a,b=c", "a\nb"} {
		bad := r.world.Task(id)
		r.refuses("start of "+string(id), r.hosts[1].Start(r.ctx, bad))
		_, err := r.hosts[1].Receive(r.ctx, bad)
		r.refuses("receive of "+string(id), err)
	}
	ended, stop := context.WithCancel(r.ctx)
	stop()
	fresh := r.world.Task(r.id)
	r.refuses("start after its context ended", r.hosts[1].Start(ended, fresh))
	for _, what := range r.world.Left(r.T, 1, r.id) {
		r.Errorf("left behind by a start that failed: %s", what)
	}
	r.state(0, fleet.Running)
	r.round(0, before)
}
