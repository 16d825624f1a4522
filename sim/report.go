package sim

import (
	"fmt"
	"html/template"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"pagurus/bench/stats"
	"pagurus/decide/owners"
)

// Row is one policy over all seeds: the mean of its runs with half the width of the 95 %
// interval.
type Row struct {
	Policy    string   `json:"policy"`
	Placement string   `json:"placement"`
	Seeds     []uint64 `json:"seeds"`

	Throughput  Mean `json:"throughput_ranks"`   // number of undisturbed ranks with the same work
	Finished    Mean `json:"jobs_a_day"`         // jobs
	WastedHours Mean `json:"wasted_rank_hours"`  // a day
	Disturbed   Mean `json:"disturbed_seconds"`  // of owners, a day
	Slowed      Mean `json:"slowed_seconds"`     // a day
	Held        Mean `json:"held_owner_seconds"` // a day
	Moves       Mean `json:"moves"`              // a day
	GiB         Mean `json:"gib_sent"`           // a day
	Vacate      Mean `json:"vacate_seconds"`     // median
	VacateMost  Mean `json:"vacate_p95_seconds"` // 19 of 20 are quicker
	Turnaround  Mean `json:"turnaround_minutes"` // median
	EventsASec  Mean `json:"events_a_second"`

	Runs []Result `json:"runs"`
}

// Mean is a mean with its 95 % interval: Mean ± Half.
type Mean struct {
	Mean float64 `json:"mean"`
	Half float64 `json:"half"` // 0: a single run
}

func meanOf(runs []Result, of func(Result) float64) Mean {
	values := make([]float64, len(runs))
	for i, r := range runs {
		values[i] = of(r)
	}
	if len(values) < 2 {
		return Mean{Mean: values[0]}
	}
	i, err := stats.Mean(values, 0.95)
	if err != nil {
		return Mean{Mean: values[0]}
	}
	return Mean{i.Value, (i.High - i.Low) / 2}
}

// Compare runs a configuration under each policy with the same seeds: owners behave the
// same in all of them. each gets every result.
func Compare(c Config, policies []owners.Policy, seeds []uint64, each func(Result)) ([]Row, error) {
	var rows []Row
	for _, p := range policies {
		var runs []Result
		for _, seed := range seeds {
			run := c
			run.Policy, run.Seed = p, seed
			r, err := Run(run)
			if err != nil {
				return nil, err
			}
			runs = append(runs, r)
			each(r)
		}
		rows = append(rows, rowOf(runs))
	}
	return rows, nil
}

func rowOf(runs []Result) Row {
	out := Row{Policy: runs[0].Policy, Placement: runs[0].Placement, Runs: runs}
	for _, r := range runs {
		out.Seeds = append(out.Seeds, r.Seed)
	}
	daily := func(of func(Result) float64) Mean {
		return meanOf(runs, func(r Result) float64 { return of(r) / r.For.Hours() * 24 })
	}
	out.Throughput = meanOf(runs, Result.Throughput)
	out.Finished = daily(func(r Result) float64 { return float64(r.Finished) })
	out.WastedHours = daily(func(r Result) float64 { return r.WastedHours })
	out.Disturbed = daily(func(r Result) float64 { return r.Disturbed })
	out.Slowed = daily(func(r Result) float64 { return r.Slowed })
	out.Held = daily(func(r Result) float64 { return r.Held })
	out.Moves = daily(func(r Result) float64 { return float64(r.Moves) })
	out.GiB = daily(func(r Result) float64 { return float64(r.Bytes) / (1 << 30) })
	out.Vacate = meanOf(runs, func(r Result) float64 { return r.Vacate.Median })
	out.VacateMost = meanOf(runs, func(r Result) float64 { return r.Vacate.Most })
	out.Turnaround = meanOf(runs, func(r Result) float64 { return r.Turn.Median / 60 })
	out.EventsASec = meanOf(runs, func(r Result) float64 { return float64(r.Events) / r.Took.Seconds() })
	return out
}

// column is one column of a table.
type column struct {
	Name, Unit string
	Of         func(Row) Mean
	Says       string
}

var columns = []column{
	{"throughput", "ranks", func(r Row) Mean { return r.Throughput }, "work done and not lost, as the number of undisturbed ranks that would do it"},
	{"jobs", "/day", func(r Row) Mean { return r.Finished }, "jobs that came to their end"},
	{"wasted", "rank·h/day", func(r Row) Mean { return r.WastedHours }, "work that was done and lost"},
	{"slowed", "owner·s/day", func(r Row) Mean { return r.Slowed }, "owners' loss: how much longer their programs took because guests had CPU time that they wanted"},
	{"shared", "owner·s/day", func(r Row) Mean { return r.Disturbed }, "an owner was there while a guest ran on the machine, or was copied to it or from it"},
	{"held", "owner·s/day", func(r Row) Mean { return r.Held }, "an owner was there while a guest, running or not, had memory on the machine"},
	{"moves", "/day", func(r Row) Mean { return r.Moves }, "guests that went to another host"},
	{"sent", "GiB/day", func(r Row) Mean { return r.GiB }, "memory of guests"},
	{"vacate", "s", func(r Row) Mean { return r.Vacate }, "from an owner's return until no guest is left, where the owner did not go sooner: the median"},
	{"vacate 95 %", "s", func(r Row) Mean { return r.VacateMost }, "nineteen of twenty are quicker"},
	{"turnaround", "min", func(r Row) Mean { return r.Turnaround }, "of jobs, from when they wait: the median"},
}

// String formats three significant digits.
func (m Mean) String() string {
	digits := 0
	switch {
	case m.Mean < 10:
		digits = 2
	case m.Mean < 100:
		digits = 1
	}
	if m.Half == 0 {
		return fmt.Sprintf("%.*f", digits, m.Mean)
	}
	return fmt.Sprintf("%.*f ± %.*f", digits, m.Mean, digits, m.Half)
}

// Table writes rows for people.
func Table(to io.Writer, rows []Row) error {
	t := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	head := []string{"POLICY", "PLACEMENT"}
	for _, c := range columns {
		head = append(head, strings.ToUpper(c.Name)+" "+c.Unit)
	}
	fmt.Fprintln(t, strings.Join(head, "\t"))
	for _, r := range rows {
		cells := []string{r.Policy, r.Placement}
		for _, c := range columns {
			cells = append(cells, c.Of(r).String())
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	return t.Flush()
}

// Against compares the last policy with each of the others, run by run with the same
// seeds; nothing if there are too few.
func Against(rows []Row) []string {
	var out []string
	last := rows[len(rows)-1]
	for _, r := range rows[:len(rows)-1] {
		ratio := func(of func(Result) float64) (string, bool) {
			a, b := make([]float64, len(r.Runs)), make([]float64, len(r.Runs))
			for i := range r.Runs {
				a[i], b[i] = of(last.Runs[i]), of(r.Runs[i])
			}
			i, err := stats.Ratio(a, b, 0.95)
			return fmt.Sprintf("%.4g × (%.4g to %.4g)", i.Value, i.Low, i.High), err == nil
		}
		work, ok := ratio(Result.Throughput)
		if !ok {
			continue
		}
		line := fmt.Sprintf("%s against %s: throughput %s", last.Policy, r.Policy, work)
		if slowed, ok := ratio(func(r Result) float64 { return r.Slowed }); ok {
			line += ", owners slowed " + slowed
		}
		if shared, ok := ratio(func(r Result) float64 { return r.Disturbed }); ok {
			line += ", shared " + shared
		}
		if held, ok := ratio(func(r Result) float64 { return r.Held }); ok {
			line += ", held " + held
		}
		out = append(out, line)
	}
	return out
}

// Page writes rows as a self-contained HTML page.
func Page(to io.Writer, c Config, rows []Row) error {
	type bar struct {
		Policy, Value string
		Width         float64
	}
	type chart struct {
		Name, Unit, Says string
		Bars             []bar
	}
	var charts []chart
	for _, col := range columns {
		most := 0.0
		for _, r := range rows {
			most = max(most, col.Of(r).Mean)
		}
		of := chart{Name: col.Name, Unit: col.Unit, Says: col.Says}
		for _, r := range rows {
			m := col.Of(r)
			of.Bars = append(of.Bars, bar{r.Policy, m.String(), 100 * m.Mean / max(most, 1e-9)})
		}
		charts = append(charts, of)
	}
	c.Machine, c.Work = c.Machine.usual(), c.Work.usual()
	return page.Execute(to, map[string]any{
		"Config": c, "Memory": c.Work.MemoryBytes >> 20, "Charts": charts, "Seeds": rows[0].Seeds, "For": c.For.Round(time.Second), "Owners": c.Source(), "Against": Against(rows),
	})
}

// Source says where the owners' times come from, for people.
func (c Config) Source() string {
	switch o := c.Owners.(type) {
	case Model:
		if o.Daily {
			return o.Name + ", with a daily cycle"
		}
		return o.Name
	case *Trace:
		return fmt.Sprintf("a trace of %d hosts", len(o.Hosts))
	}
	return "the scenario's events"
}

var page = template.Must(template.New("").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Policies for borrowed machines</title>
<style>
body{font:15px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
h2{margin:1.6rem 0 0;font-size:1.05rem}p{margin:.1rem 0 .5rem;color:#555}
table{border-collapse:collapse;width:100%}td{padding:.15rem .5rem .15rem 0;white-space:nowrap}td.bar{width:100%}
.bar div{background:#3b6ea5;height:1rem;border-radius:2px;min-width:1px}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181a1b}p{color:#aaa}.bar div{background:#6fa3d8}}
</style></head><body>
<h1>Policies for borrowed machines</h1>
<p>{{.Config.Hosts}} hosts for {{.For}}, {{.Config.Work.Jobs}} jobs of {{.Config.Work.Ranks}} ranks at a time, {{.Memory}} MiB a guest.
Owners: {{.Owners}}; they count as staying {{.Config.Machine.Grace}} after a host has noticed them, and as away {{.Config.Machine.IdleAfter}} after they have gone. Seeds: {{range $i, $s := .Seeds}}{{if $i}}, {{end}}{{$s}}{{end}}. Means, with their 95 % intervals over the seeds.</p>
{{range .Against}}<p>{{.}}</p>
{{end}}{{range .Charts}}<h2>{{.Name}}, {{.Unit}}</h2><p>{{.Says}}</p><table>
{{range .Bars}}<tr><td>{{.Policy}}</td><td class="bar"><div style="width:{{printf "%.1f" .Width}}%"></div></td><td>{{.Value}}</td></tr>
{{end}}</table>
{{end}}</body></html>
`))
