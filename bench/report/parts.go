package report

import (
	"slices"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"

	"pagurus/bench"
)

// parts draws the parts of figures: a bar for each target, with the medians of its parts.
func parts(r *bench.Record, _ bench.Summary) (all []plotted, err error) {
	for _, p := range r.Spec.Programs {
		for _, f := range p.Figures {
			one, some, err := bars(r, p.Name, f)
			if err != nil {
				return nil, err
			}
			if some {
				all = append(all, one)
			}
		}
	}
	return all, nil
}

func bars(r *bench.Record, program string, f bench.Figure) (drawn plotted, some bool, err error) {
	names, medians := partsOf(r, program, f.Name)
	if len(names) == 0 {
		return plotted{}, false, nil
	}
	p := named(f.Unit, "")
	p.Legend.Top = false
	var below *plotter.BarChart
	for i, name := range names {
		chart, err := plotter.NewBarChart(medians[name], vg.Points(24))
		if err != nil {
			return plotted{}, false, err
		}
		chart.Horizontal, chart.Color = true, plotutil.Color(i)
		if below != nil {
			chart.StackOn(below)
		}
		below = chart
		p.Add(chart)
		p.Legend.Add(name, chart)
	}
	p.NominalY(r.Spec.Targets...)
	p.Y.Min, p.Y.Max = -float64(len(names))/3-0.5, float64(len(r.Spec.Targets))-0.5 // room for the legend
	drawn, err = svg(p)
	drawn.Title, drawn.Says = f.Says+": its parts", "Medians of all runs, so that they need not add up to that of the whole."
	return drawn, true, err
}

// partsOf returns the names of a figure's parts in their order, and the medians of each on every
// target. A part that a run lacks counts as 0.
func partsOf(r *bench.Record, program, figure string) (names []string, medians map[string]plotter.Values) {
	values, runs := map[string][][]float64{}, make([]int, len(r.Spec.Targets))
	for _, run := range r.Runs {
		at := slices.Index(r.Spec.Targets, run.Target)
		if run.Program != program || at < 0 {
			continue
		}
		if len(run.Parts[figure]) > 0 {
			runs[at]++
		}
		for _, part := range run.Parts[figure] {
			if values[part.Name] == nil {
				names = append(names, part.Name)
				values[part.Name] = make([][]float64, len(r.Spec.Targets))
			}
			if drawable(part.Value) {
				values[part.Name][at] = append(values[part.Name][at], part.Value)
			}
		}
	}
	medians = map[string]plotter.Values{}
	for name, of := range values {
		medians[name] = make(plotter.Values, len(of))
		for i, v := range of {
			medians[name][i] = median(append(v, make([]float64, runs[i]-len(v))...))
		}
	}
	return names, medians
}

// median returns the median of values, or 0 if there are none.
func median(values []float64) float64 {
	slices.Sort(values)
	if len(values) == 0 {
		return 0
	}
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}
