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

// contentBytes is how many bytes of a file are sent at a time. A guest has dozens of
// images, most of them far smaller.
const contentBytes = 128 << 10

// tellEvery is the interval between two reports of a copy's progress. telling is how many bytes
// must have been sent before they indicate the speed.
const (
	tellEvery = 200 * time.Millisecond
	telling   = 1 << 20
)

// Sender is a running copy: it knows which parts of the guest the target has, and how to send
// the rest. Its methods must not be called concurrently, except Close.
type Sender struct {
	Progress  fleet.Progress
	PostCopy  bool  // pages left at the last pass are lazy: the target fetches them after the guest runs there
	MostBytes int64 // HoldCopy's passes end when so much has been sent in all; 0: no limit
	LazyBytes int64 // number of bytes in lazy pages

	conn   *framing.Conn
	store  string // folder of the guest's files
	first  int    // PID of its first process
	files  *Source
	memory *memory.Tracker // nil: the kernel cannot report written pages, and memory is sent with the images
	sent   map[uint32]bool // the processes whose memory was sent, by their numbers
	begins chan began      // receives the result of starting to track; nil: it was read
	blind  error           // why tracking failed
	begun  time.Time
	told   time.Time
	pass   time.Time // when the current pass began; zero: there is none
	before int64     // bytes sent before it began
	tell   func(fleet.Progress)
	buffer []byte // for images: a guest has dozens, most of them small
	stages []any  // stages of the switch and their times, as slog takes them
	last   time.Time

	failed error         // error of a pass made by HoldCopy
	end    chan struct{} // closed to end HoldCopy's passes; nil: there are none
	done   chan struct{} // closed when they have ended
}

// Tracking is the beginning of tracking a guest's writes to memory.
type Tracking struct {
	first int // PID of the guest's first process
	begun time.Time
	done  chan began
}

// BeginTracking starts to track the writes of a guest, given by its first process, in the
// background: that takes as long as to reach a target. The caller must give the Tracking to
// NewSender, or Drop it. The context must last until the Sender's Sync has returned, or Free.
func BeginTracking(ctx context.Context, first int) *Tracking {
	t := &Tracking{first, time.Now(), make(chan began, 1)}
	go func() {
		tracker, err := memory.Track(ctx, host.Family(first))
		t.done <- began{tracker, err}
	}()
	return t
}

// Drop ends the tracking. It waits until it has begun.
func (t *Tracking) Drop() {
	if b := <-t.done; b.memory != nil {
		b.memory.Close()
	}
}

// NewSender starts a copy of a guest to a target that has answered a hello. store is the
// folder of the guest's files. tell, if not nil, is called with the progress now and then.
// The Sender owns the connection and the tracking.
func NewSender(conn *framing.Conn, store string, t *Tracking, tell func(fleet.Progress)) *Sender {
	return &Sender{
		conn: conn, store: store, first: t.first, begun: t.begun, tell: tell,
		files: NewSource(store, sandbox.Carried...), begins: t.done,
	}
}

// began is the result of starting to track.
type began struct {
	memory *memory.Tracker
	err    error
}

// Close ends the copy. A running call returns an error.
func (o *Sender) Close() { o.conn.Close() }

// Free frees what the copy needs on this host. The Sender must not be used afterwards.
func (o *Sender) Free() {
	o.Close()
	_ = o.LetGo() // its error no longer matters
	_ = o.tracked()
	if o.memory != nil {
		o.memory.Close()
	}
}

// Track starts to track the guest's writes to memory, if that is possible. It is also
// called again when the result of the last pass has become invalid. Then the target
// forgets all memory, and the next pass sends all of it. Otherwise pages that are freed
// before that pass might stay lazy for ever.
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

// tracked waits until it is known whether the guest's writes can be tracked.
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

// Copied reports whether passes send private memory, so that CRIU must not write it.
func (o *Sender) Copied() bool { return o.tracked() == nil && o.memory != nil }

func (o *Sender) processes() []int { return host.Family(o.first) }

// BeginPass counts a pass, and estimates how much of the guest the target lacks, as far as
// possible while the guest runs.
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
		o.Tell() // every pass is reported, however short
	}
	return err
}

// Tell reports the copy's progress between two passes.
func (o *Sender) Tell() {
	if o.tell != nil {
		o.tell(o.Progress)
	}
}

// withinPass returns the progress in the middle of a pass: p is the progress at its beginning, after
// which sent bytes were sent in a time took. If memory goes with the images, RemainingBytes
// stays as it is. A few bytes do not indicate the speed.
func withinPass(p fleet.Progress, sent int64, took time.Duration, memory bool) fleet.Progress {
	p.SentBytes, p.Elapsed = p.SentBytes+sent, p.Elapsed+took
	if memory {
		p.RemainingBytes = max(0, p.RemainingBytes-sent)
	}
	if sent >= telling && took > 0 {
		p.BytesPerSecond = float64(sent) / took.Seconds()
	}
	return p
}

// Pass sends everything that changed since the last pass, and waits until the target has
// received it. The last pass is made while the guest is suspended.
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
	o.Progress.SentBytes = o.conn.Sent() // so that it does not count as memory in the measured speed
	return err
}

// piece sends a piece of memory, in several parts if necessary.
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

// send sends a message, and reports the progress from time to time.
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

// tellOn reports the progress while something is sent.
func (o *Sender) tellOn(now time.Time) {
	switch {
	case o.tell == nil:
	case o.pass.IsZero(): // an image, or the guest agent
		o.Progress.SentBytes, o.Progress.Elapsed = o.conn.Sent(), now.Sub(o.begun)
		o.Tell()
	default:
		o.tell(withinPass(o.Progress, o.conn.Sent()-o.before, now.Sub(o.pass), o.memory != nil))
	}
}

// Sync waits until the target has received everything that was sent and is ready for
// frames, and until what BeginTracking started has ended.
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

// Ask makes the target restore the guest, which has so many bytes of memory, from the received
// data, and waits for its answer. asked is called as soon as the request is sent, since the target
// may then have the guest.
func (o *Sender) Ask(memoryBytes int64, asked func() error) (Answer, error) {
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
	a, err := hear(o.conn, RestoredLimit(memoryBytes))
	o.Progress.Elapsed = time.Since(o.begun)
	return a, err
}

// Finish ends a Recording where a target would be asked to restore the guest.
func (o *Sender) Finish() error {
	if err := o.conn.Send(sayRestore); err != nil {
		return err
	}
	return o.conn.Flush()
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

// content sends a file's content.
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

// holdEvery is how often a copy that waits for the rest of its gang sends changes.
const holdEvery = 250 * time.Millisecond

// HoldCopy sends the guest's changes again and again until LetGo. A pass is never
// interrupted, because it would be unknown which part of it the target has received.
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
			if o.MostBytes > 0 && o.conn.Sent() > o.MostBytes {
				continue
			}
			if o.failed = o.Pass(context.Background(), false); o.failed != nil {
				return
			}
			o.Progress.Rounds++
		}
	}()
}

// LetGo ends the passes of HoldCopy, if there are any. An error means that a pass failed:
// the copy cannot be used.
func (o *Sender) LetGo() error {
	if o.end != nil {
		close(o.end)
		<-o.done
		o.end = nil
	}
	return o.failed
}

// NoteSuspended records that the guest is about to be suspended.
func (o *Sender) NoteSuspended() {
	o.last = time.Now()
	o.Progress.SuspendedAt, o.stages = o.last, nil
}

// Stage records that a stage of the switch is over.
func (o *Sender) Stage(name string) {
	now := time.Now()
	o.stages = append(o.stages, name, now.Sub(o.last).Round(100*time.Microsecond))
	o.last = now
}

// Stages returns the stages and how long each took, for a log that explains a blackout.
func (o *Sender) Stages() []any { return o.stages }
