package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"pagurus/fleet"
	"pagurus/internal/pause"
)

const (
	// bootLimit fits an emulated guest that shares few cores with others. Alone, one takes
	// about five seconds.
	bootLimit  = 4 * time.Minute
	fetchTries = 4
	fetchPause = time.Second // doubled after each try
)

// errNoBoot: the guest sent nothing on its link.
var errNoBoot = errors.New("it did not come up")

// start boots a guest and sets it up for its job. After an error the guest is removed,
// unless the order was cancelled: the next order finds the guest and continues or removes
// it.
func (a *Agent) start(ctx context.Context, w *taskRun) (fleet.Report, error) {
	g := w.slot.guest
	if err := errors.Join(a.freshen(ctx, w), a.fetch(ctx, w)); err != nil {
		return fleet.Report{}, err
	}
	if err := w.driver.Start(ctx, a.lay(w.task)); err != nil {
		return a.broken(w), fmt.Errorf("%s: %w", a.Host, err) // why the job ends: people look there
	}
	a.classify(w)
	err := a.setUp(ctx, w)
	if err == nil {
		a.boundNew(w)
	}
	if err == nil || w.cancelled() {
		return fleet.Report{}, err
	}
	words, r := "", a.broken(w) // before Stop removes them
	if errors.Is(err, errNoBoot) {
		words = a.lastWords(w)
	}
	err = fmt.Errorf("setting up guest %s on %s: %w%s", g, a.Host, err, words)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ownRunLimit)
	defer cancel()
	_, undo := a.destroy(ctx, w)
	if undo != nil {
		return r, vague{errors.Join(err, undo)}
	}
	return r, err
}

// broken is the report on a guest that could not begin: what is known of its end, and whether its host is to blame. It is if
// the guest was killed, but not for a limit of its own: it may begin elsewhere, or here the next time.
func (a *Agent) broken(w *taskRun) fleet.Report {
	r := a.remains(w)
	return fleet.Report{Remains: r, AtFault: r != nil && r.Killed}
}

// fetch makes the guest's image present. It retries, because a broken connection should not
// fail a job.
func (a *Agent) fetch(ctx context.Context, w *taskRun) (err error) {
	for try := range fetchTries {
		if _, err = a.Images.Ensure(ctx, w.task.Guest.Image); err == nil || ctx.Err() != nil {
			break
		}
		_ = pause.For(ctx, fetchPause<<try)
	}
	if err != nil {
		return fmt.Errorf("getting the image of guest %s: %w", w.slot.guest, err)
	}
	return nil
}

// setUp waits for the guest agent and sends it the guest's setup.
func (a *Agent) setUp(ctx context.Context, w *taskRun) error {
	if w.link == nil {
		return nil
	}
	parent := ctx
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	ctx, unserved := a.mayBeServed(ctx, w.task)
	defer unserved(nil)
	ended := w.link.Ended(w.slot.guest)
	gone := make(chan struct{})
	go func() {
		select {
		case <-ended:
			close(gone)
			cancel()
		case <-ctx.Done():
		}
	}()
	in := a.guestAgentOf(w.slot, w.link)
	s := setupOf(w.task, time.Now())
	s.Seed = make([]byte, 32)
	rand.Read(s.Seed) // never fails
	err := in.Setup(ctx, s)
	if err == nil {
		return nil
	}
	select {
	case <-gone:
		return fmt.Errorf("%w: it ended by itself", errNoBoot)
	default:
	}
	if why := (unservable{}); errors.As(context.Cause(ctx), &why) {
		return why
	}
	if ctx.Err() != nil && parent.Err() == nil {
		return fmt.Errorf("%w within %s", errNoBoot, bootLimit)
	}
	return err
}

// unservable: a job's files cannot be served to its guests.
type unservable struct{ why error }

func (u unservable) Error() string { return fmt.Sprintf("the job's files cannot be served: %v", u.why) }

// filesInterval is how often mayBeServed checks a job's file server for failure.
const filesInterval = 200 * time.Millisecond

// mayBeServed gives a context that ends when the job's file server has failed. Otherwise the
// guest would wait for a minute and report only a timeout.
func (a *Agent) mayBeServed(ctx context.Context, t fleet.Task) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	if t.Job.ShareHost != a.Host || t.Job.Spec.Export == "" || !t.Guest.Kind.Traits().MountsFiles {
		return ctx, cancel
	}
	a.runs.Go(func() {
		for pause.For(ctx, filesInterval) == nil {
			if err := a.Shares.Failure(t.Job.ID); err != nil {
				cancel(unservable{err})
			}
		}
	})
	return ctx, cancel
}

// setupOf gives a guest's setup. It follows from the job alone, so it is the same on every
// host.
func setupOf(t fleet.Task, now time.Time) fleet.Setup {
	j, g := t.Job, t.Guest
	s := fleet.Setup{
		Guest: g.ID, Hostname: fleet.GuestName(g.Index), Index: g.Index,
		Addr: j.Subnet.GuestAddr(g.Index), Prefix: fleet.SubnetPrefixBits,
		MAC: j.Subnet.GuestMAC(g.Index), MTU: j.NetworkMTU(),
		Export: j.Spec.Export, Files: j.Spec.Files, Links: j.Spec.Links, UID: j.Spec.UID, GID: j.Spec.GID, Groups: j.Spec.Groups,
		MPI: j.MPI, Clock: now,
	}
	if j.Spec.Export != "" {
		s.Share = j.Subnet.ShareAddr()
	}
	if j.Spec.Outward() {
		s.Gateway = j.Subnet.GatewayAddr()
	}
	for i := range min(j.Spec.MostGuests(), fleet.MaxGuestsPerJob) { // also those that may come: then nobody has to be told
		s.Peers = append(s.Peers, fleet.Peer{
			Hostname: fleet.GuestName(i), Addr: j.Subnet.GuestAddr(i), MAC: j.Subnet.GuestMAC(i),
			Slots: j.Spec.Slots(i),
		})
	}
	return s
}
