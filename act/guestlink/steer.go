package guestlink

import (
	"context"
	"errors"

	"pagurus/fleet"
)

// The calls about what a guest's programs say and ask for.
const (
	callSaid   = "said"
	callAnswer = "answer"
	callAwait  = "await"
)

// answerBytes limits the answers in one call, which must fit a frame.
const answerBytes = 48 << 10

// saidCall asks for what is said, if that is not version Known.
type saidCall struct {
	Known uint64 `json:"known"`
}

// answerCall has answers for programs.
type answerCall struct {
	Answers []fleet.WishAnswer `json:"answers"`
}

// awaitCall says what waits for a mark.
type awaitCall struct {
	Awaited fleet.Awaited `json:"awaited"`
}

// Steered is a Server whose programs steer their own job.
type Steered interface {
	// Said returns what programs say and ask for, once that is another version than known.
	Said(ctx context.Context, known uint64) (fleet.Said, error)
	// Answer gives programs answers. Those that nobody waits for are dropped.
	Answer(context.Context, []fleet.WishAnswer) error
	// Await says what waits for a mark of the programs.
	Await(context.Context, fleet.Awaited) error
}

// Said waits until what the guest's programs say is another version than known, and returns it. A guest agent of an
// earlier version does not know it, which is an error.
func (c *Client) Said(ctx context.Context, known uint64) (fleet.Said, error) {
	r, err := c.do(ctx, callSaid, constant(saidCall{known}))
	if err == nil && r.Said == nil {
		err = errors.New("the guest agent did not say what programs say")
	}
	if err != nil {
		return fleet.Said{}, err
	}
	return r.Said.Bounded(), nil
}

// Answer gives programs answers to what they asked for.
func (c *Client) Answer(ctx context.Context, answers []fleet.WishAnswer) error {
	for len(answers) > 0 {
		n, bytes := 0, 0
		var part []fleet.WishAnswer
		for ; n < len(answers); n++ {
			a := answers[n].Bounded()
			if bytes += 6 * length(a); n > 0 && bytes > answerBytes { // JSON may have six bytes for one
				break
			}
			part = append(part, a)
		}
		answers = answers[n:]
		if _, err := c.do(ctx, callAnswer, constant(answerCall{part})); err != nil {
			return err
		}
	}
	return nil
}

// Await tells the guest what waits for a mark of its programs. A guest agent of an earlier version does not know it, which
// is an error.
func (c *Client) Await(ctx context.Context, a fleet.Awaited) error {
	_, err := c.do(ctx, callAwait, constant(awaitCall{a.Bounded()}))
	return err
}

// length is how long an answer's texts are.
func length(a fleet.WishAnswer) int {
	n := len(a.Text)
	for _, r := range a.Rows {
		n += len(r) + 1
	}
	return n
}

// steerCall passes a call about programs to the server.
func (l *link) steerCall(ctx context.Context, r request) (res result, err error) {
	server, can := l.server.(Steered)
	if !can {
		return res, errors.New("the guest agent does not tell what programs say")
	}
	if r.Call == callSaid {
		var known saidCall
		if err := body(r, &known); err != nil {
			return res, err
		}
		said, err := server.Said(ctx, known.Known)
		res.Said = &said
		return res, err
	}
	if r.Call == callAwait {
		var waits awaitCall
		if err := body(r, &waits); err != nil {
			return res, err
		}
		return res, server.Await(ctx, waits.Awaited.Bounded())
	}
	var told answerCall
	if err := body(r, &told); err != nil {
		return res, err
	}
	return res, server.Answer(ctx, told.Answers)
}
