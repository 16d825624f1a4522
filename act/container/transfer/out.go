package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"pagurus/act/container/framing"
	"pagurus/act/container/memory"
	"pagurus/act/container/sandbox"
	"pagurus/act/host"
	"pagurus/fleet"
)

// contentBytes is how much of a file is sent at a time: of a guest's dozens of images
// most are far smaller.
const contentBytes = 128 << 10

// tellEvery is how often a copy says how far it is, and telling how much must
// have been sent for the time it took to mean anything.
const (
	tellEvery = 200 * time.Millisecond
	telling   = 1 << 20
)

// Sender is a copy under way: a target that has of the guest what was sent, and what
// has to be known to send it the rest. Its methods are not for use at the same
// time, but for Close.
type Sender struct {
	Progress  fleet.Progress
	PostCopy  bool  // memory that is left at the last pass is owed: the target fetches it when the guest runs there
	LazyBytes int64 // bytes of that

	conn   *framing.Conn
	store  string // the guest's files
	first  int    // its first process
	files  *Source
	memory *memory.Tracker // nil: the kernel cannot tell what was written, and memory goes with the images
	sent   map[uint32]bool // the processes of which memory was sent, by their numbers
	begins chan began      // how tracking has begun, which nobody has asked yet; nil: somebody has
	blind  error           // it could not
	begun  time.Time
	told   time.Time
	pass   time.Time // when the pass under way began; 0: there is none
	before int64     // and what had been sent by then
	tell   func(fleet.Progress)
	buffer []byte // of images, a guest has dozens of which most are small
	stages []any  // of the switch, as slog takes them
	last   time.Time

	failed error         // of a pass while it was held
	end    chan struct{} // closed to end the holding; nil: nothing holds it
	done   chan struct{} // closed when it has ended
}

// NewSender begins a copy of a guest, known by the folder of its files and by its
// first process, to a target that has answered a hello. tell is told how far it
// is now and then; nil: nobody is. The connection is the copy's from now on, and the
// context has to last until Sync has returned, or Free.
func NewSender(ctx context.Context, conn *framing.Conn, store string, first int, tell func(fleet.Progress)) *Sender {
	o := &Sender{
		conn: conn, store: store, first: first, begun: time.Now(), tell: tell,
		files: NewSource(store, sandbox.Carried...), begins: make(chan began, 1),
	}
	go func() { // meanwhile files can be sent
		tracker, err := memory.Track(ctx, o.processes())
		o.begins <- began{tracker, err}
	}()
	return o
}

// began is how tracking begins.
type began struct {
	memory *memory.Tracker
	err    error
}

// Close ends the copy. What it may be doing at the time ends with an error.
func (o *Sender) Close() { o.conn.Close() }

// Free gives back what the copy needs at this host, when nobody uses it any more.
func (o *Sender) Free() {
	o.Close()
	_ = o.LetGo() // nobody goes on with it
	_ = o.tracked()
	if o.memory != nil {
		o.memory.Close()
	}
}

// Track begins to see what the guest writes to its memory, if that can be seen;
// also anew, after what Pass saw last has been in vain. The target forgets what it has
// then: the next pass sends all, and of what is gone until then some might be owed for ever.
func (o *Sender) Track(ctx context.Context) error {
	_ = o.tracked()
	for number := range o.sent {
		if err := o.piece(memory.AllGone(number), nil); err != nil {
			return err
		}
	}
	o.noteTracker(memory.Track(ctx, o.processes()))
	return o.blind
}

// tracked waits until it is known whether what the guest writes can be seen.
func (o *Sender) tracked() error {
	if o.begins != nil {
		b := <-o.begins
		o.begins = nil
		o.noteTracker(b.memory, b.err)
	}
	return o.blind
}

func (o *Sender) noteTracker(tracker *memory.Tracker, err error) {
	if errors.Is(err, memory.ErrUnsupported) {
		err = nil
	}
	o.memory, o.blind = tracker, err
}

// Copied reports whether private memory is sent by passes, and so not to be
// written by CRIU.
func (o *Sender) Copied() bool { return o.tracked() == nil && o.memory != nil }

func (o *Sender) processes() []int { return host.Family(o.first) }

// BeginPass begins a pass: it counts it, and finds out how much of the guest the
// target lacks, as well as that can be told without standing still.
func (o *Sender) BeginPass(ctx context.Context) (err error) {
	o.Progress.Rounds++
	switch {
	case o.Progress.CopiedBytes == 0: // nothing is tracked yet
		o.Progress.RemainingBytes = host.Use(o.processes()).ResidentBytes + sandbox.UsedBytes(o.store)
	case o.memory == nil:
		o.Progress.RemainingBytes = host.Use(o.processes()).ResidentBytes
	default:
		o.Progress.RemainingBytes, err = o.memory.Dirty(ctx)
	}
	o.Progress.Elapsed = time.Since(o.begun)
	if err == nil {
		o.Tell() // each pass, however short
	}
	return err
}

// Tell tells how far the copy is between two passes.
func (o *Sender) Tell() {
	if o.tell != nil {
		o.tell(o.Progress)
	}
}

// amid is how far a copy is amid a pass that p is the beginning of, when so much of it
// has been sent in such a time. Memory that goes with the images is left all the same.
// Little says nothing of how fast much would go.
func amid(p fleet.Progress, sent int64, took time.Duration, memory bool) fleet.Progress {
	p.SentBytes, p.Elapsed = p.SentBytes+sent, p.Elapsed+took
	if memory {
		p.RemainingBytes = max(0, p.RemainingBytes-sent)
	}
	if sent >= telling && took > 0 {
		p.BytesPerSecond = float64(sent) / took.Seconds()
	}
	return p
}

// Pass sends what has changed since the last pass, and waits until the target has
// taken it. The last one is made while the guest stands still.
func (o *Sender) Pass(ctx context.Context, last bool) error {
	o.pass, o.before = time.Now(), o.conn.Sent()
	defer func() { o.pass = time.Time{} }()
	all := o.processes()
	copied, err := o.files.Pass(ctx, host.Mapped(all), func(m []byte) error { return o.send(sayTree, m) })
	if err == nil {
		err = o.tracked()
	}
	if err == nil && o.memory != nil {
		pass := o.memory.Pass
		switch {
		case last && o.PostCopy:
			pass = o.memory.LeaveLazy
		case last:
			pass = o.memory.Last
		}
		var done memory.Passed
		done, err = pass(ctx, all, o.piece)
		copied, o.LazyBytes = copied+done.SentBytes, done.LazyBytes
	}
	if err != nil {
		return err
	}
	if err := o.Sync(); err != nil {
		return err
	}
	o.Progress.CopiedBytes += copied
	took, sent := time.Since(o.pass).Seconds(), o.conn.Sent()-o.before
	if took > 0 && (sent >= telling || o.Progress.BytesPerSecond == 0) {
		o.Progress.BytesPerSecond = float64(sent) / took
	}
	return nil
}

// GuestAgent sends the guest agent to a target that lacks it, before anything else.
func (o *Sender) GuestAgent(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := o.content(sayAgent, f); err != nil {
		return fmt.Errorf("send the guest agent: %w", err)
	}
	err = o.send(sayAgent)
	o.Progress.SentBytes = o.conn.Sent() // so that how fast memory goes is not told by it
	return err
}

// piece sends a piece of memory, in as many parts as that takes.
func (o *Sender) piece(p memory.Piece, content []byte) error {
	if o.sent == nil {
		o.sent = map[uint32]bool{}
	}
	o.sent[p.Process] = true
	if len(content) == 0 {
		return o.send(sayPiece, pieceHead(p))
	}
	const most = framing.Most / 2
	for len(content) > 0 {
		part := content[:min(len(content), most)]
		content = content[len(part):]
		p.Bytes = uint64(len(part))
		if err := o.send(sayPiece, pieceHead(p), part); err != nil {
			return err
		}
		p.Address += p.Bytes
	}
	return nil
}

// send sends a message, and now and then says how far the copy is.
func (o *Sender) send(kind byte, content ...[]byte) error {
	if err := o.conn.Send(kind, content...); err != nil {
		return err
	}
	if now := time.Now(); now.Sub(o.told) >= tellEvery {
		o.told = now
		o.tellOn(now)
	}
	return nil
}

// tellOn tells how far the copy is while something is sent.
func (o *Sender) tellOn(now time.Time) {
	switch {
	case o.tell == nil:
	case o.pass.IsZero(): // an image, or what is owed
		o.Progress.SentBytes, o.Progress.Elapsed = o.conn.Sent(), now.Sub(o.begun)
		o.Tell()
	default:
		o.tell(amid(o.Progress, o.conn.Sent()-o.before, now.Sub(o.pass), o.memory != nil))
	}
}

// Sync waits until the target has taken all that was sent, and is ready for frames, and
// for what NewSender began.
func (o *Sender) Sync() error {
	if err := o.conn.Send(saySync); err != nil {
		return err
	}
	if err := o.conn.Flush(); err != nil {
		return err
	}
	o.Progress.SentBytes = o.conn.Sent()
	a, err := hear(o.conn, syncLimit)
	if err == nil && a.Failure != "" {
		err = fmt.Errorf("the target does not take it: %s", a.Failure)
	}
	return errors.Join(err, o.tracked())
}

// Ask has the target make the guest of what it has, and waits for its answer. asked
// is called as soon as the target may have been told.
func (o *Sender) Ask(asked func() error) (Answer, error) {
	err := o.conn.Send(sayRestore)
	if err == nil {
		err = o.conn.Flush()
	}
	if err == nil {
		err = asked()
	}
	if err != nil {
		return Answer{}, err
	}
	a, err := hear(o.conn, restoreLimit)
	o.Progress.Elapsed = time.Since(o.begun)
	return a, err
}

// Images sends all files of a folder that CRIU needs.
func (o *Sender) Images(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	before := o.conn.Sent()
	defer func() { o.stages = append(o.stages, "images", o.conn.Sent()-before) }() // in bytes
	for _, e := range entries {
		if !e.Type().IsRegular() || filepath.Ext(e.Name()) == ".log" {
			continue
		}
		if err := o.image(dir, e.Name()); err != nil {
			return fmt.Errorf("send %s: %w", e.Name(), err)
		}
	}
	return o.Sync()
}

func (o *Sender) image(dir, name string) error {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := o.conn.Send(sayImage, []byte(name)); err != nil {
		return err
	}
	return o.content(sayContent, f)
}

// content sends what a file holds.
func (o *Sender) content(kind byte, f *os.File) error {
	if o.buffer == nil {
		o.buffer = make([]byte, contentBytes)
	}
	for {
		n, err := f.Read(o.buffer)
		if n > 0 {
			if err := o.send(kind, o.buffer[:n]); err != nil {
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

// holdEvery is how often a copy that waits for others sends what has changed.
const holdEvery = 250 * time.Millisecond

// HoldCopy sends what changes of the guest until LetGo. A pass is never broken off,
// for nobody would know what of it came to the target.
func (o *Sender) HoldCopy() {
	o.end, o.done, o.tell = make(chan struct{}), make(chan struct{}), nil
	go func() {
		defer close(o.done)
		for {
			select {
			case <-o.end:
				return
			case <-time.After(holdEvery):
			}
			if o.failed = o.Pass(context.Background(), false); o.failed != nil {
				return
			}
			o.Progress.Rounds++
		}
	}()
}

// LetGo ends the holding, if there is any. An error says that a pass failed
// meanwhile: the copy is of no use.
func (o *Sender) LetGo() error {
	if o.end != nil {
		close(o.end)
		<-o.done
		o.end = nil
	}
	return o.failed
}

// NoteSuspended notes that the guest is about to stand still.
func (o *Sender) NoteSuspended() {
	o.last = time.Now()
	o.Progress.SuspendedAt, o.stages = o.last, nil
}

// Stage notes that a stage of what follows is over.
func (o *Sender) Stage(name string) {
	now := time.Now()
	o.stages = append(o.stages, name, now.Sub(o.last).Round(100*time.Microsecond))
	o.last = now
}

// Stages are those and how long each took, for a log: people look there for what
// a guest stood still for.
func (o *Sender) Stages() []any { return o.stages }
