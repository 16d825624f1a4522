// This file draws moves under way on a terminal.
//
// It must not know where they come from. Its tests are those of package cli.

package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"pagurus/fleet"
	"pagurus/show/view"
)

// barWidth is the width of the bar, without the text beside it.
const barWidth = 24

// progressBar shows migrations to a waiting user. On a terminal it redraws one line;
// elsewhere it writes a line at each change. The results go to standard output.
type progressBar struct {
	Out, Err io.Writer
	JSON     bool // the caller writes the results to Out
	Live     bool // Err is a terminal
	drawn    bool
	said     map[fleet.MigrationID]string
}

// clearRest clears the line behind the cursor.
const clearRest = "\x1b[K"

// Show shows what has changed in the moves.
func (b *progressBar) Show(now time.Time, moves []view.Move) error {
	line := ""
	if b.said == nil {
		b.said = map[fleet.MigrationID]string{}
	}
	for _, m := range moves {
		for _, p := range m.Parts {
			news := fmt.Sprintf("%s %d", p.Phase, p.Progress.Rounds)
			switch {
			case p.Phase.Ended():
				if b.said[p.ID] == news {
					continue
				}
				b.said[p.ID] = news
				b.Clear()
				if p.Phase == fleet.Finished && !b.JSON { // other results are reported as errors
					if _, err := fmt.Fprintln(b.Out, p.Line(now)); err != nil {
						return err
					}
				}
			case b.Live:
				if line == "" {
					line = drawing(p)
				}
			case b.said[p.ID] != news:
				b.said[p.ID] = news
				_, _ = fmt.Fprintln(b.Err, p.Line(now))
			}
		}
	}
	if line != "" {
		b.drawn = true
		_, _ = fmt.Fprint(b.Err, "\r"+line+clearRest)
	}
	return nil
}

// Clear removes the drawn line.
func (b *progressBar) Clear() {
	if b.drawn {
		b.drawn = false
		_, _ = fmt.Fprint(b.Err, "\r"+clearRest)
	}
}

// drawing is a migration as one line with a bar.
func drawing(p view.Part) string {
	full := int(p.Fraction()*barWidth + 0.5)
	line := fmt.Sprintf("%s %s→%s [%s%s] %s", p.Guest, p.From, p.To, strings.Repeat("█", full), strings.Repeat("░", barWidth-full), p.Phase)
	if pr, phase := p.Progress, p.Phase.Traits(); pr.TotalBytes > 0 && phase.Transfers && !phase.PostCopies() {
		line += fmt.Sprintf(", round %d, %s left, %s", max(pr.Rounds, 1), view.Bytes(pr.RemainingBytes), view.Rate(pr.BytesPerSecond))
	}
	return line
}
