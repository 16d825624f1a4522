package qemu

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"pagurus/act/host"
	"pagurus/act/host/passage"
	"pagurus/act/qemu/qmp"
	"pagurus/fleet"
)

// guest is one QEMU process on this host.
type guest struct {
	host.Guest[record]
	handle *os.File // of the process

	connecting sync.Mutex // held while connecting to QEMU
	streaming  turn       // held while a copy begins, in each step of a checkpoint, and while its function is plugged in or given back
	plugging   sync.Mutex // held while it is decided whether it has its function; before streaming

	copies  atomic.Int64 // that have begun, of a guest with a function
	asked   atomic.Bool  // to let go of its function, which it has not done in time
	taking  sync.Mutex   // held while it gets a function, and as it dies
	parting func()       // called when a device of QEMU is gone, or may be; it does not wait

	// Guarded by Mu:
	held      *heldCopy // of its copy; nil: nothing holds it
	client    *qmp.Client
	heard     chan struct{}     // closed when all that client was told is recorded; nil: no client yet
	shutdown  string            // the reason for which QEMU ends, in its words; empty: it has said none
	waiting   *passage.Listener // for the source of its move; nil: none
	stoppedAt time.Time         // when QEMU last stopped the guest; zero while it runs
	seen      fleet.RunState
	usedCPU   time.Duration // at usedAt
	usedAt    time.Time
	resident  int64   // bytes, at the last measurement
	memory    ramArea // of the guest; empty until known
}

// attach begins to watch a guest's process. It takes over the handle, also after an
// error.
func (d *Driver) attach(r record, handle *os.File) (*guest, error) {
	g := &guest{Guest: host.NewGuest(d.dir(r.Guest), r), handle: handle, seen: fleet.Running, streaming: newTurn()}
	g.parting = func() { d.pairGone(g) }
	if r.Target {
		g.seen = fleet.Incoming
	}
	if err := d.guests.Add(r.Guest, g, func() { d.watch(g) }); err != nil {
		handle.Close()
		return nil, err
	}
	return g, nil
}

// watch cleans up when the guest's process ends.
func (d *Driver) watch(g *guest) {
	exit, err := host.AwaitExit(g.handle)
	if err != nil {
		return // released: it runs on
	}
	g.taking.Lock() // what it gets by now is given back by wipe, and later it gets nothing
	close(g.Died)
	g.taking.Unlock()
	g.hearOut()
	g.release()
	if !g.IsStopped() {
		d.noteEnd(g.ID, exit, g.shutdownCause())
	}
	g.Left = d.wipe(g.ID)
	d.guests.Remove(g.ID)
	d.letGoOf(g.ID)
	close(g.Ended)
}

// uid is the user as whom the guest's QEMU runs.
func (g *guest) uid() int {
	uid, _ := uidOf(g.Dir) // it has one from its start
	return int(uid)
}

// words are the last words of QEMU and the guest, from the guest's folder.
func words(dir string) string {
	return lastWords(filepath.Join(dir, ownLog), filepath.Join(dir, consoleLog))
}

// release stops watching the guest; its process runs on.
func (g *guest) release() {
	g.Release()
	g.Mu.Lock()
	defer g.Mu.Unlock()
	if g.client != nil {
		g.client.Close()
	}
	if g.waiting != nil {
		g.waiting.Close()
	}
	g.handle.Close()
}

// monitor returns the connection to QEMU, and connects if necessary.
func (g *guest) monitor(ctx context.Context) (*qmp.Client, error) {
	g.connecting.Lock()
	defer g.connecting.Unlock()
	g.Mu.Lock()
	client, released := g.client, g.Released
	g.Mu.Unlock()
	if released {
		return nil, host.ErrClosed
	}
	if client != nil {
		select {
		case <-client.Done():
		default:
			return client, nil
		}
	}
	conn, err := g.Dial(ctx, monitorSocket)
	if err != nil {
		return nil, err
	}
	if client, err = qmp.Over(ctx, conn); err != nil {
		return nil, err
	}
	g.Mu.Lock()
	defer g.Mu.Unlock()
	if g.Released {
		client.Close()
		return nil, host.ErrClosed
	}
	g.client, g.heard = client, make(chan struct{})
	events, _ := client.Subscribe()
	go g.listen(events, g.heard)
	return client, nil
}

// listen records when QEMU suspends the guest and why QEMU ends, until the connection ends.
func (g *guest) listen(events <-chan qmp.Event, heard chan<- struct{}) {
	defer close(heard)
	g.parting() // while nobody listened
	for e := range events {
		g.Mu.Lock()
		switch e.Name {
		case "SHUTDOWN":
			g.shutdown = shutdownReason(e.Data)
		case "STOP":
			g.stoppedAt = e.At
		case "RESUME":
			g.stoppedAt = time.Time{}
		}
		g.Mu.Unlock()
		if e.Name == "DEVICE_DELETED" {
			g.parting()
		}
	}
}

// The relevant states of a virtual machine in query-status.
const (
	vmRunning     = "running"
	vmPaused      = "paused"
	vmIncoming    = "inmigrate"
	vmPrelaunch   = "prelaunch"
	vmPostMigrate = "postmigrate" // suspended because another QEMU has it
)

func vmStatus(ctx context.Context, q *qmp.Client) (string, error) {
	var out struct {
		Status string `json:"status"`
	}
	err := q.Do(ctx, "query-status", nil, &out)
	return out.Status, err
}

func (g *guest) inspect(ctx context.Context) (fleet.GuestFacts, bool) {
	r := g.Remembered()
	if g.Dead() || !r.Complete {
		return fleet.GuestFacts{}, false
	}
	state := fleet.RunState("")
	if q, err := g.monitor(ctx); err == nil {
		if status, err := vmStatus(ctx, q); err == nil {
			state = runState(status)
		}
	}
	st, err := host.ReadStat(r.Process.PID)
	if host.IsGone(err) || err == nil && st.Ticks != r.Process.Ticks {
		return fleet.GuestFacts{}, false
	}
	huge := r.Process.HugeBytes()
	resident := r.Process.ResidentBytes() + huge
	now := time.Now()
	g.Mu.Lock()
	defer g.Mu.Unlock()
	if state != "" {
		g.seen = state
	}
	if resident > 0 {
		g.resident = resident
	}
	facts := fleet.GuestFacts{Gen: r.Gen, Run: g.seen, ResidentBytes: g.resident, HugeBytes: huge, CPUTime: g.usedCPU, StartedAt: r.StartedAt, Layout: r.Layout}
	if r.Pair != nil {
		facts.Standby = r.Pair.Trouble
	}
	if err != nil {
		// This process lacks files or memory, which says nothing about the guest. If it
		// were reported absent, it would be destroyed.
		return facts, true
	}
	if passed := now.Sub(g.usedAt); !g.usedAt.IsZero() && passed > 0 {
		facts.CPUs = float64(st.CPU-g.usedCPU) / float64(passed)
	}
	g.usedCPU, g.usedAt, facts.CPUTime = st.CPU, now, st.CPU
	return facts, true
}

func runState(status string) fleet.RunState {
	switch status {
	case vmRunning:
		return fleet.Running
	case vmIncoming, vmPrelaunch:
		return fleet.Incoming
	}
	return fleet.Suspended
}

// Link opens the byte stream to the guest agent. A second call ends the first stream. The
// stream may break at any byte.
func (d *Driver) Link(ctx context.Context, id fleet.GuestID) (io.ReadWriteCloser, error) {
	return d.guests.Link(ctx, id, linkSocket)
}
