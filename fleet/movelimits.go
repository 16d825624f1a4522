package fleet

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Mode is how a guest's memory goes from one host to the other.
type Mode string

// The modes. The empty one leaves the choice to the controller.
const (
	PreCopy     Mode = "pre-copy"      // copied while the guest runs, until little is left
	StopAndCopy Mode = "stop-and-copy" // the guest is suspended while all of it is sent
	PostCopy    Mode = "post-copy"     // copied once, then the guest runs at the target while the rest follows; there is no way back
)

// CachePolicy says what becomes of a guest's page cache in a move.
type CachePolicy string

// The policies. The empty one drops it where that pays.
const (
	DropCache CachePolicy = "drop" // the guest drops it before the copy
	SendCache CachePolicy = "send" // it is copied like all other memory
)

// Compression says whether memory is sent compressed.
type Compression string

// The choices. The empty one, of a Move only, leaves the choice to the controller.
const (
	CompressOn  Compression = "on"
	CompressOff Compression = "off"
)

// Limits bounds a move and each of its copies. The zero value of a field means
// its default.
type Limits struct {
	Mode           Mode          `json:"mode,omitempty"`
	Downtime       time.Duration `json:"downtime_ns"`           // converged when the rest is predicted to take no longer
	Lenient        bool          `json:"lenient,omitempty"`     // of a Task: a default, which may be exceeded somewhat if more rounds bring no less
	Rounds         int           `json:"rounds"`                // give up after this many rounds
	BytesPerSecond int64         `json:"bytes_per_second"`      // ceiling on the link: of a Move for all it sends from one host, of a Task for its copy; 0 is none
	Deadline       time.Duration `json:"deadline_ns,omitempty"` // of a Move: a guest that is not ready so long after Begun stays; 0: only the limit of phase ready
	PageCache      CachePolicy   `json:"page_cache,omitempty"`
	Compress       Compression   `json:"compress,omitempty"`
	Preempt        bool          `json:"preempt,omitempty"`    // of a Task by post-copy: requested pages have a connection of their own
	Slow           bool          `json:"slow,omitempty"`       // of a Task by pre-copy: the guest may be slowed, since it is not expected to converge otherwise
	AwaitGang      bool          `json:"await_gang,omitempty"` // of a Task: after the copy the guest waits for its gang, or for a mark, so QEMU must not suspend it by itself
}

// LimitFlag is a limit that a person may give a move: its flag and its texts, for the
// command line, the planner and `move show`.
type LimitFlag struct {
	Flag, Help string
	About      string // a sentence or more for the long help of commands whose moves send memory
	// Field is where Limits keeps it: *time.Duration, *int64 (bytes a second), or
	// *string, one of Choices.
	Field   func(*Limits) any
	Choices []string // besides auto, the empty one: the controller chooses
	Drain   bool     // drain takes it too, for the moves that empty the host

	Least    time.Duration     // of a duration: the command line refuses less
	LeastWhy string            // completes "--flag 1ns ..."
	Refusal  string            // with %q, %d or %s for the refused value; of a choice also with %s for Choices
	Says     string            // for `move show`, with %s for the value
	SaysOf   map[string]string // the same of each choice
}

// LimitFlags are all limits. A new one is a field of Limits and an entry here. The planner,
// the agent or a driver obeys it.
var LimitFlags = []LimitFlag{
	{
		Flag:    ModeFlag,
		Help:    "auto, pre-copy (the guest runs while it is copied), post-copy (it runs at the target before all memory has arrived) or stop-and-copy (it is suspended during the copy)",
		Field:   func(l *Limits) any { return (*string)(&l.Mode) },
		Choices: []string{string(PreCopy), string(PostCopy), string(StopAndCopy)},
		Refusal: "there is no mode %q; use %s",
		SaysOf:  map[string]string{string(PreCopy): string(PreCopy), string(PostCopy): string(PostCopy), string(StopAndCopy): string(StopAndCopy)},
	},
	{
		Flag:    BandwidthFlag,
		Help:    "send at most this many bytes a second from one host, like 200M (default: no limit)",
		Field:   func(l *Limits) any { return &l.BytesPerSecond },
		Drain:   true,
		Refusal: "no guest can be sent at %d bytes a second; give --" + BandwidthFlag + " something like 200M",
		Says:    "at most %s",
	},
	{
		Flag:     MaxDowntimeFlag,
		Help:     "the maximum downtime: switch when it would be no longer (default 50ms, and up to 250ms where more rounds do not help)",
		Field:    func(l *Limits) any { return &l.Downtime },
		Least:    leastDowntime,
		LeastWhy: fmt.Sprintf("is too short for every guest: give %s or more", leastDowntime),
		Refusal:  "the maximum downtime cannot be %s; give --" + MaxDowntimeFlag + " something like 50ms",
		Says:     "a downtime of at most %s",
	},
	{
		Flag:     DeadlineFlag,
		Help:     "guests that are not ready to switch by then stay (default: 5m after the first is ready)",
		Field:    func(l *Limits) any { return &l.Deadline },
		Least:    1,
		LeastWhy: "is over before the move begins: give something like 30s",
		Refusal:  "--" + DeadlineFlag + " must be positive, and it is %s; give something like 30s",
		Says:     "ready within %s",
	},
	{
		Flag:  PageCacheFlag,
		Help:  "auto, drop (the guest drops what it can read from files again) or send (send all of it)",
		Field: func(l *Limits) any { return (*string)(&l.PageCache) },
		About: `A guest drops its page cache (what it can read from files again) before the copy, if
that is much of its memory and the job does not read it repeatedly;
--` + PageCacheFlag + ` drop or send overrides this.`,
		Choices: []string{string(DropCache), string(SendCache)},
		Drain:   true,
		Refusal: "unknown choice %q for the page cache; use %s, or leave it out",
		SaysOf:  map[string]string{string(DropCache): "page cache dropped", string(SendCache): "page cache sent"},
	},
	{
		Flag:  CompressFlag,
		Help:  "auto (where the link is slow), on or off",
		Field: func(l *Limits) any { return (*string)(&l.Compress) },
		About: `Memory is compressed where the network, or --` + BandwidthFlag + `, is slow;
--` + CompressFlag + ` on or off overrides this. Guests that move together are never compressed.`,
		Choices: []string{string(CompressOn), string(CompressOff)},
		Drain:   true,
		Refusal: "unknown choice %q for compression; use %s, or leave it out",
		SaysOf:  map[string]string{string(CompressOn): "compressed", string(CompressOff): "not compressed"},
	},
}

// leastRate is less than any link carries. Who writes 200 may mean 200M.
const leastRate = 1 << 10

// leastDowntime is the shortest downtime limit that QEMU takes.
const leastDowntime = time.Millisecond

// Refused says what is wrong with the limit in l by itself; empty: nothing.
func (f *LimitFlag) Refused(l *Limits) string {
	switch v := f.Field(l).(type) {
	case *string:
		if *v != "" && !slices.Contains(f.Choices, *v) {
			return fmt.Sprintf(f.Refusal, *v, Enumerate(f.Choices, "or"))
		}
	case *int64:
		if *v != 0 && *v < leastRate {
			return fmt.Sprintf(f.Refusal, *v)
		}
	case *time.Duration:
		if *v < 0 {
			return fmt.Sprintf(f.Refusal, *v)
		}
	}
	return ""
}

// Refused says what is wrong with the limits of a move; empty: nothing.
func (l Limits) Refused() string {
	for i := range LimitFlags {
		if reason := LimitFlags[i].Refused(&l); reason != "" {
			return reason
		}
	}
	switch {
	case l.Rounds < 0:
		return fmt.Sprintf("a copy cannot have %d rounds; leave the number out", l.Rounds)
	case l.Mode == StopAndCopy && l.Downtime > 0:
		return fmt.Sprintf("a guest that is moved by %s is suspended for the whole copy; leave --"+MaxDowntimeFlag+" out", l.Mode)
	case l.Compress == CompressOn && l.Mode == PostCopy:
		return fmt.Sprintf("compression does not work with %s; leave one of the two out", l.Mode)
	}
	return ""
}

// ForDrain returns the limits in l that also hold for the moves of a drain.
func (l Limits) ForDrain() Limits {
	var out Limits
	for i := range LimitFlags {
		f := &LimitFlags[i]
		if !f.Drain {
			continue
		}
		switch to := f.Field(&out).(type) {
		case *string:
			*to = *f.Field(&l).(*string)
		case *int64:
			*to = *f.Field(&l).(*int64)
		case *time.Duration:
			*to = *f.Field(&l).(*time.Duration)
		}
	}
	return out
}

// Enumerate joins words with commas, and the last two with a conjunction.
func Enumerate(words []string, conjunction string) string {
	n := len(words) - 1
	if n < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:n], ", ") + " " + conjunction + " " + words[n]
}
