package cost

import (
	"fmt"
	"slices"

	"pagurus/fleet"
)

// Fit learns from past moves, most from those most like the one to come.
func Fit(past []fleet.Migration, about Subject) Model { return Learn(past).fit(about) }

// History is past moves made ready to be learnt from more than once.
type History struct {
	past    []*outcome
	crowds  map[crowd]*counts
	fits    map[Subject]Model
	grounds map[Subject]ground
	courses []course // room for those of the fit in work, by place
	odd     bool     // some were not predicted, and count for any kind
}

// crowd is moves of one kind, for owners or for none.
type crowd struct {
	kind     fleet.Kind
	forOwner bool
}

// counts is how many moves there are of a crowd, of each job, and between each
// two hosts.
type counts struct {
	all   int
	jobs  map[fleet.JobID]int
	links map[[2]fleet.HostID]int
}

// Learn makes past moves ready.
func Learn(past []fleet.Migration) *History {
	var all []*outcome
	for _, m := range past {
		if o := outcomeOf(m); o != nil {
			all = append(all, o)
		}
	}
	return newHistory(all)
}

// Next is what the moves of these names teach. Those that o knows it does not
// look at again, what has finished stays as it is, and takes them over: o is not
// to be learnt from any more. It may be nil.
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
	o := &History{past: latest(past), crowds: map[crowd]*counts{}, fits: map[Subject]Model{}, grounds: map[Subject]ground{}}
	o.courses = make([]course, len(o.past))
	for i, p := range o.past {
		p.place = i
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

// Fit learns as Fit does. What is too little to be told apart is learnt once.
func (o *History) Fit(about Subject) Model {
	if !o.odd {
		about = o.known(about)
	}
	m, known := o.fits[about]
	if !known {
		m = o.fit(about)
		o.fits[about] = m
	}
	return m
}

// known leaves out what too few past moves have in common with it.
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

// fit learns from all that is like a move.
func (o *History) fit(about Subject) Model {
	m := o.learn(about)
	if about.ForOwner && !slices.ContainsFunc(o.past, func(p *outcome) bool {
		return p.m.Predicted != nil && p.m.Predicted.Kind == about.Kind && p.m.Predicted.ForOwner
	}) {
		m.bandwidth = m.known().bandwidth * besideOwner
	}
	return m
}

// ground is what is learnt whichever job the guest is of.
type ground struct {
	all, link []*outcome // of the kind, and between the two hosts
	jobs      int        // of all
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

// learn is fit from moves for whatever reason.
func (o *History) learn(about Subject) Model {
	g := o.ground(about)
	m := g.model
	own := only(g.all, func(o *outcome) bool { return o.m.Job == about.Job })
	m.packed = learnPacked(atLeast(fewLinks, own, g.all))
	m.rise = m.learnRise(atLeast(fewLinks, own, g.all))
	clear(o.courses) // how they would have gone: what is learnt below makes no difference to that
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
			c = k.followOn(p.curve, *said.Profile, linkOf(*said))
		}
		of := &total
		if p.share() > 1 { // of a gang all take as long as the longest
			of = &together
		}
		*of = append(*of, ratio(p.total.Seconds(), (k.overhead+c.took+c.mapped).Seconds()))
		downtime = append(downtime, ratio(p.downtime.Seconds(), (k.rest+c.downtime+c.mapped).Seconds()))
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

// lacking is by how much too few outcomes are for their own quantiles, 0 to 1. Those of
// one job are much alike, and of another job they say no more than one would: a job that
// has not moved is as uncertain as few others have.
func (g *ground) lacking(like, own []*outcome) float64 {
	n := len(own)
	if len(like) > n { // all there are
		n += g.jobs - min(n, 1)
	}
	return max(0, float64(whole-n)/whole)
}
