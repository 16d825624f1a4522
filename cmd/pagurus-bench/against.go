package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"pagurus/bench"
	"pagurus/bench/drive"
	"pagurus/fleet"
)

// older is another commit, with which this one takes turns.
type older struct {
	commit  string
	program string // its pagurus
	takes   string // what its `lab up` can be told
}

// openOlder builds a commit, if it was not before.
func openOlder(ctx context.Context, name string) (o older, err error) {
	if o.commit, err = fullCommit(ctx, name); err != nil {
		return o, err
	}
	if o.program, err = built(ctx, o.commit); err != nil {
		return o, err
	}
	o.takes, err = drive.Pagurus{Program: o.program}.Type(ctx, "lab", "up", "--help")
	return o, err
}

// against measures a trial in turn with another commit. This commit's code drives both, so that
// they are measured alike; images are made by this commit's binary for both.
func (b *experiments) against(ctx context.Context, trial string, turns int, o older) error {
	b.Trial = trial
	this := bench.Build{Commit: "this commit", Turn: func(ctx context.Context) (*bench.Record, error) {
		return b.turn(ctx, trial, b.Program, nil, func(flags []string) []string { return flags })
	}}
	that := bench.Build{Commit: o.commit, Turn: func(ctx context.Context) (*bench.Record, error) {
		r, err := b.turn(ctx, trial, o.program, lacking, o.understood)
		return r, o.explained(err)
	}}
	return b.Against(ctx, turns, this, that)
}

// turn carries a trial out once with a binary, in a lab that this brings up. What its arms lack is kept for the end.
func (b *experiments) turn(ctx context.Context, trial, program string, lacks func(string) string, lab func([]string) []string) (*bench.Record, error) {
	e := newExperiments()
	e.Promises = bench.NewPromises(drive.Pagurus{Program: program, Imager: b.Program, Own: b.Own, Dir: b.Dir}, 1)
	e.Unjudged, e.Arms, e.Lacks = true, b.Arms, lacks
	e.chosen, e.viewedHosts, e.viewers = b.chosen, b.viewedHosts, b.viewers
	all := slices.DeleteFunc(e.trials(), func(t bench.Trial) bool { return t.Name != trial })
	for i := range all {
		if all[i].Lab != nil {
			all[i].Lab = lab(all[i].Lab)
		}
	}
	err := e.Carry(ctx, all, lab(usualLab()))
	b.RunBy(e.Accelerator)
	if err != nil && lacks != nil && lacks(err.Error()) != "" && len(e.Record.Runs) > 0 { // what comes before other arms
		e.Left, err = append(e.Left, fmt.Sprintf("the rest of %s, which lacks %s", trial, lacks(err.Error()))), nil
	}
	for _, left := range e.Left {
		if !slices.Contains(b.Left, left) {
			b.Left = append(b.Left, left)
		}
	}
	switch {
	case err == nil && len(e.Record.Runs) == 0 && len(e.Left) > 0:
		err = fmt.Errorf("nothing of it can be measured: %s: choose a later commit", strings.Join(e.Left, "; "))
	case err == nil && len(e.Record.Runs) == 0:
		err = fmt.Errorf("it has none of the arms %s", strings.Join(b.Arms, ", "))
	}
	return &e.Record, err
}

// understood are a lab's flags without those that ask for nothing that a commit could have: before
// there was encryption, no lab had any.
func (o older) understood(flags []string) (left []string) {
	for i := 0; i < len(flags); i++ {
		if flags[i] == "--"+fleet.EncryptionFlag && i+1 < len(flags) && flags[i+1] == string(fleet.NoEncryption) && !strings.Contains(o.takes, flags[i]) {
			i++
			continue
		}
		left = append(left, flags[i])
	}
	return left
}

var unknownWord = regexp.MustCompile(`unknown (?:flag|command):? "?(-*[a-z][a-z-]*)|does not say (how [a-z ]+)`)

// lacking is what a commit lacks by what it, or who reads its answer, says; empty: nothing.
func lacking(said string) string {
	if found := unknownWord.FindStringSubmatch(said); found != nil {
		return cmp.Or(found[1], "a word about "+found[2])
	}
	return ""
}

// explained says of an error that the commit is too old for what it was told, if it is so.
func (o older) explained(err error) error {
	if err == nil {
		return nil
	}
	if what := lacking(err.Error()); what != "" {
		return fmt.Errorf("%s does not have %s, which it is measured with: choose a later commit: %w", o.commit, what, err)
	}
	return err
}

// errWorse ends a comparison in which something got worse.
var errWorse = errors.New("got worse")

// worse names the figures that got worse; nil: none did.
func worse(changes []bench.Change) error {
	var names []string
	for _, c := range changes {
		if c.Worse() {
			names = append(names, c.Part+" "+c.Sample)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", errWorse, strings.Join(names, "; "))
}

// builds are this commit's binaries, and another's.
func (b *experiments) builds(ctx context.Context, commit string) (older, error) {
	if err := buildHere(ctx); err != nil {
		return older{}, err
	}
	return openOlder(ctx, commit)
}

// held holds the part that is asked for against another commit.
func (b *experiments) held(ctx context.Context, a asked, o older) error {
	b.Record.Sittings[len(b.Record.Sittings)-1].Against = o.commit
	if err := b.against(ctx, a.only, b.Repeat, o); err != nil {
		return err
	}
	changes := b.Record.Changes(a.tolerance)
	b.promiseChanges(changes)
	for _, c := range changes {
		fmt.Println(c)
	}
	for _, left := range b.Left {
		fmt.Printf("left out of %s: %s\n", o.commit, left)
	}
	return worse(changes)
}

// promiseChanges keeps what became of figures in the record.
func (b *experiments) promiseChanges(changes []bench.Change) {
	for _, c := range changes {
		if c.Failure == "" {
			most := c.Tolerance
			b.Record.Promised[fmt.Sprintf("%s %s / of %s", c.Part, c.Sample, c.Commit)] = bench.Promise{Interval: c.Ratio, AtMost: &most}
		}
	}
}
