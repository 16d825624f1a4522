package fleet

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// EndNoticeKind is who or what may say that a host goes away at a known time.
type EndNoticeKind string

// The kinds of notices. Package act/endnotice looks for them.
const (
	ShutdownNotice EndNoticeKind = "shutdown" // logind: the machine is switched off or rebooted, now or at a time
	SleepNotice    EndNoticeKind = "sleep"    // logind: the machine goes to sleep
	BatteryNotice  EndNoticeKind = "battery"  // its battery, or that of its UPS, is nearly empty
	AWSNotice      EndNoticeKind = "aws"      // Amazon takes a spot instance back
	GoogleNotice   EndNoticeKind = "google"   // Google takes a spot VM back, or ends it for maintenance
	AzureNotice    EndNoticeKind = "azure"    // Azure evicts a spot VM, or has it boot for maintenance
	SlurmNotice    EndNoticeKind = "slurm"    // Slurm preempts the job in which the agent runs, or its time is over
)

// EndNoticeKinds are all kinds.
var EndNoticeKinds = []EndNoticeKind{ShutdownNotice, SleepNotice, BatteryNotice, AWSNotice, GoogleNotice, AzureNotice, SlurmNotice}

// EndNotice says that a host goes away.
type EndNotice struct {
	Kind  EndNoticeKind `json:"kind"`
	ID    string        `json:"id"`              // tells it from a later one of its kind; the same as long as it stands
	Says  string        `json:"says"`            // what happens, for people, as the part of a sentence: "it is switched off"
	At    time.Time     `json:"at"`              // when that happens
	Since time.Time     `json:"since,omitzero"`  // when it was first seen
	Guess bool          `json:"guess,omitempty"` // At is a guess of a few minutes
}

// Key names the notice among all of its host.
func (n EndNotice) Key() string { return string(n.Kind) + " " + n.ID }

// EndNotices is what an agent says about notices.
type EndNotices struct {
	Watched []EndNoticeKind `json:"watched,omitempty"`
	Pending []EndNotice     `json:"pending,omitempty"` // that stand, the most urgent first
	Blind   []string        `json:"blind,omitempty"`   // what cannot be looked at here, for people
	SaidAt  time.Time       `json:"said_at,omitzero"`  // when this was reported, by the clock of the other times; the controller converts all to its own
}

// MostEndNotices is how many of a host count, and mostNoticeWords how long each of its texts may be.
const (
	MostEndNotices  = 16
	mostNoticeWords = 200
)

// By converts the times to another clock, as Owner.By does. It leaves out what is more than a host has to say.
func (n EndNotices) By(at time.Time) EndNotices {
	n.Pending = slices.Clone(n.Pending[:min(len(n.Pending), MostEndNotices)])
	ahead := time.Duration(0)
	if !n.SaidAt.IsZero() {
		ahead = at.Sub(n.SaidAt)
		n.SaidAt = at
	}
	for i := range n.Pending {
		p := &n.Pending[i]
		p.ID, p.Says = noticeWords(p.ID), noticeWords(p.Says)
		p.At = p.At.Add(ahead)
		if !p.Since.IsZero() {
			p.Since = p.Since.Add(ahead)
		}
	}
	return n
}

// Urgent is the notice of those that stand by which the host has to be empty first, without those that a person has waived.
func (n *EndNotices) Urgent(waived []string) (first EndNotice, any bool) {
	if n == nil {
		return first, false
	}
	for _, p := range n.Pending {
		if slices.Contains(waived, p.Key()) {
			continue
		}
		if !any || p.At.Before(first.At) {
			first, any = p, true
		}
	}
	return first, any
}

// Sentence says the notice in words, as the part of a sentence, at a time.
func (n EndNotice) Sentence(at time.Time) string {
	when := "now"
	if left := n.At.Sub(at).Round(time.Second); left > 0 {
		when = "in " + ShortDuration(left)
		if n.Guess {
			when = "in about " + ShortDuration(left)
		}
	}
	return fmt.Sprintf("%s %s", n.Says, when)
}

func noticeWords(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), mostNoticeWords)], "")
}
