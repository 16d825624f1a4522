package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"pagurus/fleet"
	"pagurus/internal/pause"
	"pagurus/serve/wire"
)

// This file has the copies of jobs' streams at other controllers. Bytes count, for those who write them and
// those who read them, once most controllers have them. Streams only grow, and the same byte of a stream is the same
// whenever an agent sends it. So the longest copy that most of the controllers have among them is right.

// Election is what controllers are candidates for.
const Election = "controller"

// Other is another controller.
type Other struct {
	Name   string
	Client *wire.Client
	Counts bool // it has a vote
}

// Times of copying.
const (
	copyLimit   = 8 * time.Second // for one piece at one controller; who writes waits as long for most of them
	tendEvery   = 5 * time.Second // what a controller lacks that was away
	gatherEvery = 500 * time.Millisecond
	gatherExtra = 2 * time.Second // for those that are not needed to be most
	tidyEvery   = 6               // turns of tending, after which others remove what is forgotten
)

// copies are those of all streams of a spool.
type copies struct {
	term   func() int64
	others func() []Other
	log    *slog.Logger

	mu   sync.Mutex
	at   map[*stream]map[string]*copied
	full map[string]string // why controllers keep no more, by name
}

// copied is one copy.
type copied struct {
	end  int64  // -1: not known
	told string // names of the notes that it has
	over bool
	busy bool // it is being brought up
}

// most is how many controllers have to have something, and how many there are.
func (c *copies) most() (others []Other, need int) {
	others = c.others()
	votes := 1
	for _, o := range others {
		if o.Counts {
			votes++
		}
	}
	return others, votes/2 + 1
}

// of is the copy of a stream at a controller; the caller holds the lock.
func (c *copies) of(st *stream, name string) *copied {
	if c.at[st] == nil {
		c.at[st] = map[string]*copied{}
	}
	if c.at[st][name] == nil {
		c.at[st][name] = &copied{end: -1}
	}
	return c.at[st][name]
}

// bringUp has all controllers get what they lack of a stream.
func (c *copies) bringUp(st *stream) {
	others, _ := c.most()
	c.settleStream(st)
	for _, o := range others {
		c.mu.Lock()
		k := c.of(st, o.Name)
		begin := !k.busy
		k.busy = true
		c.mu.Unlock()
		if begin {
			go c.followStream(o, st, k)
		}
	}
}

// followStream sends a controller what it lacks of a stream, until that is nothing, or it does not answer.
func (c *copies) followStream(o Other, st *stream, k *copied) {
	for {
		notes, err := notesIn(filepath.Dir(st.path))
		if err != nil {
			notes = nil // they are sent with a later piece
		}
		at, p, end := wire.Place{Job: st.job, Stream: filepath.Base(st.path)}, wire.Piece{}, int64(0)
		c.mu.Lock()
		from, over, told := k.end, k.over, k.told
		c.mu.Unlock()
		st.mu.Lock()
		end = st.size
		lacks := from < end || st.ended && !over || told != names(notes)
		if st.gone || !lacks {
			k.rest(c)
			st.mu.Unlock()
			return
		}
		at.Offset, p.Begins = max(from, 0), st.begins
		if from >= 0 && from < end {
			p, err = st.pieceToCopy(from)
		}
		p.Notes = notes
		p.Begins, p.Over = st.begins, st.ended && from >= 0 && from+int64(len(p.Data))+p.Hole >= end
		st.mu.Unlock()
		if err == nil {
			err = c.sendPiece(o, st, k, at, p)
		}
		if err != nil || len(p.Data) > 0 {
			c.noteRoom(o.Name, err)
		}
		if err != nil {
			c.log.Debug("a controller does not keep a copy now", "controller", o.Name, "job", st.job, "cause", err)
			c.mu.Lock()
			k.busy = false
			c.mu.Unlock()
			return
		}
	}
}

// rest ends the bringing up of a copy. The caller holds the stream's lock, so that nothing is added meanwhile.
func (k *copied) rest(c *copies) {
	c.mu.Lock()
	k.busy = false
	c.mu.Unlock()
}

func (c *copies) sendPiece(o Other, st *stream, k *copied, at wire.Place, p wire.Piece) error {
	ctx, stop := context.WithTimeout(context.Background(), copyLimit)
	defer stop()
	end, err := o.Client.KeepPiece(ctx, c.term(), at, p)
	if err != nil {
		return err
	}
	c.mu.Lock()
	stuck := end < at.Offset && k.end == end
	k.told = names(p.Notes)
	k.end, k.over = end, p.Over && end >= at.Offset+int64(len(p.Data))+p.Hole
	c.mu.Unlock()
	c.settleStream(st)
	if stuck {
		return fmt.Errorf("it has %d bytes of the stream, and takes none", end)
	}
	return nil
}

// settleStream finds out how much of a stream most controllers have.
func (c *copies) settleStream(st *stream) {
	others, need := c.most()
	st.mu.Lock()
	defer st.mu.Unlock()
	ends, over := []int64{st.size}, 0
	if st.ended {
		over = 1
	}
	c.mu.Lock()
	for _, o := range others {
		if k := c.of(st, o.Name); o.Counts {
			ends = append(ends, min(k.end, st.size))
			if k.over {
				over++
			}
		}
	}
	c.mu.Unlock()
	slices.SortFunc(ends, func(a, b int64) int { return cmp.Compare(b, a) })
	if agreed, all := ends[need-1], over >= need; agreed > st.agreed || all && !st.agreedOver {
		st.agreed, st.agreedOver = max(agreed, st.agreed), all
		st.changed()
	}
}

// forget drops what is known of a stream's copies.
func (c *copies) forget(st *stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.at, st)
}

// pieceToCopy is the next part of a stream; the caller holds the lock.
func (st *stream) pieceToCopy(from int64) (p wire.Piece, err error) {
	if from >= st.most {
		return wire.Piece{Hole: st.size - from}, nil
	}
	p.Data, err = st.piece(from)
	return p, err
}

// names tells sets of notes apart.
func names(notes map[string]string) string {
	return strings.Join(slices.Sorted(maps.Keys(notes)), " ")
}

// notesLimit bounds the wait for notes at most controllers: the job's guests are suspended meanwhile.
const notesLimit = time.Second

// spreadNotes has other controllers get a job's notes, and waits until most have them. In the end they get them with the next piece.
func (s *spool) spreadNotes(job fleet.JobID) {
	if s.copies == nil {
		return
	}
	st, err := s.stream(job, fleet.Stdout)
	if err != nil {
		return // it is forgotten
	}
	notes, err := notesIn(filepath.Dir(st.path))
	if err != nil {
		return
	}
	for began := time.Now(); time.Since(began) < notesLimit && !s.copies.told(st, names(notes)); time.Sleep(time.Millisecond) {
		s.copies.bringUp(st)
	}
}

// told reports whether most controllers have the notes beside a stream.
func (c *copies) told(st *stream, notes string) bool {
	others, need := c.most()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range others {
		if o.Counts && c.of(st, o.Name).told == notes {
			need--
		}
	}
	return need <= 1
}

// safe is how much of a stream counts; the caller holds the lock.
func (st *stream) safe() int64 {
	if st.copies == nil {
		return st.size
	}
	return min(st.agreed, st.size)
}

// spread waits until most controllers have a stream to an end, or ctx ends, and returns how much counts. An
// error says that its end does not count yet.
func (st *stream) spread(ctx context.Context, end int64) (int64, error) {
	if st.copies == nil {
		return end, nil
	}
	st.copies.bringUp(st)
	ctx, stop := context.WithTimeout(ctx, copyLimit)
	defer stop()
	st.mu.Lock()
	defer st.mu.Unlock()
	for (st.safe() < end || st.ended && !st.agreedOver) && !st.gone && st.wait(ctx) {
	}
	if st.safe() < end {
		st.all.lacksCopies(st.job, st.copies.crowded())
	}
	if st.ended && !st.agreedOver && !st.gone {
		return 0, &wire.Error{Status: wire.NotLeading, Reason: "most controllers do not have the end of the stream yet: try again"}
	}
	return min(end, st.safe()), nil
}

// gather makes this controller's copies the longest ones, before it leads: it asks until most controllers
// have answered.
func (c *Controller) gather(ctx context.Context, jobs map[fleet.JobID]fleet.Job) error {
	if c.Others == nil {
		return nil
	}
	names := slices.Collect(maps.Keys(jobs))
	c.stash.mu.Lock()
	mine, err := c.stash.of(names)
	c.stash.mu.Unlock()
	if err != nil {
		return err
	}
	answers, err := c.askHeld(ctx, names)
	if err != nil {
		return err
	}
	best := map[fleet.JobID]wire.Held{}
	for _, h := range mine {
		best[h.Job] = h
	}
	for _, a := range answers {
		for _, h := range a.held {
			if err := c.takeOver(ctx, a.from, h, best); err != nil {
				return err
			}
		}
	}
	c.held = answers
	return c.stash.lead(c.Term())
}

// heldBy is what a controller keeps.
type heldBy struct {
	from Other
	held []wire.Held
}

// askHeld asks the others what they keep, until most have answered.
func (c *Controller) askHeld(ctx context.Context, jobs []fleet.JobID) (out []heldBy, err error) {
	for told := false; ; {
		others, need := c.spool.copies.most()
		got, votes := make(chan heldBy, len(others)), 1
		asking, stop := context.WithTimeout(ctx, copyLimit)
		for _, o := range others {
			go func() {
				held, err := o.Client.Held(asking, c.Term(), jobs)
				if err != nil {
					o.Name = ""
				}
				got <- heldBy{o, held}
			}()
		}
		out = nil
		extra := (<-chan time.Time)(nil)
		for n, late := 0, false; n < len(others) && !late; {
			select {
			case a := <-got:
				n++
				if a.from.Name != "" {
					out = append(out, a)
				}
				if a.from.Name != "" && a.from.Counts {
					votes++
				}
			case <-extra:
				late = true
			}
			if votes >= need && extra == nil {
				extra = time.After(gatherExtra)
			}
		}
		stop()
		if votes >= need {
			return out, nil
		}
		if !told {
			c.Log.Warn("waiting for most controllers to say what they keep of jobs' output")
			told = true
		}
		if err := pause.For(ctx, gatherEvery); err != nil {
			return nil, err
		}
	}
}

// takeOver fetches what another controller has more of a job's streams.
func (c *Controller) takeOver(ctx context.Context, from Other, h wire.Held, best map[fleet.JobID]wire.Held) error {
	mine, known := best[h.Job]
	if !known {
		mine = wire.Held{Job: h.Job, Ends: map[string]int64{}, Over: map[string]bool{}}
	}
	switch is, was := begunIn(h.Begins), begunIn(mine.Begins); {
	case is.Incarnation < was.Incarnation:
		return nil
	case is.Incarnation > was.Incarnation:
		for _, name := range outputs() {
			mine.Ends[name], mine.Over[name] = min(mine.Ends[name], is.end(name)), false
		}
		mine.Begins = h.Begins
	}
	for name, end := range h.Ends {
		at := wire.Place{Job: h.Job, Stream: name, Offset: mine.Ends[name]}
		for first := true; first || at.Offset < end; first = false {
			p := wire.Piece{Begins: h.Begins, Notes: h.Notes}
			if at.Offset < end {
				data, err := from.Client.Give(ctx, at)
				if err == nil && len(data) == 0 {
					err = errors.New("it gives nothing")
				}
				if err != nil {
					return fmt.Errorf("fetching %s of %s from controller %s: %w", name, h.Job, from.Name, err)
				}
				p.Data = data
			}
			p.Over = h.Over[name] && at.Offset+int64(len(p.Data)) >= end
			c.stash.mu.Lock()
			next, err := c.stash.keepPiece(at, p)
			c.stash.mu.Unlock()
			if err != nil {
				return err
			}
			at.Offset = next
		}
		mine.Ends[name], mine.Over[name] = at.Offset, mine.Over[name] || h.Over[name]
	}
	best[h.Job] = mine
	return nil
}

// countCopies begins with what gather has found at others.
func (c *Controller) countCopies() {
	for _, a := range c.held {
		for _, h := range a.held {
			for name, end := range h.Ends {
				st, err := c.spool.stream(h.Job, name)
				if err != nil {
					continue // it is forgotten
				}
				st.mu.Lock()
				err = st.findStored()
				same := begunIn(st.begins).Incarnation == begunIn(h.Begins).Incarnation
				st.mu.Unlock()
				if err == nil && same {
					c.spool.copies.mu.Lock()
					k := c.spool.copies.of(st, a.from.Name)
					k.end, k.over = end, h.Over[name]
					c.spool.copies.mu.Unlock()
				}
			}
		}
	}
	c.held = nil
	var active sync.WaitGroup
	for _, st := range c.spool.all() {
		c.spool.copies.bringUp(st)
		if j := c.loop.Index.Snapshot().Jobs[st.job]; j.State == fleet.JobEnded {
			continue
		}
		active.Go(func() { // agents are told how much counts, and may have forgotten what is before that
			st.mu.Lock()
			end := st.size
			st.mu.Unlock()
			_, _ = st.spread(context.Background(), end) // in the end it is tended
		})
	}
	active.Wait()
}
