package view

import (
	"fmt"
	"strconv"
	"time"

	"pagurus/fleet"
)

// mappingSaid is the shortest mapping time that is shown.
const mappingSaid = 50 * time.Millisecond

// Forecast is a request's predicted effect, made ready for reading.
type Forecast struct{ fleet.Forecast }

// Table has a row for each guest, and one for all of them if there are several.
func (f Forecast) Table() Table {
	t := Table{
		Columns: []string{"GUEST", "FROM", "TO", "TOTAL", "DOWNTIME", "SENT"},
		Empty:   "Nothing would move.",
	}
	for _, m := range f.Migrations {
		p := m.Prediction
		row := []string{cell(string(m.Guest)), cell(string(m.From)), cell(string(m.To)), between(p.Total, Took), between(p.Downtime, Took), between(p.Bytes, Bytes)}
		if !p.Converges {
			row[3], row[4], row[5] = "does not converge", "-", "-"
			t.Notes = append(t.Notes,
				fmt.Sprintf("%s would be cancelled after %s: %s", m.Guest, Took(p.Total.Value), p.Why),
				fmt.Sprintf("%s would converge with %s", m.Guest, p.Help))
		}
		if p.Mapping >= mappingSaid && p.Profile != nil {
			t.Notes = append(t.Notes, fmt.Sprintf("%s: its %[3]d memory mappings alone take %[2]s of that downtime, whatever --max-downtime says", m.Guest, Took(p.Mapping), p.Profile.Mappings))
		}
		t.Rows = append(t.Rows, row)
	}
	if len(f.Migrations) > 1 {
		t.Rows = append(t.Rows, []string{"all", "", "", between(f.Total, Took), between(f.Downtime, Took), between(f.Bytes, Bytes)})
	}
	if u := f.Unmarked; u != nil {
		t.Notes = append(t.Notes, "this is from a moment on that its program marks as cheap, for which the move waits; "+unmarkedText(*u))
	}
	t.Notes = append(t.Notes, f.Notes...)
	return t
}

// unmarkedText says what a move would cost at other moments.
func unmarkedText(u fleet.Price) string {
	if !u.Converges {
		return "at others it would not converge"
	}
	return fmt.Sprintf("at others it would take %s, with a downtime of %s, and send %s", Took(u.Total.Value), Took(u.Downtime.Value), Bytes(u.Bytes.Value))
}

// Basis says in one sentence what the prediction is based on; empty without migrations.
func (f Forecast) Basis() string {
	if len(f.Migrations) == 0 {
		return ""
	}
	return fmt.Sprintf("In brackets: the range that holds nine of ten outcomes, going by %s.", Clean(f.Migrations[0].Prediction.Basis))
}

func between[T time.Duration | int64](r fleet.Range[T], words func(T) string) string {
	return fmt.Sprintf("%s (%s to %s)", words(r.Value), words(r.Low), words(r.High))
}

// CalibrationTable shows how good past predictions were.
func CalibrationTable(c fleet.Calibration) Table {
	t := Table{
		Columns: []string{"QUANTITY", "MOVES", "MEDIAN ERROR", "OUTCOME/PREDICTED", "IN 90 % INTERVAL"},
		Empty:   "No move has arrived yet that was predicted.",
	}
	if c.Moves > 0 {
		for _, q := range []struct {
			name string
			fit  fleet.Fitness
		}{{"total time", c.Total}, {"downtime", c.Downtime}, {"bytes sent", c.Bytes}} {
			t.Rows = append(t.Rows, []string{q.name, strconv.Itoa(c.Moves), percent(q.fit.MedianError), fmt.Sprintf("%.2f", q.fit.Bias), percent(q.fit.Coverage)})
		}
	}
	if c.Verdicts > 0 {
		t.Notes = append(t.Notes, fmt.Sprintf("of %s, %d converged, or did not, as predicted", Count(c.Verdicts, "move"), c.Right))
	}
	return t
}

func percent(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) }
