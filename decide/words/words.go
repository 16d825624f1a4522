// Package words puts numbers and names into sentences for people.
//
// It must not know what the sentences are about. Its tests are tables.
package words

import (
	"fmt"
	"time"
)

// Plural chooses between a word for one and a word for several, or none.
func Plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// Counted puts a number before a word, which gets an s unless it is one.
func Counted(n int, what string) string { return fmt.Sprintf("%d %s", n, Plural(n, what, what+"s")) }

// OrNone makes a name visible that is empty.
func OrNone[S ~string](name S) string {
	if name == "" {
		return `""`
	}
	return string(name)
}

// About rounds what is only expected.
func About(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(10 * time.Millisecond)
	}
	return d.Round(100 * time.Millisecond)
}
