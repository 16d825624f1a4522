package stats

import (
	"math"
	"testing"
)

// The NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.5.2, gives for
// ZARR13.DAT the mean 9.261460 with the 95 % interval 9.258242 to 9.264679 of
// 195 samples with standard deviation 0.022789. Samples with that mean and
// deviation have that interval.
func TestMeanAgreesWithNIST(t *testing.T) {
	const n, mean, dev = 195, 9.261460, 0.022789
	samples := make([]float64, n)
	side := dev * math.Sqrt(float64(n-1)/float64(n-1)) // n-1 samples off by ±side, one at the mean
	for i := range samples[:n-1] {
		samples[i] = mean + side*float64(1-2*(i%2))
	}
	samples[n-1] = mean
	got, err := Mean(samples, 0.95)
	if err != nil {
		t.Fatal(err)
	}
	for what, pair := range map[string][2]float64{"mean": {got.Value, 9.261460}, "low": {got.Low, 9.258242}, "high": {got.High, 9.264679}} {
		if math.Abs(pair[0]-pair[1]) > 2e-6 {
			t.Errorf("%s is %.6f, NIST has %.6f", what, pair[0], pair[1])
		}
	}
}

func TestRatioOfPairs(t *testing.T) {
	got, err := Ratio([]float64{2, 4, 8, 16}, []float64{1, 2, 4, 8}, 0.95)
	if err != nil || math.Abs(got.Value-2) > 1e-12 || math.Abs(got.High-got.Low) > 1e-9 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := Ratio([]float64{1, 0}, []float64{1, 1}, 0.95); err == nil {
		t.Error("a ratio of nothing was given")
	}
	if _, err := Ratio([]float64{1}, []float64{1, 2}, 0.95); err == nil {
		t.Error("unpaired samples were paired")
	}
	if _, err := Mean([]float64{1}, 0.95); err == nil {
		t.Error("an interval of one sample was given")
	}
}

func TestRatiosThatMakeNoSense(t *testing.T) {
	for _, bad := range [][2][]float64{{{1}, {1, 2}}, {{0, 1}, {1, 1}}, {{1}, {1}}} {
		if _, err := Ratio(bad[0], bad[1], 0.95); err == nil {
			t.Errorf("%v has a ratio", bad)
		}
	}
}

// For n = 10 and 95 % the interval runs from the second to the ninth sample
// (Conover, table A3: P = 0.9785).
func TestMedianByOrder(t *testing.T) {
	got, err := Median([]float64{10, 1, 9, 2, 8, 3, 7, 4, 6, 5}, 0.95)
	if err != nil || got.Value != 5.5 || got.Low != 2 || got.High != 9 {
		t.Errorf("%+v, %v", got, err)
	}
}

// Of ten trials: R's binom.test(8, 10) gives 0.4439 to 0.9748, binom.test(10, 10)
// 0.6915 to 1, binom.test(0, 10) 0 to 0.3085.
func TestProportion(t *testing.T) {
	for hits, want := range map[int][2]float64{8: {0.4439045, 0.9747893}, 10: {0.6915029, 1}, 0: {0, 0.3084971}} {
		got, err := Proportion(hits, 10, 0.95)
		if err != nil || got.Value != float64(hits)/10 || math.Abs(got.Low-want[0]) > 1e-6 || math.Abs(got.High-want[1]) > 1e-6 || got.Samples != 10 {
			t.Errorf("%d of 10: %+v, %v", hits, got, err)
		}
	}
	for _, none := range [][2]int{{0, 0}, {3, 2}, {-1, 2}} {
		if _, err := Proportion(none[0], none[1], 0.95); err == nil {
			t.Errorf("%v is a share", none)
		}
	}
}
