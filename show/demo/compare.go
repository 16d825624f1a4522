package demo

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// comparison is what two logs have in common.
type comparison struct {
	Lines   int    // compared
	Thermo  int    // of them thermodynamic output
	Differs string // the first difference; empty if none
}

var (
	// timings are the lines of a LAMMPS log that tell how long something took,
	// which no two runs have in common, and the name of the log itself.
	timings = regexp.MustCompile(`^(Loop time|Performance:|[0-9.]+% CPU use|Total wall time|MPI task timing|Section +\||-{10,}|` +
		`(Pair|Bond|Neigh|Comm|Output|Modify|Other) +\||  generated|Per MPI rank memory|  using .* thread)|(create_atoms|read_data|create_bonds) CPU`)
	numbers = regexp.MustCompile(`^ +[0-9]+( +-?[0-9.]+(e[-+]?[0-9]+)?)+ *$`)
)

// looped is the line that tells how long the time steps took, all the rest
// aside.
var looped = regexp.MustCompile(`(?m)^Loop time of ([0-9.e+-]+) on `)

func loopTime(log string) (time.Duration, bool) {
	m := looped.FindStringSubmatch(log)
	if m == nil {
		return 0, false
	}
	seconds, err := strconv.ParseFloat(m[1], 64)
	return time.Duration(seconds * float64(time.Second)), err == nil
}

const (
	// shortest is the time the steps have to take for two moves and the time
	// between them; wanted is what a longer melt aims at.
	shortest = 6 * time.Second
	wanted   = 9 * time.Second
	// leastLoop keeps a loop too short to be timed from becoming one for ever.
	leastLoop = 10 * time.Millisecond
	// round is what numbers of steps are a multiple of.
	round = 100
)

// lengthen gives the steps to take where so many took too short a time.
func lengthen(steps int, took time.Duration) int {
	if took >= shortest {
		return steps
	}
	times := wanted.Seconds() / max(took, leastLoop).Seconds()
	return int(math.Ceil(float64(steps)*times/round)) * round
}

// thermo gives the lines of thermodynamic output.
func thermo(log string) []string {
	var out []string
	for _, l := range strings.Split(log, "\n") {
		if numbers.MatchString(l) {
			out = append(out, l)
		}
	}
	return out
}

// compare holds two LAMMPS logs against each other line by line, but for
// timings.
func compare(a, b string) comparison {
	one, two := lasting(a), lasting(b)
	c := comparison{Thermo: len(thermo(a))}
	for i := range max(len(one), len(two)) {
		var left, right string
		if i < len(one) {
			left = one[i]
		}
		if i < len(two) {
			right = two[i]
		}
		if left != right {
			c.Differs = fmt.Sprintf("line %d is %q in one and %q in the other", i+1, left, right)
			return c
		}
		c.Lines++
	}
	if c.Thermo == 0 {
		c.Differs = "there is no thermodynamic output"
	}
	return c
}

func lasting(log string) []string {
	var out []string
	for _, l := range strings.Split(strings.TrimSpace(log), "\n") {
		if !timings.MatchString(l) {
			out = append(out, l)
		}
	}
	return out
}
