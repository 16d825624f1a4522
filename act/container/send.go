package container

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"pagurus/act/container/pages"
	"pagurus/act/container/proc"
	"pagurus/act/container/rootfs"
	"pagurus/act/container/tree"
	"pagurus/act/container/wire"
	"pagurus/fleet"
	"pagurus/internal/fault"
)

// tellEvery is how often a copy says how far it is.
const tellEvery = 200 * time.Millisecond

// telling is how much must have been sent for the time it took to mean anything.
const telling = 1 << 20

// syncLimit is how long a target may take over what it has been sent.
const syncLimit = 30 * time.Second

// sending is a copy under way: a target that has of the guest what was sent,
// and what has to be known to send it the rest.
type sending struct {
	conn      *wire.Conn
	migration fleet.MigrationID
	files     *tree.Source
	memory    *pages.Tracker // nil: the kernel cannot tell what was written, and memory goes with the images
	begun     time.Time
	progress  fleet.Progress
	told      time.Time
	tell      func(fleet.Progress)
	stages    stages // of the switch

	failed error         // of a pass while it was held
	end    chan struct{} // closed to end the holding; nil: nothing holds it
	done   chan struct{} // closed when it has ended
}

// close ends the copy. What it may be doing at the time ends with an error.
func (s *sending) close() { s.conn.Close() }

// free gives back what the copy needs at this host, when nobody uses it any more.
func (s *sending) free() {
	s.close()
	s.letGo()
	if s.memory != nil {
		s.memory.Close()
	}
}

// Copy sends what a guest has to Task.Listen while it runs, and returns when
// what is left is small. Called again for the same migration it goes on, or
// begins anew if the agent that began it has died. After an error the copy is
// called off and the guest runs on.
func (d *Driver) Copy(ctx context.Context, t fleet.Task, progress func(fleet.Progress)) error {
	if d.config.Judge == nil {
		return fmt.Errorf("copy guest %s: nobody was named to judge when a copy is good enough", t.Guest.ID)
	}
	g, err := d.here(t.Guest.ID)
	if err != nil {
		return fmt.Errorf("copy guest %s: %w", t.Guest.ID, err)
	}
	ctx, done := g.move(ctx)
	defer done()
	if err := d.copy(ctx, g, t, progress); err != nil {
		return fmt.Errorf("copy guest %s: %w", t.Guest.ID, err)
	}
	return nil
}

func (d *Driver) copy(ctx context.Context, g *guest, t fleet.Task, progress func(fleet.Progress)) error {
	order := copying{Migration: t.Order.Migration, Listen: t.Listen, Limits: t.Limits}
	if _, err := wire.ParsePlace(order.Listen); err != nil {
		return err
	}
	if c := g.remembered().Copy; c != nil && c.Migration == order.Migration && c.Listen == order.Listen {
		if c.Off {
			return errors.New("the copy was called off")
		}
		if c.Asked || c.Left || c.Frozen {
			return nil // and it switched since, or is about to
		}
		if s := g.take(); s != nil {
			progress(s.progress)
			return g.keep(s, c.Limits)
		}
	}
	if run := g.remembered().runs(); run != fleet.Running {
		return fmt.Errorf("it does not run here: it is %s", run)
	}
	g.drop()
	if err := g.remember(func(r *record) { r.Copy = &order }); err != nil {
		return err
	}
	err := fault.Point("container.copy.after-begin")
	var s *sending
	if err == nil {
		s, err = d.rounds(ctx, g, order, progress)
	}
	if err == nil {
		err = g.remember(func(r *record) { r.Copy.Good = true })
	}
	if err != nil {
		if s != nil {
			s.free()
		}
		return errors.Join(err, g.callOff())
	}
	return g.keep(s, order.Limits)
}

// callOff notes that nothing more comes of a copy, unless the agent itself ends
// and the next one goes on with it.
func (g *guest) callOff() error {
	err := g.remember(func(r *record) {
		if r.Copy != nil {
			r.Copy.Off = true
		}
	})
	if errors.Is(err, errClosed) {
		return nil
	}
	return err
}

// take gives the copy that is ready to switch to whoever switches or ends it.
func (g *guest) take() *sending {
	g.mu.Lock()
	s := g.out
	g.out = nil
	g.mu.Unlock()
	if s != nil {
		s.letGo()
	}
	return s
}

// drop ends a copy that is ready to switch.
func (g *guest) drop() {
	if s := g.take(); s != nil {
		s.free()
	}
}

// keep keeps a copy that is ready to switch. If others are waited for, what is
// left of it is kept small meanwhile.
func (g *guest) keep(s *sending, l fleet.Limits) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.released {
		s.free()
		return errClosed
	}
	g.out = s
	if l.Hold && l.Mode != fleet.StopAndCopy {
		s.hold(g)
	}
	return nil
}

// holdEvery is how often a copy that waits for others sends what has changed.
const holdEvery = 250 * time.Millisecond

// hold sends what changes of the guest until letGo. A pass is never broken off,
// for nobody would know what of it came to the target. If one fails so will the
// switch.
func (s *sending) hold(g *guest) {
	s.end, s.done, s.tell = make(chan struct{}), make(chan struct{}), nil
	go func() {
		defer close(s.done)
		for {
			select {
			case <-s.end:
				return
			case <-time.After(holdEvery):
			}
			if s.failed = s.pass(context.Background(), g, false); s.failed != nil {
				return
			}
			s.progress.Rounds++
		}
	}()
}

// letGo ends the holding, if there is any.
func (s *sending) letGo() {
	if s.end != nil {
		close(s.end)
		<-s.done
		s.end = nil
	}
}

// reach connects to a guest's target, and gives what it says of itself.
func (d *Driver) reach(ctx context.Context, r record, c copying, only bool) (conn *wire.Conn, a answer, err error) {
	place, err := wire.ParsePlace(c.Listen)
	if err != nil {
		return nil, a, err
	}
	err = d.atHost(func() (err error) {
		conn, err = wire.Dial(ctx, place)
		return err
	})
	if err != nil {
		return nil, a, err
	}
	h := hello{Version: wire.Version, Guest: r.Guest, Migration: c.Migration, Gen: r.Gen, Word: place.Word, Only: only}
	if err = sendJSON(conn, sayHello, h); err == nil {
		a, err = hear(conn, syncLimit)
	}
	if err != nil {
		return nil, a, errors.Join(fmt.Errorf("greet the target: %w", err), conn.Close())
	}
	return conn, a, nil
}

// hear waits for the target's answer.
func hear(c *wire.Conn, patience time.Duration) (a answer, err error) {
	kind, content, err := c.Receive(patience)
	if err != nil {
		return a, err
	}
	if kind != sayAnswer {
		return a, fmt.Errorf("the target says something of the unknown kind %q", kind)
	}
	return a, parse(content, &a)
}

// open begins a copy.
func (d *Driver) open(ctx context.Context, g *guest, c copying, tell func(fleet.Progress)) (*sending, error) {
	r := g.remembered()
	conn, a, err := d.reach(ctx, r, c, false)
	if err != nil {
		return nil, err
	}
	if a.Arrived || a.Failure != "" {
		conn.Close()
		return nil, fmt.Errorf("the target does not take it: %s", a.Failure)
	}
	conn.Limit(d.bandwidth(c.Limits))
	s := &sending{
		conn: conn, migration: c.Migration, begun: time.Now(), tell: tell,
		files: tree.NewSource(filepath.Join(g.dir, storeDir), rootfs.Carried...),
	}
	s.progress.TotalBytes = r.Need.MemoryBytes
	return s, s.track(ctx, g)
}

// track begins to see what the guest writes to its memory, if that can be seen.
func (s *sending) track(ctx context.Context, g *guest) (err error) {
	s.memory, err = pages.Track(ctx, s.processes(g))
	if errors.Is(err, pages.ErrUnsupported) {
		s.memory = nil
		return nil
	}
	if err != nil {
		s.free()
	}
	return err
}

// rounds sends the guest pass by pass until what is left is little enough.
func (d *Driver) rounds(ctx context.Context, g *guest, c copying, tell func(fleet.Progress)) (s *sending, err error) {
	if s, err = d.open(ctx, g, c, tell); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, s.close) // ends a send that hangs
	defer stop()
	var seen []fleet.Progress
	for {
		s.progress.Rounds++
		if s.progress.RemainingBytes, err = s.remaining(ctx, g); err != nil {
			return s, errors.Join(err, ctx.Err())
		}
		s.progress.Elapsed = time.Since(s.begun)
		seen = append(seen, s.progress)
		good, err := d.config.Judge(c.Limits, seen)
		if err != nil || good {
			s.tell(s.progress)
			return s, err
		}
		if err := s.pass(ctx, g, false); err != nil {
			return s, errors.Join(err, ctx.Err())
		}
	}
}

// remaining is how much of the guest the target lacks, as well as that can be
// told without standing still.
func (s *sending) remaining(ctx context.Context, g *guest) (int64, error) {
	if s.memory == nil {
		return proc.Use(s.processes(g)).ResidentBytes, nil
	}
	if s.progress.CopiedBytes == 0 { // nothing is tracked yet
		return proc.Use(s.processes(g)).ResidentBytes + rootfs.UsedBytes(filepath.Join(g.dir, storeDir)), nil
	}
	return s.memory.Dirty(ctx)
}

func (s *sending) processes(g *guest) []int { return proc.Family(g.remembered().Process.PID) }

// pass sends what has changed since the last pass, and waits until the target
// has taken it. The last one is made while the guest stands still.
func (s *sending) pass(ctx context.Context, g *guest, last bool) error {
	begun, before := time.Now(), s.conn.Sent()
	all := s.processes(g)
	copied, err := s.files.Pass(ctx, proc.Mapped(all), func(m []byte) error { return s.send(sayTree, m) })
	if err == nil && s.memory != nil {
		pass := s.memory.Pass
		if last {
			pass = s.memory.Last
		}
		var done pages.Passed
		done, err = pass(ctx, all, s.piece)
		copied += done.SentBytes
	}
	if err != nil {
		return err
	}
	if err := s.sync(); err != nil {
		return err
	}
	s.progress.CopiedBytes += copied
	s.progress.SentBytes = s.conn.Sent()
	// Little says nothing of how fast much would go.
	took, sent := time.Since(begun).Seconds(), s.conn.Sent()-before
	if took > 0 && (sent >= telling || s.progress.BytesPerSecond == 0) {
		s.progress.BytesPerSecond = float64(sent) / took
	}
	return nil
}

// piece sends a piece of memory, in as many parts as that takes.
func (s *sending) piece(p pages.Piece, content []byte) error {
	if len(content) == 0 {
		return s.send(sayPiece, pieceHead(p))
	}
	const most = wire.Most &^ (pages.PageBytes - 1) / 2
	for len(content) > 0 {
		part := content[:min(len(content), most)]
		content = content[len(part):]
		p.Bytes = uint64(len(part))
		if err := s.send(sayPiece, pieceHead(p), part); err != nil {
			return err
		}
		p.Address += p.Bytes
	}
	return nil
}

// send sends a message, and now and then says how far the copy is.
func (s *sending) send(kind byte, content ...[]byte) error {
	if err := s.conn.Send(kind, content...); err != nil {
		return err
	}
	if now := time.Now(); s.tell != nil && now.Sub(s.told) >= tellEvery {
		s.told = now
		s.progress.SentBytes, s.progress.Elapsed = s.conn.Sent(), time.Since(s.begun)
		s.tell(s.progress)
	}
	return nil
}

// sync waits until the target has taken all that was sent.
func (s *sending) sync() error {
	if err := s.conn.Send(saySync); err != nil {
		return err
	}
	if err := s.conn.Flush(); err != nil {
		return err
	}
	a, err := hear(s.conn, syncLimit)
	if err == nil && a.Failure != "" {
		err = fmt.Errorf("the target does not take it: %s", a.Failure)
	}
	return err
}

// images sends all files of a folder that CRIU needs.
func (s *sending) images(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || filepath.Ext(e.Name()) == ".log" {
			continue
		}
		if err := s.image(dir, e.Name()); err != nil {
			return fmt.Errorf("send %s: %w", e.Name(), err)
		}
	}
	return nil
}

func (s *sending) image(dir, name string) error {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := s.conn.Send(sayImage, []byte(name)); err != nil {
		return err
	}
	buffer := make([]byte, wire.Most)
	for {
		n, err := f.Read(buffer)
		if n > 0 {
			if err := s.send(sayContent, buffer[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
