package roles

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/term"

	"pagurus/show/view"
)

// Steps shows how far something long is: one line drawn over itself on a
// terminal, elsewhere a line for each step.
type Steps struct {
	out  io.Writer
	live bool
	last string
}

// NewSteps shows steps on a stream, which is a terminal or is none.
func NewSteps(out io.Writer) *Steps {
	f, ok := out.(*os.File)
	return &Steps{out: out, live: ok && term.IsTerminal(int(f.Fd()))}
}

// Show says which step is taken, and what part of all is behind it.
func (s *Steps) Show(step string, fraction float64) {
	switch {
	case s.live:
		_, _ = fmt.Fprintf(s.out, "\r\x1b[K%3.0f %%  %s", 100*fraction, view.Clean(step))
	case step != s.last:
		_, _ = fmt.Fprintf(s.out, "pagurus: %3.0f %%  %s\n", 100*fraction, view.Clean(step))
	}
	s.last = step
}

// Clear removes the line from a terminal.
func (s *Steps) Clear() {
	if s.live && s.last != "" {
		_, _ = fmt.Fprint(s.out, "\r\x1b[K")
	}
}
