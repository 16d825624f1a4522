package stats

import (
	"embed"
	"math"
	"strconv"
	"strings"
	"testing"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

//go:embed testdata
var testdata embed.FS

func observations(t *testing.T, name string) (all []float64) {
	t.Helper()
	text, err := testdata.ReadFile("testdata/" + name + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range strings.Fields(string(text)) {
		v, err := strconv.ParseFloat(word, 64)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, v)
	}
	return all
}

// numAcc returns NIST's NumAcc2 to NumAcc4: a middle value, then 500 times one below and one
// above it.
func numAcc(middle, off float64) []float64 {
	all := []float64{middle}
	for range 500 {
		all = append(all, middle-off, middle+off)
	}
	return all
}

// The univariate Statistical Reference Datasets of NIST with their certified values
// (https://www.itl.nist.gov/div898/strd/univ/homepage.html). The tolerances are the digits that
// double precision can keep: NumAcc4 is designed to lose nine, and an interval of ± a deviation
// loses as many.
func TestAgreesWithCertifiedValues(t *testing.T) {
	for _, c := range []struct {
		name      string
		samples   []float64
		mean, dev float64
		relative  float64 // of the deviation
	}{
		{"Lew", observations(t, "lew"), -177.435, 277.332168044316, 1e-13},
		{"Mavro", observations(t, "mavro"), 2.001856, 0.000429123454003053, 1e-11},
		{"Michelso", observations(t, "michelso"), 299.8524, 0.0790105478190518, 1e-11},
		{"NumAcc1", []float64{10000001, 10000003, 10000002}, 10000002, 1, 1e-9},
		{"NumAcc2", numAcc(1.2, 0.1), 1.2, 0.1, 1e-12},
		{"NumAcc3", numAcc(1000000.2, 0.1), 1000000.2, 0.1, 1e-7},
		{"NumAcc4", numAcc(10000000.2, 0.1), 10000000.2, 0.1, 1e-6},
	} {
		got, err := Mean(c.samples, 0.95)
		if err != nil {
			t.Fatal(err)
		}
		n := float64(len(c.samples))
		quantile := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: n - 1}.Quantile(0.975)
		near(t, c.name+": mean", got.Value, c.mean, 1e-14)
		near(t, c.name+": deviation", (got.High-got.Low)/2/quantile*math.Sqrt(n), c.dev, c.relative)
	}
}

func near(t *testing.T, what string, got, want, relative float64) {
	t.Helper()
	if !(math.Abs(got-want) <= relative*math.Abs(want)) {
		t.Errorf("%s is %.16g, published is %.16g", what, got, want)
	}
}

// Wilcox, Introduction to Robust Estimation and Hypothesis Testing, gives for
// the self-awareness data the 20 % trimmed mean 283 and its 95 % interval 160 to
// 405 (deviation 56.1 of 19 samples).
func TestTrimmedMeanAgreesWithWilcox(t *testing.T) {
	s := []float64{77, 87, 88, 114, 151, 210, 219, 246, 253, 262, 296, 299, 306, 376, 428, 515, 666, 1310, 2611}
	got, err := Trimmed(s, 0.2, 0.95)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ got, want float64 }{{got.Value, 283}, {got.Low, 160}, {got.High, 405}} {
		if math.Abs(c.got-c.want) > 1 {
			t.Errorf("%+v, published are 283, 160 and 405", got)
		}
	}
	if _, err := Trimmed(s, 0.5, 0.95); err == nil {
		t.Error("all of a sample was dropped")
	}
	if _, err := Trimmed([]float64{1, 2, 3}, 0.4, 0.95); err == nil {
		t.Error("an interval of one sample was given")
	}
}

// R's help gives for extra sleep by two drugs (Student 1908) t.test's p = 0.07939
// unpaired, and wilcox.test's p = 0.009091 for the paired samples: its normal
// approximation, since two pairs are alike. For the depression scale of Hollander
// and Wolfe it gives 0.03906 (both sides), exactly.
func TestChancesAgreeWithPublishedOnes(t *testing.T) {
	one := []float64{0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0}
	two := []float64{1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4}
	p, err := Welch(one, two)
	if err != nil || math.Abs(p-0.07939) > 5e-6 {
		t.Errorf("Welch: %g, %v", p, err)
	}
	// R: t.test(extra ~ group) has the interval -3.365483 to 0.205483 of the difference.
	power := func(all []float64) (out []float64) {
		for _, v := range all {
			out = append(out, math.Exp(v))
		}
		return out
	}
	ratio, err := RatioOfGroups(power(one), power(two), 0.95)
	if err != nil || math.Abs(math.Log(ratio.Low)+3.365483) > 2e-6 || math.Abs(math.Log(ratio.High)-0.205483) > 2e-6 {
		t.Errorf("Welch's interval is %.6f to %.6f, %v", math.Log(ratio.Low), math.Log(ratio.High), err)
	}
	before := []float64{1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30}
	after := []float64{0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29}
	if p, err = Wilcoxon(before, after); err != nil || math.Abs(p-0.03906) > 5e-6 {
		t.Errorf("Wilcoxon: %g, %v", p, err)
	}
	// 10 pairs, all in one direction: 2 of 1024 cases.
	if p, err = Wilcoxon([]float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, make([]float64, 10)); err != nil || p != 2.0/1024 {
		t.Errorf("Wilcoxon: %g, %v", p, err)
	}
	if p, err = Wilcoxon(one, one); err != nil || p != 1 {
		t.Errorf("Wilcoxon of what does not differ: %g, %v", p, err)
	}
	if _, err = Wilcoxon(one, two[1:]); err == nil {
		t.Error("unpaired samples were paired")
	}
}

// Of ten samples that all rise, Kendall's S is 45 and its variance 10·9·25/18.
func TestTrendOfSteadyRise(t *testing.T) {
	rising := []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	want := 2 * distuv.UnitNormal.CDF(-44/math.Sqrt(125))
	near(t, "chance of a rise", Trend(rising), want, 1e-12)
	if p := Trend([]float64{3, 3, 3, 3, 3}); p != 1 {
		t.Errorf("what stays the same rises with chance %g", p)
	}
}

// The bootstrap's interval of a normal sample's median is close to the theoretical one, 1.2533
// times the mean's.
func TestBootstrapOfMedian(t *testing.T) {
	var s []float64
	const n = 401
	for i := range n {
		s = append(s, distuv.UnitNormal.Quantile((float64(i)+0.5)/n))
	}
	got, err := Resampled(s, 0.95, 1)
	if err != nil {
		t.Fatal(err)
	}
	half := 1.96 * 1.2533 * stat.StdDev(s, nil) / math.Sqrt(n)
	if math.Abs(got.Value) > 1e-12 || math.Abs((got.High-got.Low)/2/half-1) > 0.15 {
		t.Errorf("%+v, theory has ±%.4f", got, half)
	}
	few, _ := Resampled(s[:40], 0.95, 1)
	if again, _ := Resampled(s[:40], 0.95, 1); again != few {
		t.Errorf("%+v, then %+v", few, again)
	}
}
