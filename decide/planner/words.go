// This file formats numbers and names for sentences. It must not know the sentences. Its
// tests are tables.

package planner

import (
	"fmt"
	"time"
)

// plural chooses the form of a word for n.
func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// counted formats a number with a word, adding an s unless it is one.
func counted(n int, what string) string { return fmt.Sprintf("%d %s", n, plural(n, what, what+"s")) }

// orNone makes an empty name visible.
func orNone[S ~string](name S) string {
	if name == "" {
		return `""`
	}
	return string(name)
}

// aboutDuration rounds an expected duration.
func aboutDuration(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(10 * time.Millisecond)
	}
	return d.Round(100 * time.Millisecond)
}
