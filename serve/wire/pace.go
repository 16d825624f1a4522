package wire

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"pagurus/decide/access"
)

// How often somebody may call, on average and at once. A user's page or script needs a few calls a second; many may begin at the same
// time, and many hosts or people may have one address. Bytes of streams, images and checkpoints do not count: who asks for much of these is held up by
// the connections that they may have.
const (
	callsASecond = 100
	callsAtOnce  = 2000

	// An agent calls when it begins, and when its connection broke. What it says then is looked through as a whole.
	agentsASecond = 2
	agentsAtOnce  = 60

	strangersASecond = 200
	strangersAtOnce  = 2000

	// refusalHeld is for how long somebody waits for the answer that they have asked for too much. Who asks at once again and again takes little time of the
	// controller's so, and who does as the answer says loses nothing.
	refusalHeld = time.Second

	againHeader  = "Retry-After"
	againLongest = time.Minute // that a client asks again by itself
)

// later is an error that passes.
type later struct {
	of    *Error
	after time.Duration
}

func (l *later) Error() string { return l.of.Error() }
func (l *later) Unwrap() error { return l.of }

// AskAgain refuses somebody who asks for too much at the moment. after that time it may be done; a Client asks again by itself.
func AskAgain(after time.Duration, reason string) error {
	return &later{&Error{http.StatusTooManyRequests, reason}, after}
}

// inSeconds is a time as the header has it.
func inSeconds(after time.Duration) string {
	return strconv.Itoa(max(1, int(math.Ceil(after.Seconds()))))
}

// askAgainAfter is when a client may ask again by an answer; 0: it does not say.
func askAgainAfter(h http.Header) time.Duration {
	n, err := strconv.Atoi(h.Get(againHeader))
	if err != nil || n < 0 {
		return 0
	}
	return time.Duration(n) * time.Second
}

// fewBuckets are kept without a look at whether they are full.
const fewBuckets = 1024

// Buckets are token buckets, one for each name; none bound nobody. A full one is forgotten, so that what is kept does not grow with all who ever came.
type Buckets struct {
	each  rate.Limit
	burst int

	mu   sync.Mutex
	by   map[string]*rate.Limiter
	most int // then full ones are looked for
}

// NewBuckets makes buckets that get so many tokens a second, and hold so many at the most.
func NewBuckets(aSecond float64, burst int) *Buckets {
	return &Buckets{each: rate.Limit(aSecond), burst: burst, by: map[string]*rate.Limiter{}, most: fewBuckets}
}

// TakeTokens takes tokens of somebody's. If there are not enough it takes none, and says after how long there are. Whoever needs more
// than a bucket holds gets them when it is full.
func (b *Buckets) TakeTokens(who string, tokens int, at time.Time) (after time.Duration) {
	return b.reserve(who, tokens, at, func(after time.Duration) bool { return after == 0 })
}

// WaitFor says after how long TakeTokens would take tokens of somebody's, and takes none. Where there are no buckets it is at once.
func (b *Buckets) WaitFor(who string, tokens int, at time.Time) (after time.Duration) {
	return b.reserve(who, tokens, at, func(time.Duration) bool { return false })
}

// Taken is how much everybody has taken that is not there again.
func (b *Buckets) Taken(at time.Time) map[string]int {
	out := map[string]int{}
	if b == nil {
		return out
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for who, l := range b.by {
		if n := int(math.Ceil(float64(b.burst) - l.TokensAt(at))); n > 0 {
			out[who] = n
		}
	}
	return out
}

// reserve takes tokens if taken says so, given after how long there are enough.
func (b *Buckets) reserve(who string, tokens int, at time.Time, taken func(after time.Duration) bool) (after time.Duration) {
	if b == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.by[who]
	if l == nil {
		b.tidy(at)
		l = rate.NewLimiter(b.each, b.burst)
		b.by[who] = l
	}
	r := l.ReserveN(at, min(tokens, b.burst))
	if after = r.DelayFrom(at); !taken(after) {
		r.CancelAt(at)
	}
	return after
}

// tidy forgets full buckets, when there are twice as many as it left.
func (b *Buckets) tidy(at time.Time) {
	if len(b.by) < b.most {
		return
	}
	for who, l := range b.by {
		if l.TokensAt(at) >= float64(b.burst) {
			delete(b.by, who)
		}
	}
	b.most = max(fewBuckets, 2*len(b.by))
}

// paces are how often everybody calls, and how long the next answer waits for its place.
type paces struct {
	known, agents, strangers, refusals *Buckets
	answers, held                      time.Duration
}

func newPaces() *paces {
	return &paces{
		known: NewBuckets(callsASecond, callsAtOnce), agents: NewBuckets(agentsASecond, agentsAtOnce), strangers: NewBuckets(strangersASecond, strangersAtOnce),
		refusals: NewBuckets(1/refusalsEvery.Seconds(), refusalsAtOnce), answers: answersWait, held: refusalHeld,
	}
}

// holdRefusal waits before somebody is told to ask again: for as long as the header says at the least, whatever is missing.
func (p *paces) holdRefusal(ctx context.Context) {
	select {
	case <-time.After(p.held):
	case <-ctx.Done():
	}
}

// name is by whom a caller's calls are counted.
func (id Peer) name() string {
	if id.Host != "" {
		return "host " + string(id.Host)
	}
	return fmt.Sprintf("uid %d", id.UID)
}

// paced says that somebody has made too many calls; nil: not yet. Root on this machine is not counted: all of a lab is root's.
func (s *server) paced(id Peer, what access.Call) error {
	switch {
	case what == access.PassStream, what == access.CopyParts, what == access.HandParts, what == access.ReadImage:
		return nil
	case id.Host == "" && id.UID == 0 && id.From == "":
		return nil
	}
	if what == access.Attach {
		if after := s.paces.agents.TakeTokens(id.name(), 1, time.Now()); after > 0 {
			return AskAgain(after, fmt.Sprintf("the agent of %s comes more than %d times a second: end all agents of that host but one; ask again in %s s", id.Host, agentsASecond, inSeconds(after)))
		}
		return nil
	}
	if after := s.paces.known.TakeTokens(id.name(), 1, time.Now()); after > 0 {
		return AskAgain(after, fmt.Sprintf("you call the controller more than %d times a second: ask for several things at once, or watch what changes; ask again in %s s", callsASecond, inSeconds(after)))
	}
	return nil
}

// strange says that too many calls without a login come from an address; nil: not yet.
func (s *server) strange(r *http.Request) error {
	if after := s.paces.strangers.TakeTokens(callersAt(r.RemoteAddr), 1, time.Now()); after > 0 {
		return AskAgain(after, fmt.Sprintf("too many calls without a login come from your address: ask again in %s s", inSeconds(after)))
	}
	return nil
}
