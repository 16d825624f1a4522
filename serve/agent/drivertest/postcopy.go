package drivertest

import (
	"context"
	"errors"
	"time"

	"pagurus/fleet"
	"pagurus/serve/agent"
)

// The guests of these cases dirty more memory a second than may be sent: pre-copy would
// never converge.
const (
	wildly = "dirty 64"
	slowly = 24 << 20
)

// postCopier gives a host's driver with post-copy, and skips the case if the host cannot do
// it.
func (r *trial) postCopier(host int) agent.PostCopier {
	r.Helper()
	d, can := r.hosts[host].(agent.PostCopier)
	if !can || r.world.PostCopy == nil || !r.world.PostCopy(r.T, host) {
		r.Skip("guests cannot run here before their memory has come")
	}
	return d
}

// parted moves a guest to host 1 by post-copy, where it runs while some of its memory is
// still at host 0. between is called between the steps.
func (r *trial) parted(between func()) report {
	r.Helper()
	r.postCopier(0)
	r.postCopier(1)
	before := r.boot(0)
	r.ask(0, wildly)
	r.task.Limits = fleet.Limits{Mode: fleet.PostCopy, Preempt: true, BytesPerSecond: slowly}
	r.target(1)
	between()
	r.must("copy", r.hosts[0].Copy(r.ctx, r.task, func(fleet.Progress) {}))
	r.state(0, fleet.Running)
	r.refuses("resume before the switch", r.resumeSoon(1))
	between()
	first, err := r.hosts[0].Switch(r.ctx, r.task, func(bool) {})
	r.must("switch", err)
	between()
	again, err := r.hosts[0].Switch(r.ctx, r.task, func(bool) {})
	r.must("switch again", err)
	if !first.SuspendedAt.Equal(again.SuspendedAt) || first.Downtime != again.Downtime || first.SuspendedAt.IsZero() {
		r.Errorf("the switch cost %+v and then %+v", first, again)
	}
	r.state(0, fleet.Suspended)
	r.must("resume", r.hosts[1].Resume(r.ctx, r.id))
	r.state(1, fleet.Running)
	r.Logf("switched with %d MiB left, %s down", first.RemainingBytes>>20, first.Downtime)
	return before
}

// resumeSoon tries for a second to resume a guest that cannot be resumed.
func (r *trial) resumeSoon(host int) error {
	ctx, cancel := context.WithTimeout(r.ctx, time.Second)
	defer cancel()
	return r.hosts[host].Resume(ctx, r.id)
}

// postCopy: every step twice, and both agents die after each. From the switch on there is no
// way back.
func postCopy(r *trial) {
	before := r.parted(func() { r.reopen(0); r.reopen(1) })
	now := r.healthy(1, before)
	left, err := r.postCopier(0).Pushed(r.ctx, r.id)
	r.must("ask how far it is", err)
	r.reopen(0)
	r.reopen(1)
	r.must("resume again", r.hosts[1].Resume(r.ctx, r.id))
	r.refuses("resume of a source after the switch", r.hosts[0].Resume(r.ctx, r.id))
	r.state(0, fleet.Suspended)
	begun := time.Now()
	r.twice("fetch", func() error { return r.postCopier(1).FetchRemaining(r.ctx, r.id) })
	took := time.Since(begun)
	all, err := r.postCopier(0).Pushed(r.ctx, r.id)
	r.must("ask what it cost", err)
	if all.PostCopyBytes == 0 || all.RemainingBytes != 0 || all.SuspendedAt.IsZero() || all.Downtime <= 0 || all.PostCopyBytes < left.PostCopyBytes {
		r.Errorf("it cost %+v, and %+v before all was there", all, left)
	}
	r.refuses("resume of a source that has pushed all", r.hosts[0].Resume(r.ctx, r.id))
	r.state(0, fleet.Suspended)
	r.must("retire", r.hosts[0].Stop(r.ctx, r.id))
	r.must("fetch when the source is gone", r.postCopier(1).FetchRemaining(r.ctx, r.id))
	end := r.round(1, now)
	r.Logf("at step %d, %d MiB came by post-copy, %d pages were waited for, fetched in %s", end.steps, all.PostCopyBytes>>20, all.Faults, took)
	// The guest can move again.
	r.ask(1, "dirty 4")
	r.task.Limits, r.task.Order.Migration = fleet.Limits{}, "m2.x"
	r.target(0)
	r.must("copy back", r.hosts[1].Copy(r.ctx, r.task, func(fleet.Progress) {}))
	_, err = r.hosts[1].Switch(r.ctx, r.task, func(bool) {})
	r.must("switch back", err)
	r.must("resume back", r.hosts[0].Resume(r.ctx, r.id))
	r.round(0, end)
}

// postCopyLosesItsSource: missing memory is a certain failure. A QEMU that waits for the
// memory itself may not answer instead; the controller knows that the source is dead.
func postCopyLosesItsSource(r *trial) {
	r.parted(func() {})
	r.world.Kill(r.T, 0, r.id)
	if err := r.postCopier(1).FetchRemaining(r.ctx, r.id); !errors.Is(err, context.DeadlineExceeded) {
		r.refuses("fetch from a dead source", err)
	}
	r.must("stop what is left", r.hosts[1].Stop(r.ctx, r.id))
	if err := r.postCopier(1).FetchRemaining(r.ctx, r.id); !errors.Is(err, agent.ErrAbsent) || errors.Is(err, agent.ErrUnsure) {
		r.Errorf("fetch of a guest that is gone: %v", err)
	}
}

// postCopyUndone: before the switch there is a way back, as in any other mode.
func postCopyUndone(r *trial) {
	r.postCopier(1)
	before := r.boot(0)
	r.task.Limits = fleet.Limits{Mode: fleet.PostCopy, Preempt: true}
	r.target(1)
	r.must("copy", r.hosts[0].Copy(r.ctx, r.task, func(fleet.Progress) {}))
	r.twice("revert", func() error { return r.hosts[0].Resume(r.ctx, r.id) })
	r.must("discard", r.hosts[1].Stop(r.ctx, r.id))
	before = r.round(0, before)
	r.task.Order.Migration = "m2.x"
	r.target(1)
	r.must("copy", r.hosts[0].Copy(r.ctx, r.task, func(fleet.Progress) {}))
	r.kill(1)
	_, err := r.hosts[0].Switch(r.ctx, r.task, func(bool) {})
	r.refuses("switch to a dead target", err)
	r.twice("revert", func() error { return r.hosts[0].Resume(r.ctx, r.id) })
	r.round(0, before)
}
