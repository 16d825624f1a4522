package container

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"pagurus/act/container/interrupted"
	"pagurus/act/container/sandbox"
	"pagurus/act/container/transfer"
	"pagurus/act/host"
	"pagurus/fleet"
)

// The folders in a guest's folder.
const (
	storeDir  = "store"  // what it has in memory
	rootDir   = "root"   // the root: the layer in memory on top of the image
	imagesDir = "images" // what CRIU writes and reads
)

// guest is one container of this host.
type guest struct {
	host.Guest[record]

	life   context.Context // ends when the guest must end or is released
	kill   context.CancelFunc
	moving sync.Mutex // held by the one call that moves the guest; see interrupt

	// Guarded by Mu:
	handle  *os.File // pidfd of its first process
	network *os.File // its network namespace
	lost    string   // why it was ended; empty: it was not lost
	usedCPU time.Duration
	usedAt  time.Time
	target  *target            // receives the guest; nil: none
	out     *transfer.Sender   // a copy that is ready to switch; nil: none
	saving  *saving            // a checkpoint that no call works on; nil: none
	writing chan struct{}      // closed when nothing of a checkpoint is written any more; nil: nothing was
	waits   *interrupted.Seen  // what its threads waited in when it was suspended; nil: not known
	cancel  context.CancelFunc // ends the call that holds moving
	using   *using             // its files; nil: not now
}

// attach starts to watch a guest's process. It takes ownership of the handle, also when
// it returns an error.
func (d *Driver) attach(r record, handle *os.File) (*guest, error) {
	g := &guest{Guest: host.NewGuest(d.dir(r.Guest), r), handle: handle}
	network, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", r.Process.PID))
	if err != nil {
		handle.Close()
		return nil, fmt.Errorf("look at the guest's network: %w", err)
	}
	g.network = network
	g.life, g.kill = context.WithCancel(context.Background())
	if err := d.guests.Add(r.Guest, g, func() { d.watch(g) }); err != nil {
		handle.Close()
		network.Close()
		return nil, err
	}
	return g, nil
}

// watch removes everything of the guest when its first process ends.
func (d *Driver) watch(g *guest) {
	var exit host.Exit
	for {
		g.Mu.Lock()
		handle := g.handle
		g.Mu.Unlock()
		var err error
		exit, err = host.AwaitExit(handle)
		g.Mu.Lock()
		other, released := g.handle != handle, g.Released // other: the guest has arrived, so its first process is another
		g.Mu.Unlock()
		if other {
			handle.Close()
			continue
		}
		if err != nil && (released || !errors.Is(err, os.ErrClosed)) {
			g.network.Close()
			return // the guest keeps running
		}
		break
	}
	close(g.Died)
	g.interrupt()
	g.release()
	if !g.IsStopped() {
		d.noteEnd(g.ID, exit, g.lossCause())
	}
	g.Left = d.wipe(g.ID)
	d.guests.Remove(g.ID)
	g.network.Close()
	close(g.Ended)
}

// release releases the guest; its processes keep running.
func (g *guest) release() {
	g.Release()
	g.Mu.Lock()
	g.handle.Close()
	g.kill()
	cancel, t := g.cancel, g.target
	g.target = nil
	g.Mu.Unlock()
	if cancel != nil {
		cancel()
	}
	if t != nil {
		t.close()
	}
	g.drop()
	g.dropSaving()
}

func (g *guest) lossCause() string {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	return g.lost
}

// move reserves the guest for a call that moves it. The returned context ends with ctx,
// or when another call interrupts this one.
func (g *guest) move(ctx context.Context) (_ context.Context, done func()) {
	g.moving.Lock()
	ctx, cancel := context.WithCancel(ctx)
	g.Mu.Lock()
	g.cancel = cancel
	if g.Released || g.Stopped {
		cancel()
	}
	g.Mu.Unlock()
	return ctx, func() {
		g.Mu.Lock()
		g.cancel = nil
		g.Mu.Unlock()
		cancel()
		g.moving.Unlock()
	}
}

// interrupt cancels the call that moves the guest, a copy that is ready to switch, and a checkpoint.
func (g *guest) interrupt() {
	g.Mu.Lock()
	cancel := g.cancel
	g.Mu.Unlock()
	if cancel != nil {
		cancel()
	}
	g.drop()
	g.dropSaving()
}

// runs returns the guest's state according to its record.
func (r record) runs() fleet.RunState {
	switch {
	case r.Target && !r.Arrived:
		return fleet.Incoming
	case r.Target, r.Suspended, r.Copy != nil && r.Copy.Suspended:
		return fleet.Suspended
	}
	return fleet.Running
}

func (g *guest) inspect() (fleet.GuestFacts, bool) {
	r := g.Remembered()
	if g.Dead() || !r.Complete {
		return fleet.GuestFacts{}, false
	}
	facts := fleet.GuestFacts{Gen: r.Gen, Run: r.runs(), StartedAt: r.StartedAt}
	facts.ResidentBytes = sandbox.UsedBytes(filepath.Join(g.Dir, storeDir))
	if facts.Run == fleet.Incoming {
		return facts, true
	}
	use := host.Use(host.Family(r.Process.PID))
	facts.ResidentBytes += use.ResidentBytes
	now := time.Now()
	g.Mu.Lock()
	defer g.Mu.Unlock()
	if passed := now.Sub(g.usedAt); !g.usedAt.IsZero() && passed > 0 {
		facts.CPUs = max(0, float64(use.CPU-g.usedCPU)/float64(passed))
	}
	g.usedCPU, g.usedAt, facts.CPUTime = use.CPU, now, use.CPU
	return facts, true
}

// Link opens the byte stream to the guest agent. A guest has one link at a time; a second
// call ends the first link. The stream may be cut at any byte. Link fails for a suspended
// guest.
func (d *Driver) Link(ctx context.Context, id fleet.GuestID) (io.ReadWriteCloser, error) {
	conn, err := d.openLink(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("reach the agent in guest %s: %w", id, err)
	}
	return conn, nil
}

func (d *Driver) openLink(ctx context.Context, id fleet.GuestID) (net.Conn, error) {
	g, err := d.here(id)
	if err != nil {
		return nil, err
	}
	return g.Relink(func() (net.Conn, error) {
		if run := g.Remembered().runs(); run != fleet.Running {
			return nil, fmt.Errorf("it is %s", run)
		}
		return sandbox.DialAgent(ctx, filepath.Join(g.Dir, storeDir))
	})
}

// unlinkLimit is how long the guest agent may take to close its end of the link. It gets
// a processor within milliseconds, or on a busy host within a few dozen.
const unlinkLimit = 5 * time.Second

// unlink ends the link to the guest agent and waits until the guest has closed its end,
// too, because a connection that leads outside cannot be moved. No new link can be made
// until done is called.
func (g *guest) unlink(ctx context.Context) (done func(), err error) {
	g.Linking.Lock()
	g.Unlink()
	pid := g.Remembered().Process.PID
	for end := time.Now().Add(unlinkLimit); ; {
		open, err := sandbox.AgentLinked(pid)
		if err == nil && !open {
			return g.Linking.Unlock, nil
		}
		if err == nil && time.Now().After(end) {
			err = errors.New("the guest agent keeps its end of the link open")
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			g.Linking.Unlock()
			return nil, err
		}
		time.Sleep(time.Millisecond)
	}
}
