package roles

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/term"

	"pagurus/show/view"
)

// Steps shows the progress of something long: on a terminal one line that is drawn again and
// again, elsewhere a line for each step.
type Steps struct {
	out  io.Writer
	live bool
	last string
}

// NewSteps returns Steps that write to a stream, which may be a terminal.
func NewSteps(out io.Writer) *Steps {
	f, ok := out.(*os.File)
	return &Steps{out: out, live: ok && term.IsTerminal(int(f.Fd()))}
}

// Show says which step begins, and what share of all steps is done.
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
