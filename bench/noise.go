package bench

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"gonum.org/v1/gonum/stat"

	"pagurus/bench/noise"
	"pagurus/bench/stats"
)

// NoiseName is the name of the file with the noise, beside its record.
const NoiseName = "noise.json"

// Noise is the noise of all cores.
type Noise struct {
	Quantum time.Duration `json:"quantum_ns"`
	Cores   []noise.Core  `json:"cores"` // every quantum, and the possible causes
	// Predicted says how many times longer a step takes in which all ranks wait for the last, by
	// the number of ranks.
	Predicted map[int]stats.Interval `json:"predicted"`
}

// LoadNoise reads the noise. If there is no file, the error is fs.ErrNotExist.
func LoadNoise(file string) (*Noise, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read what noise was found: %w", err)
	}
	var f Noise
	if err := json.Unmarshal(text, &f); err != nil {
		return nil, fmt.Errorf("%s is not what `pagurus bench noise` finds: %w", file, err)
	}
	return &f, nil
}

// draws is how many steps of a job are drawn for a prediction. repeats is how often that is
// repeated for its interval.
const (
	draws   = 400
	repeats = 40
)

// PredictStep returns how many times longer a step of so many ranks takes than one without
// interruption. All ranks wait for the last, as in an Allreduce, and each is interrupted like
// these cores, at its own times. The prediction is drawn from the measured quanta; a step is as
// long as a quantum.
func PredictStep(cores []noise.Core, ranks int, confidence float64, seed uint64) (stats.Interval, error) {
	var slowdowns []float64
	for _, c := range cores {
		best := c.Best()
		for _, q := range c.Quanta {
			slowdowns = append(slowdowns, q/best)
		}
	}
	if len(slowdowns) == 0 || ranks < 1 {
		return stats.Interval{}, fmt.Errorf("nothing was measured that %d ranks could be predicted from", ranks)
	}
	source := rand.New(rand.NewPCG(seed, uint64(ranks)))
	means := make([]float64, repeats)
	for i := range means {
		sum := 0.0
		for range draws {
			last := 0.0
			for range ranks {
				last = max(last, slowdowns[source.IntN(len(slowdowns))])
			}
			sum += last
		}
		means[i] = sum / draws
	}
	slices.Sort(means)
	at := func(p float64) float64 { return stat.Quantile(p, stat.LinInterp, means, nil) }
	return stats.Interval{Value: stat.Mean(means, nil), Low: at((1 - confidence) / 2), High: at((1 + confidence) / 2), Confidence: confidence, Samples: len(slowdowns)}, nil
}
