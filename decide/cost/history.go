package cost

import (
	"fmt"
	"slices"

	"pagurus/fleet"
)

// Fit learns from past moves, most from the most similar ones.
func Fit(past []fleet.Migration, about Subject) Model {
	o := Learn(past)
	return o.fit(about).ofGuest(o.guests[about.Guest], about)
}

// History is past moves prepared for repeated learning.
type History struct {
	past    []*outcome
	crowds  map[crowd]*counts
	fits    map[Subject]Model
	grounds map[Subject]ground
	guests  map[fleet.GuestID][]*outcome // each guest's, latest first
	courses []course                     // buffer for the courses of the current fit, by place
	odd     bool                         // some had no prediction, and count for any kind
}

// crowd is moves of one kind, for owners or for other reasons.
type crowd struct {
	kind     fleet.Kind
	forOwner bool
}

// counts is the number of moves in a crowd, by job and by pair of hosts.
type counts struct {
	all   int
	jobs  map[fleet.JobID]int
	links map[[2]fleet.HostID]int
}

// Learn prepares past moves.
func Learn(past []fleet.Migration) *History {
	var all []*outcome
	for _, m := range past {
		if o := outcomeOf(m); o != nil {
			all = append(all, o)
		}
	}
	return newHistory(all)
}

// Next returns the history of the moves with these names. It reuses those in o, because
// ended moves do not change. o must not be used afterwards; it may be nil.
func (o *History) Next(past []fleet.MigrationID, of func(fleet.MigrationID) fleet.Migration) *History {
	known := make(map[fleet.MigrationID]*outcome, len(past))
	if o != nil {
		for _, p := range o.past {
			known[p.m.ID] = p
		}
	}
	all := make([]*outcome, 0, len(past))
	for _, id := range past {
		p := known[id]
		if p == nil {
			p = outcomeOf(of(id))
		}
		if p != nil {
			all = append(all, p)
		}
	}
	return newHistory(all)
}

func newHistory(past []*outcome) *History {
	o := &History{past: latest(past), crowds: map[crowd]*counts{}, fits: map[Subject]Model{}, grounds: map[Subject]ground{}, guests: map[fleet.GuestID][]*outcome{}}
	o.courses = make([]course, len(o.past))
	for i, p := range o.past {
		p.place = i
		o.guests[p.m.Guest] = append(o.guests[p.m.Guest], p)
		if p.m.Predicted == nil {
			o.odd = true
			continue
		}
		c := o.crowd(p.m.Predicted.Kind, p.m.Predicted.ForOwner)
		c.all++
		c.jobs[p.m.Job]++
		c.links[[2]fleet.HostID{p.m.From, p.m.To}]++
	}
	return o
}

func (o *History) crowd(kind fleet.Kind, forOwner bool) *counts {
	c := o.crowds[crowd{kind, forOwner}]
	if c == nil {
		c = &counts{jobs: make(map[fleet.JobID]int, len(o.past)), links: make(map[[2]fleet.HostID]int, len(o.past))}
		o.crowds[crowd{kind, forOwner}] = c
	}
	return c
}

// Fit is like the function Fit, but reuses results for equal subjects.
func (o *History) Fit(about Subject) Model {
	guest := o.guests[about.Guest]
	about.Guest = ""
	if !o.odd {
		about = o.known(about)
	}
	m, known := o.fits[about]
	if !known {
		m = o.fit(about)
		o.fits[about] = m
	}
	return m.ofGuest(guest, about)
}

// known removes the parts of a subject that too few past moves share.
func (o *History) known(about Subject) Subject {
	of, others := o.crowd(about.Kind, about.ForOwner), &counts{}
	if of.all < fewOwned {
		others = o.crowd(about.Kind, !about.ForOwner)
	}
	link := [2]fleet.HostID{about.From, about.To}
	if of.links[link]+others.links[link] < fewLinks {
		about.From, about.To = "", ""
	}
	if n := of.jobs[about.Job] + others.jobs[about.Job]; n < fewLinks && n < of.all+others.all {
		about.Job = ""
	}
	return about
}

// fit learns from all similar moves.
func (o *History) fit(about Subject) Model {
	m := o.learn(about)
	if about.ForOwner && !slices.ContainsFunc(o.past, func(p *outcome) bool {
		return p.m.Predicted != nil && p.m.Predicted.Kind == about.Kind && p.m.Predicted.ForOwner
	}) {
		m.bandwidth = m.known().bandwidth * besideOwner
	}
	return m
}

// ground is what is learnt for all jobs.
type ground struct {
	all, link []*outcome // of the kind; between the two hosts
	jobs      int        // number of all jobs
	model     Model
}

func (o *History) ground(about Subject) ground {
	about.Job = ""
	g, known := o.grounds[about]
	if known {
		return g
	}
	g.all = o.past
	if other := func(o *outcome) bool { return o.m.Predicted != nil && o.m.Predicted.Kind != about.Kind }; slices.ContainsFunc(g.all, other) {
		g.all = slices.DeleteFunc(slices.Clone(g.all), other)
	}
	g.all = some(fewOwned, g.all, func(o *outcome) bool { return o.m.Predicted != nil && o.m.Predicted.ForOwner == about.ForOwner })
	g.link = some(fewLinks, g.all, func(o *outcome) bool { return o.m.From == about.From && o.m.To == about.To })
	jobs := make(map[fleet.JobID]bool, len(g.all))
	for _, p := range g.all {
		jobs[p.m.Job] = true
	}
	g.jobs = len(jobs)
	g.model = Model{kind: about.Kind, bandwidth: bandwidth(g.link, g.all), slack: slack(g.link), overrun: overrun(g.link), overhead: overhead(g.link)}
	o.grounds[about] = g
	return g
}

// learn is fit for moves of any reason.
func (o *History) learn(about Subject) Model {
	g := o.ground(about)
	m := g.model
	own := only(g.all, func(o *outcome) bool { return o.m.Job == about.Job })
	m.packed = learnPacked(atLeast(fewLinks, own, g.all))
	m.rise = m.learnRise(atLeast(fewLinks, own, g.all))
	clear(o.courses) // simulated courses; they do not depend on what is learnt below
	m.rest = m.learnRest(g.link, o.courses)
	like := atLeast(fewLikes, own, g.all)
	n, whose := len(like), "of all jobs"
	switch {
	case len(g.all) == 0:
		return m
	case n != len(g.all):
		whose = "of job " + string(about.Job)
	case len(own) == len(g.all):
		whose = "of job " + string(about.Job) + ", the only one that has moved"
	}
	var together []float64
	total, downtime, sent := make([]float64, 0, n), make([]float64, 0, n), make([]float64, 0, n)
	k := m.known()
	for _, p := range like {
		said := p.m.Predicted
		if said == nil || said.Profile == nil || !said.Converges {
			continue
		}
		c := o.courses[p.place]
		if c.rounds == 0 {
			c = k.followOn(p.curve, profiled(said), linkOf(*said))
		}
		of := &total
		if p.share() > 1 { // all members of a gang take as long as the longest
			of = &together
		}
		*of = append(*of, ratio(p.total.Seconds(), (k.overhead+c.took+c.still).Seconds()))
		downtime = append(downtime, ratio(p.downtime.Seconds(), (k.rest+c.downtime+c.still).Seconds()))
		sent = append(sent, ratio(p.sent, c.sent))
	}
	missing := g.lacking(like, own)
	m.total, m.downtime, m.sent = spreadOf(total, usualTotal, missing), spreadOf(downtime, usualDowntimeSpread, missing), spreadOf(sent, usualSent, missing)
	if len(together) > 0 {
		m.together = spreadOf(together, usualTotal, missing)
	}
	m.basis = fmt.Sprintf("%d past %s %s", n, plural(n), whose)
	return m
}

// lacking is how far the outcomes are from enough for their own quantiles, 0 to 1.
// Outcomes of one job are similar, so for another job they count as one: a job that has
// not moved is uncertain.
func (g *ground) lacking(like, own []*outcome) float64 {
	n := len(own)
	if len(like) > n { // all available
		n += g.jobs - min(n, 1)
	}
	return max(0, float64(whole-n)/whole)
}
