package report

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"pagurus/bench"
)

const (
	width  = 18 * vg.Centimeter
	height = 9 * vg.Centimeter
)

func svg(p *plot.Plot) (plotted, error) {
	canvas := vgsvg.New(width, height)
	p.Draw(draw.New(canvas))
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return plotted{}, err
	}
	return plotted{Title: p.Title.Text, SVG: plain(b.String())}, nil
}

// named makes an empty plot. Its title is the page's.
func named(x, y string) *plot.Plot {
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = x, y
	p.X.Tick.Marker, p.Y.Tick.Marker = exact{}, exact{}
	p.Legend.Top = true
	p.Add(plotter.NewGrid())
	return p
}

// exact has the library's ticks, each labelled with its value. The library labels a tick at 1.04
// as "1", and a plot was misread for that.
type exact struct{ plot.DefaultTicks }

// Ticks returns the ticks between two values.
func (e exact) Ticks(low, high float64) []plot.Tick {
	ticks := e.DefaultTicks.Ticks(low, high)
	for i, t := range ticks {
		if t.Label != "" {
			ticks[i].Label = fmt.Sprintf("%.6g", t.Value)
		}
	}
	return ticks
}

// join draws connected points as the plot's i-th line. A line without a name is not in the
// legend. A line without points is not drawn.
func join(p *plot.Plot, i int, name string, points plotter.XYs) (*plotter.Line, error) {
	if len(points) == 0 {
		return nil, nil
	}
	line, marks, err := plotter.NewLinePoints(points)
	if err != nil {
		return nil, err
	}
	line.Color, marks.Color, marks.Shape = plotutil.Color(i), plotutil.Color(i), plotutil.Shape(i)
	p.Add(line, marks)
	if name != "" {
		p.Legend.Add(name, line, marks)
	}
	return line, nil
}

// logarithmic makes an axis logarithmic, after everything along it was drawn. A single value
// gets a range around it: the library's would include values without a logarithm.
func logarithmic(a *plot.Axis) {
	a.Scale, a.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	if a.Min == a.Max {
		a.Min, a.Max = a.Min/2, a.Max*2
	}
}

// intervals are points with their intervals.
type intervals struct {
	plotter.XYs
	plotter.YErrors
}

// overheads draws each target's ratio to its base, figure by figure. The legend names the base:
// it need not be the first target, and a bar that was mistaken for a ratio to native would be
// quoted as such.
func overheads(r *bench.Record, what bench.Summary) ([]plotted, error) {
	var figures []string
	bars, ends, beside := map[string]plotter.Values{}, map[string]intervals{}, map[string]string{}
	at := map[string]int{}
	for _, row := range what.Rows {
		if row.Ratio == nil {
			continue
		}
		v := loss(row)
		if !drawable(v.Low) || !drawable(v.High) {
			continue
		}
		if _, ok := at[row.Figure.Says]; !ok {
			at[row.Figure.Says] = len(figures)
			figures = append(figures, row.Figure.Says)
		}
		x := at[row.Figure.Says]
		for len(bars[row.Target]) <= x {
			bars[row.Target] = append(bars[row.Target], 0)
		}
		bars[row.Target][x], beside[row.Target] = v.Value, row.Base
		e := ends[row.Target]
		e.XYs = append(e.XYs, plotter.XY{X: float64(x), Y: v.Value})
		e.YErrors = append(e.YErrors, struct{ Low, High float64 }{v.Value - v.Low, v.High - v.Value})
		ends[row.Target] = e
	}
	if len(figures) == 0 {
		return nil, nil
	}
	p := named("", "times worse")
	thick := vg.Points(18)
	shown := 0
	for i, target := range r.Spec.Targets {
		if bars[target] == nil {
			continue
		}
		chart, err := plotter.NewBarChart(bars[target], thick)
		if err != nil {
			return nil, err
		}
		offset := vg.Length(shown)*thick - vg.Length(len(bars)-1)*thick/2
		chart.Color, chart.Offset = plotutil.Color(i), offset
		e := ends[target]
		whiskers, err := plotter.NewYErrorBars(shifted(e, float64(offset), len(figures)))
		if err != nil {
			return nil, err
		}
		p.Add(chart, whiskers)
		p.Legend.Add(target+" / "+beside[target], chart)
		shown++
	}
	one := plotter.NewFunction(func(float64) float64 { return 1 })
	one.Color = color.Gray{100}
	p.Add(one)
	p.NominalX(figures...)
	p.X.Min, p.X.Max = -0.5, float64(len(figures))-0.5
	drawn, err := svg(p)
	drawn.Title = "Overhead"
	drawn.Says = fmt.Sprintf("How many times worse each target is than the one after the stroke, in pairs of one round; the whiskers are %.0f %% intervals. 1 is no loss.", 100*r.Spec.Confidence)
	return []plotted{drawn}, err
}

// shifted moves whiskers to their bars: bars are moved by lengths on paper, points only by
// values.
func shifted(e intervals, offset float64, figures int) intervals {
	by := offset / float64(width) * float64(figures) * 1.1
	moved := intervals{YErrors: e.YErrors}
	for _, at := range e.XYs {
		moved.XYs = append(moved.XYs, plotter.XY{X: at.X + by, Y: at.Y})
	}
	return moved
}

// curves draws figures that depend on the size of messages: the medians of all runs.
func curves(r *bench.Record, _ bench.Summary) (all []plotted, err error) {
	units := map[string]string{"latency": "seconds one way", "bandwidth": "bit/s"}
	for _, p := range r.Spec.Programs {
		for _, name := range curveNames(r, p.Name) {
			drawn := named("bytes of a message", units[name])
			if name == "bandwidth" {
				drawn.Legend.Top, drawn.Legend.Left = false, false
			} else {
				drawn.Legend.Left = true
			}
			some := false
			for i, t := range r.Spec.Targets {
				points := medians(r, p.Name, name, t)
				if _, err := join(drawn, i, t, points); err != nil {
					return nil, err
				}
				some = some || len(points) > 0
			}
			if !some {
				continue
			}
			logarithmic(&drawn.X)
			logarithmic(&drawn.Y)
			one, err := svg(drawn)
			if err != nil {
				return nil, err
			}
			one.Title, one.Says = fmt.Sprintf("%s: %s", p.Name, name), "Medians of all runs. Both axes are logarithmic."
			all = append(all, one)
		}
	}
	return all, nil
}

func curveNames(r *bench.Record, program string) (names []string) {
	for _, run := range r.Runs {
		for name := range run.Curves {
			if run.Program == program && name != bench.CopyRounds && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// medians returns the medians of a curve's points over all runs. They are positive, as a
// logarithmic axis needs.
func medians(r *bench.Record, program, curve, target string) (points plotter.XYs) {
	at := map[float64][]float64{}
	for _, run := range r.Runs {
		if run.Program == program && run.Target == target {
			for _, p := range run.Curves[curve] {
				if p.X > 0 && p.Y > 0 && drawable(p.X) && drawable(p.Y) {
					at[p.X] = append(at[p.X], p.Y)
				}
			}
		}
	}
	for x, ys := range at {
		points = append(points, plotter.XY{X: x, Y: median(ys)})
	}
	slices.SortFunc(points, func(a, b plotter.XY) int { return int(math.Copysign(1, a.X-b.X)) })
	return points
}

// runs draws every sample in the order in which they were taken, so that drift and modes are
// visible.
func runs(r *bench.Record, what bench.Summary) (all []plotted, err error) {
	for _, p := range r.Spec.Programs {
		for _, f := range p.Figures {
			drawn := named("run", f.Unit)
			some := false
			for i, t := range r.Spec.Targets {
				values, rounds := r.Samples(p.Name, f.Name, t)
				var points plotter.XYs
				for j, v := range values {
					if drawable(v) {
						points = append(points, plotter.XY{X: float64(rounds[j] + 1), Y: v})
					}
				}
				line, err := join(drawn, i, t, points)
				if err != nil {
					return nil, err
				}
				if line != nil {
					line.Width, some = vg.Points(0.3), true
				}
			}
			if !some {
				continue
			}
			one, err := svg(drawn)
			if err != nil {
				return nil, err
			}
			one.Title, one.Says = f.Says+": every run", "In the order they were taken."
			all = append(all, one)
		}
	}
	return all, nil
}
