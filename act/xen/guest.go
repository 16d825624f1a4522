package xen

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"pagurus/act/host"
	"pagurus/fleet"
	"pagurus/internal/pause"
)

// guest is one domain of this host.
type guest struct {
	host.Guest[record]

	life   context.Context // ends with Close
	end    context.CancelFunc
	handle *os.File // pidfd of its warden

	moving sync.Mutex // held by the call that moves it

	// Guarded by Mu:
	seen    fleet.RunState
	usedCPU time.Duration
	usedAt  time.Time
	cpus    float64
}

// attach starts to watch a guest's warden. It takes ownership of the handle, also when it returns an error.
func (d *Driver) attach(r record, handle *os.File) (*guest, error) {
	g := &guest{Guest: host.NewGuest(d.dir(r.Guest), r), handle: handle, seen: fleet.Running}
	if r.Target {
		g.seen = fleet.Incoming
	}
	g.life, g.end = context.WithCancel(context.Background())
	if err := d.guests.Add(r.Guest, g, func() { d.watch(g) }); err != nil {
		g.end()
		handle.Close()
		return nil, err
	}
	return g, nil
}

// watch removes everything of the guest when its warden has ended.
func (d *Driver) watch(g *guest) {
	exit, err := host.AwaitExit(g.handle)
	g.Mu.Lock()
	released := g.Released
	g.Mu.Unlock()
	if err != nil && (released || !errors.Is(err, os.ErrClosed)) {
		return // it goes on
	}
	close(g.Died)
	g.release()
	if !g.IsStopped() {
		d.noteEnd(g.ID, exit)
	}
	told := ""
	for g.Left = d.wipe(g.ID); errors.Is(g.Left, errStays); g.Left = d.wipe(g.ID) {
		if now := g.Left.Error(); now != told {
			told = now
			d.config.Log.Warn("a guest's warden has ended, and its domain is not destroyed yet", "guest", g.ID, "cause", now)
		}
		if pause.For(d.life, mindEvery) != nil {
			return // the next driver destroys it
		}
	}
	d.guests.Remove(g.ID)
	close(g.Ended)
}

// absent is what calls are told of a guest whose warden has ended. That it is gone they hear when its domain has been destroyed, not
// before: else it would be started elsewhere, and run twice.
func (g *guest) absent(ctx context.Context) error {
	select {
	case <-g.Ended:
		return fleet.ErrAbsent
	case <-ctx.Done():
	case <-time.After(host.DeathLimit):
	}
	return errors.New("its warden has ended, and its domain is not destroyed yet")
}

// release releases the guest, which goes on.
func (g *guest) release() {
	g.Release()
	g.end()
	g.handle.Close()
}

// end destroys a guest's domain, and then ends its warden. It takes seconds, more than the end of a process may, so it is not left to
// wipe.
func (d *Driver) end(g *guest) error {
	if err := d.tools.destroy(d.domain(g.ID)); err != nil {
		return err
	}
	if err := host.Kill(g.handle); err != nil && !g.Dead() {
		return fmt.Errorf("kill the warden: %w", err)
	}
	return nil
}

// askLimit is how long a warden may take to answer: it may have to wait for xl.
const askLimit = 3 * time.Minute

// ask asks the warden. A refusal is an error, and fleet.ErrAbsent that nothing of the guest is left.
func (g *guest) ask(ctx context.Context, q question) (status, error) {
	s, err := g.tell(ctx, q)
	if err != nil && g.Dead() {
		err = errors.Join(g.absent(ctx), err)
	}
	return s, err
}

// tell is ask, but does not find out whether the guest is gone.
func (g *guest) tell(ctx context.Context, q question) (s status, err error) {
	ctx, stop := context.WithTimeout(ctx, askLimit)
	defer stop()
	conn, err := g.Dial(ctx, controlSocket)
	if err != nil {
		return s, err
	}
	defer conn.Close()
	stopped := context.AfterFunc(ctx, func() { conn.Close() })
	defer stopped()
	var a answer
	if err := json.NewEncoder(conn).Encode(q); err != nil {
		return s, errors.Join(err, ctx.Err())
	}
	if err := json.NewDecoder(conn).Decode(&a); err != nil {
		return s, errors.Join(err, ctx.Err())
	}
	if a.Refused != "" {
		return a.Status, errors.New(a.Refused)
	}
	return a.Status, nil
}

// stage asks how far the guest is.
func (g *guest) status(ctx context.Context) (status, error) {
	return g.ask(ctx, question{Ask: askStatus})
}

// inspectLimit: a warden answers at once, unless it has ended.
const inspectLimit = 5 * time.Second

func (g *guest) inspect(ctx context.Context, all []domain, name string) (fleet.GuestFacts, bool) {
	r := g.Remembered()
	if !r.Complete {
		return fleet.GuestFacts{}, false
	}
	ctx, stop := context.WithTimeout(ctx, inspectLimit)
	defer stop()
	var s status
	err := errors.New("its warden has ended")
	if !g.Dead() {
		s, err = g.tell(ctx, question{Ask: askStatus})
	}
	now := time.Now()
	is, runs := find(all, name)
	if g.Dead() && !runs {
		return fleet.GuestFacts{}, false
	}
	g.Mu.Lock()
	defer g.Mu.Unlock()
	if err == nil {
		g.seen = runState(s.Stage)
	}
	facts := fleet.GuestFacts{Gen: r.Gen, Run: g.seen, ResidentBytes: is.MiB * mebi, StartedAt: r.StartedAt, CPUTime: is.CPUTime, CPUs: g.cpus}
	if passed := now.Sub(g.usedAt); is.Number > 0 && passed >= listFor {
		if !g.usedAt.IsZero() {
			g.cpus = max(0, float64(is.CPUTime-g.usedCPU)/float64(passed))
		}
		g.usedCPU, g.usedAt, facts.CPUs = is.CPUTime, now, g.cpus
	}
	return facts, true
}

// runState is what a stage is for others.
func runState(s stage) fleet.RunState {
	switch s {
	case making, running:
		return fleet.Running
	case waiting, arriving, broken:
		return fleet.Incoming
	}
	return fleet.Suspended
}

// Link opens the byte stream to the guest agent. A second call ends the first stream. The
// stream may break at any byte.
func (d *Driver) Link(ctx context.Context, id fleet.GuestID) (io.ReadWriteCloser, error) {
	return d.guests.Link(ctx, id, linkSocket)
}

// noteEnd keeps what is left of a guest that ended by itself.
func (d *Driver) noteEnd(id fleet.GuestID, exit host.Exit) {
	console, log := host.OpenLog(d.dir(id), consoleLog), host.OpenLog(d.dir(id), ownLog)
	defer console.Close()
	defer log.Close()
	var how ending
	text, err := os.ReadFile(filepath.Join(d.dir(id), endingFile))
	if err == nil {
		err = json.Unmarshal(text, &how)
	}
	r, kept := d.guests.Remember(id, console, log, func(r *fleet.Remains, shown string) {
		r.Reason = how.Reason
		r.Why, r.Died, r.Killed = whyEnded(how.Reason, exit, err)
	})
	d.config.Log.Info("guest ended", "guest", id, "why", r.Why, "reason", how.Reason, "kept", r.Folder)
	if kept != nil {
		d.config.Log.Warn("what a guest said last is not kept", "guest", id, "cause", kept)
	}
}

// whyEnded says why a guest ended, from what its warden has left.
func whyEnded(reason string, exit host.Exit, unknown error) (why string, died, killed bool) {
	switch {
	case unknown != nil:
		return "its warden on this host " + exit.String(), true, exit.Signal != 0
	case reason == destroyed:
		return "somebody destroyed its domain", true, true
	case reason == "poweroff":
		return "it switched itself off", false, false
	case reason == "reboot":
		return "it reset itself, as a kernel does that panics", false, false
	case reason == "crash":
		return "its kernel crashed", true, false
	}
	return "Xen ended it: " + reason, true, false
}

// Ending returns what is known of a guest that ended by itself. It returns nil if the guest
// did not end, or was stopped since.
func (d *Driver) Ending(id fleet.GuestID) *fleet.Remains { return d.guests.Ending(id) }

// LastWords returns, for people to read, what a guest that is here said last. It is empty if
// the guest said nothing.
func (d *Driver) LastWords(id fleet.GuestID) string {
	return d.guests.LastWords(id, func(dir string) string {
		f := host.OpenLog(dir, consoleLog)
		defer f.Close()
		if f == nil {
			return ""
		}
		return host.Tail(f)
	})
}
