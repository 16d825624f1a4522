package demo

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// comparison is the result of comparing two logs.
type comparison struct {
	Lines   int    // compared
	Thermo  int    // of them thermodynamic output
	Differs string // the first difference; empty if none
}

var (
	// timings are the lines of a LAMMPS log with timings, which differ in every run, and
	// with the log's name.
	timings = regexp.MustCompile(`^(Loop time|Performance:|-?[0-9.]+% CPU use|Total wall time|MPI task timing|Section +\||-{10,}|` +
		`(Pair|Bond|Neigh|Comm|Output|Modify|Other) +\||  generated|Per MPI rank memory|  using .* thread)|(create_atoms|read_data|create_bonds) CPU`)
	numbers = regexp.MustCompile(`^ +[0-9]+( +-?[0-9.]+(e[-+]?[0-9]+)?)+ *$`)
)

// looped is the line with the duration of the time steps alone.
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
	// shortest is the duration the steps need for two moves and the time between them;
	// wanted is the target of a longer melt.
	shortest = 6 * time.Second
	wanted   = 9 * time.Second
	// leastLoop bounds the result for a loop too short to be timed.
	leastLoop = 10 * time.Millisecond
	// The number of steps is a multiple of round.
	round = 100
)

// lengthen gives the number of steps if the last was too short.
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

// compare compares two LAMMPS logs line by line, except timings.
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
