// This file puts numbers and names into sentences for people.
//
// It must not know what the sentences are about. Its tests are tables.

package planner

import (
	"fmt"
	"time"
)

// plural chooses between a word for one and a word for several, or none.
func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// counted puts a number before a word, which gets an s unless it is one.
func counted(n int, what string) string { return fmt.Sprintf("%d %s", n, plural(n, what, what+"s")) }

// orNone makes a name visible that is empty.
func orNone[S ~string](name S) string {
	if name == "" {
		return `""`
	}
	return string(name)
}

// aboutDuration rounds what is only expected.
func aboutDuration(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(10 * time.Millisecond)
	}
	return d.Round(100 * time.Millisecond)
}
