package agent

import (
	"context"
	"time"

	"pagurus/fleet"
	"pagurus/internal/pause"
)

// steered is a guest agent whose programs steer their own job.
type steered interface {
	// Said waits until what programs say is another version than known, and returns it.
	Said(ctx context.Context, known uint64) (fleet.Said, error)
	// Answer gives programs answers.
	Answer(context.Context, []fleet.WishAnswer) error
	// Await says what waits for a mark of the programs. One that is older than this call gives an error.
	Await(context.Context, fleet.Awaited) error
}

const (
	// saidEvery is how often at most a guest is asked what its programs say.
	saidEvery = 100 * time.Millisecond
	// saidAgain is how soon one that does not answer is asked again: it may be older than the question.
	saidAgain = 30 * time.Second
	// answerLimit is for giving a guest answers, for which its programs wait no longer.
	answerLimit = fleet.WishLimit
)

// heardSaid is what a guest's programs said last, and when.
type heardSaid struct {
	said fleet.Said
	at   time.Time
}

// listenTo keeps what a guest's programs say, as long as the guest is watched here.
func (a *Agent) listenTo(ctx context.Context, w *taskRun) {
	if w.link == nil {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			a.Log.Error("panic while listening to a guest's programs", "guest", w.slot.guest, "panic", p)
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if w.slot.listener == w {
			w.slot.heard, w.slot.listener = nil, nil
		}
	}()
	a.mu.Lock()
	if ctx.Err() == nil { // else the next one listens already
		w.slot.listener = w
	}
	a.mu.Unlock()
	known, failed := uint64(0), 0
	var before fleet.Said
	for ctx.Err() == nil {
		in, can := a.guestAgentOf(w.slot, w.link).(steered)
		if !can {
			return
		}
		said, err := in.Said(ctx, known)
		if err != nil {
			if failed++; failed < 4 { // it may be busy, or on its way
				_ = pause.For(ctx, time.Second)
			} else {
				_ = pause.For(ctx, saidAgain)
			}
			continue
		}
		known, failed = said.Version, 0
		a.mu.Lock()
		if w.slot.listener == w {
			w.slot.heard = &heardSaid{said, time.Now()}
			a.urgent = a.urgent || said.Urgent(before, time.Now().Before(w.slot.awaited))
		}
		a.mu.Unlock()
		before = said
		_ = pause.For(ctx, saidEvery)
	}
}

// saidLocked is what the programs of a guest say now; nil: nothing.
func (s *guestSlot) saidLocked(now time.Time) *fleet.Said {
	if s == nil || s.heard == nil || s.heard.said.Silent() {
		return nil
	}
	out := s.heard.said.Later(now.Sub(s.heard.at))
	return &out
}

// hasNews reports, once, whether a guest's programs have said something.
func (a *Agent) hasNews() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	was := a.urgent
	a.urgent = false
	return was
}

// answerPrograms gives a guest's programs answers of the controller, and says what waits for their marks. Those that do not arrive are given again when
// they are asked for again.
func (a *Agent) answerPrograms(ctx context.Context, to fleet.WishAnswers) {
	defer func() {
		if p := recover(); p != nil {
			a.Log.Error("panic while answering a guest's programs", "guest", to.Guest, "panic", p)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	if to.Awaited != nil {
		a.mu.Lock()
		if s := a.slots[to.Guest]; s != nil {
			s.awaited = time.Time{}
			if to.Awaited.For != "" {
				s.awaited = time.Now().Add(fleet.AwaitedKept)
			}
		}
		a.mu.Unlock()
	}
	in, err := a.reach(to.Guest)
	if err != nil {
		return // it has left, and asks again from where it is
	}
	s, can := in.(steered)
	if !can {
		return
	}
	if to.Awaited != nil {
		_ = s.Await(ctx, *to.Awaited)
	}
	if len(to.Answers) > 0 {
		_ = s.Answer(ctx, to.Answers)
	}
}
