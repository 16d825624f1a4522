package programs

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"pagurus/bench"
)

func one(name string, v float64) bench.Result {
	return bench.Result{Figures: map[string]float64{name: v}}
}

// endingBytes is how many bytes of a program's output are quoted.
const endingBytes = 400

// ending returns the end of a program's output, for people.
func ending(text string) string {
	text = strings.TrimSpace(text)
	if text == "" {
		return "it printed nothing"
	}
	return fmt.Sprintf("%q", text[max(0, len(text)-endingBytes):])
}

// mostErrors is the share of random access's updates that may be wrong, by its rules.
const mostErrors = 0.01

// ReadHPCC reads HPCC's results: the duration of all of HPL's solves, and the rates of the other
// tests. They count only if HPCC's own checks succeeded.
func ReadHPCC(text string) (bench.Result, error) {
	values, solves := map[string]float64{}, 0.0
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		// HPL's own table: variant, N, NB, P, Q, seconds, Gflops.
		if words := strings.Fields(lines.Text()); len(words) == 7 && strings.HasPrefix(words[0], "WR") {
			solves += solve(words)
		}
		name, value, ok := strings.Cut(lines.Text(), "=")
		if v, err := strconv.ParseFloat(value, 64); ok && err == nil {
			values[name] = v
		}
	}
	if values["Success"] != 1 || values["HPL_time"] <= 0 {
		return bench.Result{}, fmt.Errorf("HPCC's own checks did not go well: %s", ending(text))
	}
	if wrong := values["MPIRandomAccess_ErrorsFraction"]; wrong > mostErrors {
		return bench.Result{}, fmt.Errorf("%.1f %% of RandomAccess's updates went astray", 100*wrong)
	}
	return bench.Result{Figures: map[string]float64{
		"hpl_s": max(solves, values["HPL_time"]), "randomaccess_gups": values["MPIRandomAccess_GUPs"],
		"ptrans_gbs": values["PTRANS_GBs"], "fft_gflops": values["MPIFFT_Gflops"],
	}}, nil
}

// solve returns the duration in a line of HPL's table, in seconds. The table has it in
// hundredths, which is coarse for a solve of less than a second. It also has the rate in (2/3 N
// + 3/2) N² billion operations per second, with five digits (HPL_pdtest of HPL 2.3). The rate is
// used if both agree.
func solve(words []string) float64 {
	n, err1 := strconv.ParseFloat(words[1], 64)
	took, err2 := strconv.ParseFloat(words[5], 64)
	rate, err3 := strconv.ParseFloat(words[6], 64)
	if errors.Join(err1, err2) != nil {
		return 0
	}
	const hundredth = 0.01
	if fine := n * n * (2.0/3*n + 1.5) / 1e9 / rate; err3 == nil && math.Abs(fine-took) < hundredth {
		return fine
	}
	return took
}

// ReadStream reads how long STREAM's triad takes for a GB.
func ReadStream(text string) (bench.Result, error) {
	rate, err := Named(text, "TRIAD")
	if err != nil {
		return bench.Result{}, err
	}
	return one("stream_s", 1e9/rate), nil
}

// Named returns the positive number after a word at the beginning of a line.
func Named(text, word string) (float64, error) {
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		if words := strings.Fields(lines.Text()); len(words) > 1 && words[0] == word {
			v, err := strconv.ParseFloat(words[1], 64)
			if err == nil && !(v > 0) {
				err = fmt.Errorf("the program said %q", lines.Text())
			}
			return v, err
		}
	}
	return 0, fmt.Errorf("the program did not say its %s: %s", word, ending(text))
}

// ReadNetPIPE reads the time of the shortest message one way, the best rate, and both for every
// size.
func ReadNetPIPE(text string) (bench.Result, error) {
	got := bench.Result{Figures: map[string]float64{}, Curves: map[string][]bench.Point{}}
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) != 3 {
			continue
		}
		size, err1 := strconv.Atoi(words[0])
		rate, err2 := strconv.ParseFloat(words[1], 64) // Mbit/s
		took, err3 := strconv.ParseFloat(words[2], 64)
		if err := errors.Join(err1, err2, err3); err != nil || rate <= 0 || took <= 0 {
			return bench.Result{}, fmt.Errorf("NetPIPE wrote %q", lines.Text())
		}
		if len(got.Curves) == 0 {
			got.Figures["latency_s"] = took
		}
		got.Figures["bandwidth_bps"] = max(got.Figures["bandwidth_bps"], rate*1e6)
		got.Curves[LatencyCurve] = append(got.Curves[LatencyCurve], bench.Point{X: float64(size), Y: took})
		got.Curves[BandwidthCurve] = append(got.Curves[BandwidthCurve], bench.Point{X: float64(size), Y: rate * 1e6})
	}
	if len(got.Curves) == 0 {
		return bench.Result{}, fmt.Errorf("NetPIPE measured nothing: %s", ending(text))
	}
	return got, nil
}

// ReadNPB reads how long a NAS Parallel Benchmark took. It counts only if its own verification
// succeeded.
func ReadNPB(text string) (bench.Result, error) {
	values := map[string]string{}
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), "="); ok {
			values[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	verified, said := values["Verification"]
	if !said {
		return bench.Result{}, fmt.Errorf("it did not say whether its result is right: %s", ending(text))
	}
	if verified != "SUCCESSFUL" {
		return bench.Result{}, fmt.Errorf("its result is wrong, it says: verification %s", verified)
	}
	took, err := strconv.ParseFloat(values["Time in seconds"], 64)
	if err != nil {
		return bench.Result{}, fmt.Errorf("it did not say how long it took: %s", ending(text))
	}
	return one("npb_s", took), nil
}

// readTook reads how long a command took.
func readTook(text string) (bench.Result, error) {
	ns, err := Named(text, tookMark)
	return one("app_s", ns/1e9), err
}

// grid arranges processes in p rows and q columns: all of them, as square as possible and never
// taller than wide, as HPL prefers.
func grid(ranks int) (p, q int) {
	for p = int(math.Sqrt(float64(ranks))); ranks%p != 0; p-- {
	}
	return p, ranks / p
}

// hpccInput is the input of HPCC for so many processes.
func hpccInput(size Size, ranks int) string {
	p, q := grid(ranks)
	return fmt.Sprintf(`HPLinpack benchmark input file
Pagurus
HPL.out      output file name (if any)
8            device out (6=stdout,7=stderr,file)
%d           # of problems sizes (N)
%s           Ns
1            # of NBs
128          NBs
0            PMAP process mapping (0=Row-,1=Column-major)
1            # of process grids (P x Q)
%-12d Ps
%-12d Qs
16.0         threshold
1            # of panel fact
2            PFACTs (0=left, 1=Crout, 2=Right)
1            # of recursive stopping criterium
4            NBMINs (>= 1)
1            # of panels in recursion
2            NDIVs
1            # of recursive panel fact.
1            RFACTs (0=left, 1=Crout, 2=Right)
1            # of broadcast
1            BCASTs (0=1rg,1=1rM,2=2rg,3=2rM,4=Lng,5=LnM)
1            # of lookahead depth
1            DEPTHs (>=0)
2            SWAP (0=bin-exch,1=long,2=mix)
64           swapping threshold
0            L1 in (0=transposed,1=no-transposed) form
0            U  in (0=transposed,1=no-transposed) form
1            Equilibration (0=no,1=yes)
8            memory alignment in double (> 0)
##### This line is passed over. What follows is of PTRANS.
0            Number of additional problem sizes for PTRANS
0            values of N
0            number of additional blocking sizes for PTRANS
0            values of NB
`, size.Solves, strings.Repeat(fmt.Sprint(size.Rows, " "), size.Solves), p, q)
}
