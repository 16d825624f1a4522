package measuring

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/spf13/cobra"

	"pagurus/bench"
	"pagurus/show/view"
)

// print prints what a record says.
func (s Streams) print(cmd *cobra.Command, what bench.Summary) error {
	if asJSON, _ := cmd.Flags().GetBool("json"); asJSON {
		out := json.NewEncoder(s.Out)
		out.SetIndent("", "  ")
		return out.Encode(what)
	}
	_, err := fmt.Fprint(s.Out, text(what))
	return err
}

// text is what a record says, for a terminal.
func text(what bench.Summary) string {
	table := view.Table{Columns: []string{"PROGRAM", "FIGURE", "TARGET", "RUNS", "MEDIAN", "MEAN", "INTERVAL", "RATIO"}, Empty: "Nothing was measured."}
	said := ""
	for _, r := range what.Rows {
		f := r.Figure
		row := []string{r.Program, f.Says, r.Target, fmt.Sprint(r.Runs), "-", "-", "-", "-"}
		if r.Median != nil {
			row[4] = amount(r.Median.Value, f.Unit)
		}
		if m := r.Mean; m != nil {
			row[5], row[6] = amount(m.Value, f.Unit), amount(m.Low, f.Unit)+" to "+amount(m.High, f.Unit)
		}
		if r.Ratio != nil {
			row[7] = fmt.Sprintf("%.3f (%.3f to %.3f)", r.Ratio.Value, r.Ratio.Low, r.Ratio.High)
			if base := what.Aside(r); base != "" {
				row[7] += " to " + base
			}
		}
		table.Rows = append(table.Rows, row)
		if r.Sentence != "" {
			said += fmt.Sprintf("%s, %s: %s", r.Target, f.Says, r.Sentence)
			if r.Chance != nil {
				said += fmt.Sprintf("; p = %.2g", *r.Chance)
			}
			said += "\n"
		}
	}
	table.Notes = doubts(what.Rows)
	table.Notes = append(table.Notes, what.Notes...)
	notes := view.Table{Notes: table.Notes}
	table.Notes = nil
	return table.Text() + "\n" + said + notes.Text()
}

// doubts are those of all rows; one that all of them share is said once.
func doubts(rows []bench.Row) (all []string) {
	shared := map[string]int{}
	for _, r := range rows {
		for _, d := range r.Doubts {
			shared[d]++
		}
	}
	for i, r := range rows {
		for _, d := range r.Doubts {
			switch {
			case len(rows) == 1 || shared[d] < len(rows):
				all = append(all, fmt.Sprintf("%s on %s: %s", r.Figure.Says, r.Target, d))
			case i == 0:
				all = append(all, "all figures: "+d)
			}
		}
	}
	return all
}

// prefixes of units, by thousands.
var prefixes = map[int]string{-3: "n", -2: "µ", -1: "m", 0: "", 1: "k", 2: "M", 3: "G"}

// amount is a number with its unit, as a person would write it.
func amount(v float64, unit string) string {
	if unit != "s" && unit != "bit/s" || v == 0 {
		return fmt.Sprintf("%.4g", v) + blank(unit)
	}
	power := min(3, max(-3, int(math.Floor(math.Log10(math.Abs(v))/3))))
	if unit == "s" {
		power = min(0, power)
	}
	return fmt.Sprintf("%.4g", v/math.Pow(1000, float64(power))) + blank(prefixes[power]+unit)
}

func blank(unit string) string {
	if unit == "" {
		return ""
	}
	return " " + unit
}
