package report

import (
	"fmt"
	"maps"
	"pagurus/bench"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
)

const (
	mostSources = 10 // of a core in the table
	mostNamed   = 8  // cores in a legend: more would cover the plot
)

// table is a table besides that of the figures.
type table struct {
	Title, Says string
	Head        []string
	Rows        [][]string
}

// heard draws the noise and lists its causes.
func heard(f *bench.Noise) (plots []plotted, tables []table, err error) {
	if f == nil {
		return nil, nil, nil
	}
	for _, draw := range []func(*bench.Noise) (plotted, error){lengths, steps} {
		p, err := draw(f)
		if err != nil {
			return nil, nil, err
		}
		if p.SVG != "" {
			plots = append(plots, p)
		}
	}
	return plots, []table{cores(f), sources(f), foreseen(f)}, nil
}

// lengths draws each core's histogram of interruptions. Empty bins have no mark, because a
// logarithmic axis has no zero.
func lengths(f *bench.Noise) (plotted, error) {
	p := named("µs that a quantum took longer than the core's best, at most", "quanta")
	some := false
	for i, c := range f.Cores {
		var points plotter.XYs
		for _, bin := range c.Histogram() {
			if bin.Count > 0 {
				points = append(points, plotter.XY{X: bin.To * 1e6, Y: float64(bin.Count)})
			}
		}
		name := ""
		if len(f.Cores) <= mostNamed {
			name = fmt.Sprintf("cpu%d", c.CPU)
		}
		if _, err := join(p, i, name, points); err != nil {
			return plotted{}, err
		}
		some = some || len(points) > 0
	}
	if !some {
		return plotted{}, nil
	}
	logarithmic(&p.X)
	logarithmic(&p.Y)
	drawn, err := svg(p)
	drawn.Title = "How long the cores were interrupted"
	drawn.Says = fmt.Sprintf("How many quanta of %s were interrupted for how long, in steps of ten times; a line for each core. Both axes are logarithmic.", f.Quantum)
	return drawn, err
}

// steps draws the predictions for jobs.
func steps(f *bench.Noise) (plotted, error) {
	var all intervals
	var marks plot.ConstantTicks
	for _, n := range sizes(f) {
		if v := f.Predicted[n]; n > 0 && drawable(v.Value) && drawable(v.Low) && drawable(v.High) {
			all.XYs = append(all.XYs, plotter.XY{X: float64(n), Y: v.Value})
			all.YErrors = append(all.YErrors, struct{ Low, High float64 }{v.Value - v.Low, v.High - v.Value})
			marks = append(marks, plot.Tick{Value: float64(n), Label: strconv.Itoa(n)})
		}
	}
	if len(marks) == 0 {
		return plotted{}, nil
	}
	p := named("ranks", "a step takes, times its best")
	if _, err := join(p, 0, "", all.XYs); err != nil {
		return plotted{}, err
	}
	whiskers, err := plotter.NewYErrorBars(all)
	if err != nil {
		return plotted{}, err
	}
	p.Add(whiskers)
	logarithmic(&p.X)
	p.X.Tick.Marker = marks
	drawn, err := svg(p)
	drawn.Title = "Predicted: a step of more ranks"
	drawn.Says = fmt.Sprintf("If each rank's core is interrupted as these, all wait for the last, and a step is %s of work; the whiskers are its intervals. It is a prediction: no job was run.", f.Quantum)
	return drawn, err
}

// sizes returns the job sizes for which there are predictions.
func sizes(f *bench.Noise) []int { return slices.Sorted(maps.Keys(f.Predicted)) }

func cores(f *bench.Noise) table {
	t := table{Title: "Cores", Head: []string{"core", "quanta", "at best, µs", "lost, %", "longest interruption, µs"}}
	for _, c := range f.Cores {
		t.Rows = append(t.Rows, []string{strconv.Itoa(c.CPU), strconv.Itoa(len(c.Quanta)), fmt.Sprintf("%.2f", 1e6*c.Best()), fmt.Sprintf("%.2f", 100*c.Lost()), fmt.Sprintf("%.2f", 1e6*c.Longest())})
	}
	return t
}

func sources(f *bench.Noise) table {
	t := table{Title: "What interrupted them", Head: []string{"core", "source", "times", "time, ms"},
		Says: fmt.Sprintf("As the kernel counts it: not all that counts has a time. At most %d of a core; all are in %s.", mostSources, bench.NoiseName)}
	for _, c := range f.Cores {
		for _, s := range c.Sources[:min(len(c.Sources), mostSources)] {
			took := "–"
			if s.Seconds > 0 {
				took = fmt.Sprintf("%.3f", 1e3*s.Seconds)
			}
			t.Rows = append(t.Rows, []string{strconv.Itoa(c.CPU), s.Name, fmt.Sprint(s.Count), took})
		}
	}
	return t
}

func foreseen(f *bench.Noise) table {
	t := table{Title: "Predicted steps", Head: []string{"ranks", "times its best", "interval"}}
	for _, n := range sizes(f) {
		v := f.Predicted[n]
		t.Rows = append(t.Rows, []string{strconv.Itoa(n), fmt.Sprintf("%.3f", v.Value), fmt.Sprintf("%.3f to %.3f (%.0f %%)", v.Low, v.High, 100*v.Confidence)})
	}
	return t
}
