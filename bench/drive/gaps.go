package drive

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Gap is a time for which a program did not run, by its own account.
type Gap struct {
	Ended time.Time
	Took  time.Duration
}

// Gaps are those in what a program said, in its order.
func Gaps(said string) (all []Gap, err error) {
	for line := range strings.Lines(said) {
		var at, took float64
		if !strings.HasPrefix(line, "GAP ") {
			continue
		}
		if _, err := fmt.Sscanf(line, "GAP %g %g", &at, &took); err != nil {
			return nil, fmt.Errorf("the program said %q", line)
		}
		all = append(all, Gap{time.UnixMicro(int64(at * 1e6)), time.Duration(took * 1e9)})
	}
	return all, nil
}

// LongestGap gives the longest of the gaps in what a program said that ended in a window of
// time. That there is none is an error.
func LongestGap(said string, from, to time.Time) (longest Gap, err error) {
	all, err := Gaps(said)
	if err != nil {
		return longest, err
	}
	for _, g := range all {
		if g.Ended.After(from) && g.Ended.Before(to) && g.Took > longest.Took {
			longest = g
		}
	}
	if longest.Took == 0 {
		err = errors.New("the program noticed nothing at all, which cannot be right")
	}
	return longest, err
}
