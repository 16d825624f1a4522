package stats

import (
	"math/rand/v2"
	"strings"
	"testing"
)

func TestSentences(t *testing.T) {
	for _, c := range []struct {
		ratio Interval
		sense Sense
		want  string
	}{
		{Interval{1.031, 1.024, 1.039, 0.97, 20}, Slower, "vm is 3.1 % slower than native (97 %: 2.4 to 3.9 %), 20 runs each"},
		{Interval{0.9, 0.85, 0.95, 0.95, 10}, Faster, "vm is 10.0 % slower than native (95 %: 5.0 to 15.0 %), 10 runs each"},
		{Interval{0.9, 0.85, 0.95, 0.95, 10}, Slower, "vm is 10.0 % faster than native (95 %: 5.0 to 15.0 %), 10 runs each"},
		{Interval{1.01, 0.98, 1.04, 0.95, 5}, Slower, "vm and native cannot be told apart: vm is 1.0 % slower (95 %: -2.0 to 4.0 %), 5 runs each"},
	} {
		if got := Sentence("vm", "native", c.ratio, c.sense); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestDoubtsAreSaid(t *testing.T) {
	source := rand.New(rand.NewPCG(1, 2))
	var drifting, double []float64
	for i := range 20 {
		drifting = append(drifting, 10+0.1*float64(i)+0.1*source.NormFloat64())
		double = append(double, 10+float64(i*7%20/13)+0.05*source.NormFloat64())
	}
	for word, samples := range map[string][]float64{"too few": {1, 2, 3}, "drift": drifting, "two kinds": double} {
		if said := strings.Join(Doubts(samples), "; "); !strings.Contains(said, word) {
			t.Errorf("of %v is said %q, nothing of %q", samples, said, word)
		}
	}
	if said := Doubts([]float64{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}); len(said) > 0 {
		t.Errorf("of samples that are all the same is said %q", said)
	}
}

// Good samples, normal or uniform, are rarely doubted.
func TestGoodSamplesAreNotDoubted(t *testing.T) {
	source := rand.New(rand.NewPCG(3, 4))
	for name, draw := range map[string]func() float64{"normal": source.NormFloat64, "uniform": source.Float64} {
		for _, n := range []int{12, 20, 50} {
			const tries = 1000
			doubted := 0
			for range tries {
				s := make([]float64, n)
				for i := range s {
					s[i] = 100 + draw()
				}
				if len(Doubts(s)) > 0 {
					doubted++
				}
			}
			t.Logf("%s, %d samples: %d of %d doubted", name, n, doubted, tries)
			if doubted > tries/25 {
				t.Errorf("%s, %d samples: %d of %d are doubted", name, n, doubted, tries)
			}
		}
	}
}
