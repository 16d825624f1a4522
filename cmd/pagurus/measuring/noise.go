package measuring

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"pagurus/fleet"
	"pagurus/measure/bench"
	"pagurus/measure/noise"
	"pagurus/measure/stats"
	"pagurus/show/cli"
	"pagurus/show/view"
)

// noiseRecord is what a measurement of noise leaves.
type noiseRecord struct {
	Version int           `json:"version"`
	Begun   time.Time     `json:"begun"`
	Machine bench.Machine `json:"machine"`
	Quantum time.Duration `json:"quantum_ns"`
	CutOff  bool          `json:"cut_off,omitempty"` // of the last core less was measured than asked for, of others nothing
	Cores   []noise.Core  `json:"cores"`
	// Predicted is how many times longer a step takes in which all ranks wait for
	// the last, by their number.
	Predicted map[int]stats.Interval `json:"predicted"`
}

// sizes are the jobs that noise is predicted for.
var sizes = []int{2, 4, 8, 16, 32, 64}

func noiseCommand(std Streams) *cobra.Command {
	cores, report, lasts, confidence := "", "", 5*time.Second, 0.97
	cmd := &cobra.Command{
		Use:   "noise",
		Short: "Measure what interrupts programs on this machine's cores",
		Long: `Noise does a fixed quantum of work again and again on each core, one after the
other, and says what was taken from it and by whom. From that it predicts how much
longer a step of 2 to 64 ranks takes if all wait for the last, as in an Allreduce:
the more ranks, the more likely it is that one of them is interrupted. It takes
all of a core meanwhile.`,
		Example: "  pagurus bench noise\n  pagurus bench noise --cores 2-15 --for 30s --report bench/noise",
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			chosen, err := noise.CPUs()
			if cores != "" {
				chosen, err = fleet.ParseCPUs(cores)
			}
			if err != nil {
				return fmt.Errorf("--cores: %w", err)
			}
			if lasts < 10*noise.Quantum || confidence <= 0.5 || confidence >= 1 {
				return errors.New("--for has to be at least 10ms, and --confidence between 0.5 and 1")
			}
			r := noiseRecord{Version: bench.Version, Begun: time.Now().UTC(), Machine: bench.Here(), Quantum: noise.Quantum, Predicted: map[int]stats.Interval{}}
			for _, c := range chosen {
				found, err := noise.Probe(ctx, c, lasts)
				if r.CutOff = ctx.Err() != nil; err == nil {
					r.Cores = append(r.Cores, found)
				} else if !r.CutOff || len(r.Cores) == 0 {
					return ended(ctx, err)
				}
				if r.CutOff {
					break
				}
			}
			for _, n := range sizes {
				if r.Predicted[n], err = noise.Predict(r.Cores, n, confidence, 1); err != nil {
					return err
				}
			}
			asJSON, _ := cmd.Flags().GetBool("json")
			if err := std.noise(r, asJSON, report); err != nil {
				return err
			}
			return ended(ctx, nil)
		},
	}
	cmd.Flags().StringVar(&cores, "cores", "", "cores to probe, as 0-3,8 (default: all that this program may use)")
	cmd.Flags().DurationVar(&lasts, "for", lasts, "how long to probe each core")
	cmd.Flags().Float64Var(&confidence, "confidence", confidence, "of the predictions' intervals")
	cmd.Flags().StringVar(&report, "report", "", "folder for the record (JSON)")
	return cmd
}

// mostSources is how many sources of a core are printed.
const mostSources = 5

// noise prints what was found, and keeps it.
func (s Streams) noise(r noiseRecord, asJSON bool, report string) (err error) {
	if asJSON {
		err = json.NewEncoder(s.Out).Encode(r)
	} else {
		_, err = fmt.Fprint(s.Out, noiseText(r))
	}
	if err != nil || report == "" {
		return err
	}
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return bench.Whole(filepath.Join(report, "noise.json"), append(text, '\n'))
}

func noiseText(r noiseRecord) string {
	cores := view.Table{Columns: []string{"CORE", "QUANTA", "AT BEST", "LOST", "LONGEST"}}
	sources := view.Table{Columns: []string{"CORE", "SOURCE", "TIMES", "TIME"}, Empty: "Nothing interrupted them that the kernel counts."}
	lengths := view.Table{Columns: []string{"CORE", "INTERRUPTED FOR", "QUANTA"}}
	for _, c := range r.Cores {
		name := fmt.Sprint(c.CPU)
		cores.Rows = append(cores.Rows, []string{name, fmt.Sprint(len(c.Quanta)), amount(c.Best(), "s"), fmt.Sprintf("%.2f %%", 100*c.Lost()), amount(c.Longest(), "s")})
		for i, src := range c.Sources {
			if i == mostSources {
				break
			}
			took := "-"
			if src.Seconds > 0 {
				took = amount(src.Seconds, "s")
			}
			sources.Rows = append(sources.Rows, []string{name, src.Name, fmt.Sprint(src.Count), took})
		}
		for _, b := range c.Histogram() {
			lengths.Rows = append(lengths.Rows, []string{name, "up to " + amount(b.To, "s"), fmt.Sprint(b.Count)})
		}
	}
	steps := view.Table{Columns: []string{"RANKS", "A STEP TAKES", "INTERVAL"}}
	for _, n := range sizes {
		p := r.Predicted[n]
		steps.Rows = append(steps.Rows, []string{fmt.Sprint(n), fmt.Sprintf("%.3f × its best", p.Value), fmt.Sprintf("%.3f to %.3f", p.Low, p.High)})
	}
	return fmt.Sprintf("%s\n%s\n%s\nPredicted, if each rank's core is interrupted as these, and a step is %s of work:\n%s",
		cores.Text(), lengths.Text(), sources.Text(), r.Quantum, steps.Text())
}
