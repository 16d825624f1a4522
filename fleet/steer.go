package fleet

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
)

// WishVerb is what a program asks of its own job.
type WishVerb string

// What programs ask for.
const (
	WishWhere      WishVerb = "where"      // where its guest is, and the job's others
	WishDistances  WishVerb = "distances"  // how far the job's others are
	WishCost       WishVerb = "cost"       // what a move would cost now
	WishMove       WishVerb = "move"       // Aim
	WishCheckpoint WishVerb = "checkpoint" // of its job
	WishGrow       WishVerb = "grow"       // Count or Ranks, Within: more guests of its job
)

// Aim is where a program wants to be moved.
type Aim string

// The aims.
const (
	AimBetter Aim = "better" // to a host that is less busy
	AimAway   Aim = "away"   // to any other host
	AimRank   Aim = "rank"   // to the host where Rank is
)

// Wish is what a program in a guest asks of its own job, in the job's own authority. The guest agent keeps
// it until it is answered, also while the guest moves.
type Wish struct {
	ID    uint64   `json:"id"` // by chance, so that those of guests that begin again differ
	Verb  WishVerb `json:"verb"`
	Whole bool     `json:"whole,omitempty"` // of WishCost and WishMove: the whole job, not only its guest
	Aim   Aim      `json:"aim,omitempty"`
	Rank  int      `json:"rank,omitempty"` // of AimRank

	Count  int           `json:"count,omitempty"`     // of WishGrow: guests
	Ranks  int           `json:"ranks,omitempty"`     // of WishGrow, in the place of Count: as many guests as these need
	Within time.Duration `json:"within_ns,omitempty"` // of WishGrow: how long they are waited for
}

// WishRequest is the ID of the request that a wish of a guest's program becomes: the same however often it is asked for.
func WishRequest(g GuestID, w Wish) RequestID { return RequestID(fmt.Sprintf("%s/%x", g, w.ID)) }

// Patience is how long a program waits for the answer to a wish.
func (w Wish) Patience() time.Duration { return WishLimit + w.Within }

// Sound reports whether a wish is one that there is.
func (w Wish) Sound() bool {
	switch w.Verb {
	case WishWhere, WishDistances, WishCost, WishCheckpoint:
		return w.Aim == "" && w.Within == 0
	case WishMove:
		if w.Within != 0 {
			return false
		}
		return w.Aim == AimBetter || w.Aim == AimAway || w.Aim == AimRank && w.Rank >= 0
	case WishGrow:
		return w.Aim == "" && w.Within > 0 && w.Within <= MostGrowthWait &&
			(w.Count > 0 && w.Count <= MostGrowth && w.Ranks == 0 || w.Ranks > 0 && w.Ranks <= MostRanks && w.Count == 0)
	}
	return false
}

// WishCode is the kind of an answer to a program. pagurus.h has the same numbers.
type WishCode int

// The codes. 1 is for programs that run without Pagurus.
const (
	WishDone    WishCode = 0
	WishInvalid WishCode = 2
	WishRefused WishCode = 3
	WishBusy    WishCode = 4 // asked too often
	WishLate    WishCode = 5 // no answer came in time
)

// WishAnswer is the answer to a Wish.
type WishAnswer struct {
	ID   uint64   `json:"id"`
	Code WishCode `json:"code"`
	Text string   `json:"text,omitempty"` // a sentence for people
	Rows []string `json:"rows,omitempty"` // "KEY VALUE", for programs
}

// WishAnswers are answers for one guest.
type WishAnswers struct {
	Guest   GuestID      `json:"guest"`
	Answers []WishAnswer `json:"answers"`
	Awaited *Awaited     `json:"awaited,omitempty"` // what waits for a mark of the guest's programs; nil: nothing is said of that
}

// Awaited is the wait of a move for a mark of a guest's programs, which then give back memory that they do not need.
type Awaited struct {
	For string `json:"for"` // another text for each wait; empty: nothing waits
}

// Marks are what a guest's programs say of when a move is cheap. The times count back or on from At, which each
// that passes marks on sets by its own clock.
type Marks struct {
	At       time.Time     `json:"at,omitzero"`
	Cheaps   uint64        `json:"cheaps,omitempty"`       // how many cheap moments were marked so far
	CheapAgo time.Duration `json:"cheap_ago_ns,omitempty"` // when the last one was
	NotFor   time.Duration `json:"not_for_ns,omitempty"`   // for how long moves should not begin
	Cheap    bool          `json:"cheap,omitempty"`        // its programs say when their cheap moments are over, by having moves wait, and none has said it of the last one

	Scratch int64  `json:"scratch_bytes,omitempty"` // memory that programs do not need at their cheap moments
	Held    int64  `json:"held_bytes,omitempty"`    // of it, that was not given back for the wait For
	For     string `json:"for,omitempty"`           // the wait of a move (Awaited) that the guest knows of; empty: none
}

// Remark is what a program says of its job's health.
type Remark struct {
	Level string        `json:"level"` // one of RemarkLevels
	Text  string        `json:"text"`
	Ago   time.Duration `json:"ago_ns"`
}

// Ill is the gravest level of remarks.
const Ill = "ill"

// RemarkLevels are how grave remarks are.
var RemarkLevels = []string{"note", "warning", Ill}

// Said is what a guest's programs say and ask for.
type Said struct {
	Version uint64  `json:"version"` // another one for each change
	Wishes  []Wish  `json:"wishes,omitempty"`
	Marks   Marks   `json:"marks,omitzero"`
	Remark  *Remark `json:"remark,omitempty"`
}

// What programs can say at most.
const (
	MostWishes  = 8               // of one guest that wait for answers
	MostNotNow  = time.Minute     // that moves wait for one mark
	RemarkBytes = 200             // of a remark
	WishLimit   = 8 * time.Second // that a program waits for an answer
	AwaitedKept = time.Minute     // that a guest knows that a mark is awaited, if it is not told again
	mostScratch = 1 << 50         // bytes
	awaitedText = 100             // bytes of Awaited.For
	wishBytes   = 400             // of a sentence to a program
	rowsBytes   = 6 << 10         // of all rows of an answer
)

// Bounded is what was said, cut to what can be said.
func (s Said) Bounded() Said {
	wishes := s.Wishes[:min(len(s.Wishes), MostWishes)]
	s.Wishes = nil
	for _, w := range wishes {
		if w.Sound() {
			s.Wishes = append(s.Wishes, w)
		}
	}
	s.Marks.CheapAgo = max(0, s.Marks.CheapAgo)
	s.Marks.NotFor = min(max(0, s.Marks.NotFor), MostNotNow)
	s.Marks.Scratch = min(max(0, s.Marks.Scratch), mostScratch)
	s.Marks.Held = min(max(0, s.Marks.Held), s.Marks.Scratch)
	s.Marks.For = OneLine(s.Marks.For, awaitedText)
	if r := s.Remark; r != nil {
		out := *r
		out.Text = OneLine(out.Text, RemarkBytes)
		out.Ago = max(0, out.Ago)
		if out.Level != RemarkLevels[1] && out.Level != RemarkLevels[2] {
			out.Level = RemarkLevels[0]
		}
		s.Remark = &out
	}
	return s
}

// By is the marks by another clock, which says at now.
func (m Marks) By(at time.Time) Marks {
	m.At = at
	return m
}

// Later is what was said, some time after.
func (s Said) Later(d time.Duration) Said {
	d = max(0, d)
	s.Marks.CheapAgo += d
	s.Marks.NotFor = max(0, s.Marks.NotFor-d)
	if s.Remark != nil {
		r := *s.Remark
		r.Ago += d
		s.Remark = &r
	}
	return s
}

// Urgent reports whether what is said now has to be told at once, and not with the next second's facts: if there are new wishes, or
// marks are awaited.
func (s Said) Urgent(before Said, awaited bool) bool {
	if awaited && s.Marks != before.Marks {
		return true
	}
	return slices.ContainsFunc(s.Wishes, func(w Wish) bool { return !slices.Contains(before.Wishes, w) })
}

// Silent reports whether nothing was said.
func (s Said) Silent() bool {
	return len(s.Wishes) == 0 && s.Marks.Cheaps == 0 && s.Marks.NotFor == 0 && s.Marks.Scratch == 0 && s.Remark == nil
}

// Bounded is what waits, cut to what a guest is told.
func (a Awaited) Bounded() Awaited {
	a.For = OneLine(a.For, awaitedText)
	return a
}

// Bounded is an answer, cut to what a program can be told.
func (a WishAnswer) Bounded() WishAnswer {
	a.Text = OneLine(a.Text, wishBytes)
	rows, bytes := a.Rows, 0
	a.Rows = nil
	for _, r := range rows {
		r = OneLine(r, wishBytes)
		if bytes += len(r) + 1; bytes > rowsBytes {
			break
		}
		a.Rows = append(a.Rows, r)
	}
	return a
}

// OneLine is a text as one line of at most so many bytes, without what a terminal would obey.
func OneLine(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' || r == unicode.ReplacementChar {
			return ' '
		}
		return r
	}, text)
	for len(text) > most {
		text = strings.ToValidUTF8(text[:most], "")
	}
	return text
}
