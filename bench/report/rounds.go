package report

import (
	"gonum.org/v1/plot/plotter"

	"pagurus/bench"
)

// copyRounds draws how much of a guest remained as each round of its copy began. The
// times differ from move to move, so points are matched by their order.
func copyRounds(r *bench.Record, _ bench.Summary) (all []plotted, err error) {
	for _, p := range r.Spec.Programs {
		drawn := named("s since the copy began", "MiB left")
		some := false
		for i, t := range r.Spec.Targets {
			points := byOrder(r, p.Name, t)
			if _, err := join(drawn, i, t, points); err != nil {
				return nil, err
			}
			some = some || len(points) > 0
		}
		if !some {
			continue
		}
		logarithmic(&drawn.Y)
		one, err := svg(drawn)
		if err != nil {
			return nil, err
		}
		one.Title = p.Name + ": rounds of the copy"
		one.Says = "What was left as each round began, known to be changed and not sent, and when that was: medians of all moves that had so many rounds. The second axis is logarithmic. What a move sends during the downtime comes after the last."
		all = append(all, one)
	}
	return all, nil
}

// byOrder returns the medians of all runs' first rounds, of their second rounds and so on. They
// are positive, as a logarithmic axis needs.
func byOrder(r *bench.Record, program, target string) (points plotter.XYs) {
	var xs, ys [][]float64
	for _, run := range r.Runs {
		if run.Program != program || run.Target != target {
			continue
		}
		for i, p := range run.Curves[bench.CopyRounds] {
			if i == len(xs) {
				xs, ys = append(xs, nil), append(ys, nil)
			}
			xs[i], ys[i] = append(xs[i], p.X), append(ys[i], p.Y)
		}
	}
	for i := range xs {
		if p := (plotter.XY{X: median(xs[i]), Y: median(ys[i])}); p.Y > 0 && drawable(p.X) && drawable(p.Y) {
			points = append(points, p)
		}
	}
	return points
}
