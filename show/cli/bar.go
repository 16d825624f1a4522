package cli

import (
	"fmt"
	"strings"
	"time"

	"pagurus/fleet"
	"pagurus/show/view"
)

// barWidth is the width of the drawn bar, without what is said beside it.
const barWidth = 24

// bar shows migrations to somebody who waits for them. On a terminal one line
// is drawn over itself; elsewhere a line is written when there is news. How
// each ended goes to standard output, whole.
type bar struct {
	*app
	live  bool // standard error is a terminal
	drawn bool
	said  map[fleet.MigrationID]string
}

func newBar(a *app) *bar {
	return &bar{app: a, live: terminal(a.Err), said: map[fleet.MigrationID]string{}}
}

// show says what is new of the moves.
func (b *bar) show(now time.Time, moves []view.Move) error {
	line := ""
	for _, m := range moves {
		for _, p := range m.Parts {
			news := fmt.Sprintf("%s %d", p.Phase, p.Progress.Rounds)
			switch {
			case p.Phase.Ended():
				if b.said[p.ID] == news {
					continue
				}
				b.said[p.ID] = news
				b.clear()
				if p.Phase == fleet.Finished && !b.json { // the others are told as errors
					if _, err := fmt.Fprintln(b.Out, p.Line(now)); err != nil {
						return err
					}
				}
			case b.live:
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
		_, _ = fmt.Fprint(b.Err, "\r"+line+clearLine)
	}
	return nil
}

// clear removes the drawn line.
func (b *bar) clear() {
	if b.drawn {
		b.drawn = false
		_, _ = fmt.Fprint(b.Err, "\r"+clearLine)
	}
}

// drawing is a migration as one line with a bar.
func drawing(p view.Part) string {
	full := int(p.Fraction()*barWidth + 0.5)
	line := fmt.Sprintf("%s %s→%s [%s%s] %s", p.Guest, p.From, p.To, strings.Repeat("█", full), strings.Repeat("░", barWidth-full), p.Phase)
	if pr := p.Progress; pr.TotalBytes > 0 && (p.Phase == fleet.Copying || p.Phase == fleet.Ready) {
		line += fmt.Sprintf(", round %d, %s left, %s", max(pr.Rounds, 1), view.Bytes(pr.RemainingBytes), view.Rate(pr.BytesPerSecond))
	}
	return line
}
