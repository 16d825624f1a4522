package light

import (
	"bufio"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// hpccInput is the input of HPCC for two processes and a matrix of n rows.
func hpccInput(n int) string {
	return fmt.Sprintf(`HPLinpack benchmark input file
Pagurus
HPL.out      output file name (if any)
8            device out (6=stdout,7=stderr,file)
1            # of problems sizes (N)
%d           Ns
1            # of NBs
128          NBs
0            PMAP process mapping (0=Row-,1=Column-major)
1            # of process grids (P x Q)
1            Ps
2            Qs
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
`, n)
}

// readHPCC gives how long HPL took, and the time of STREAM's triad on all ranks,
// in seconds for a GB.
func readHPCC(text string) (map[string]float64, error) {
	values := map[string]float64{}
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		name, value, ok := strings.Cut(lines.Text(), "=")
		if v, err := strconv.ParseFloat(value, 64); ok && err == nil {
			values[name] = v
		}
	}
	hpl, stream := values["HPL_time"], values["StarSTREAM_Triad"]
	if values["Success"] != 1 || hpl <= 0 || stream <= 0 {
		return nil, fmt.Errorf("HPCC came to no good end: %q", text)
	}
	return map[string]float64{"hpl_s": hpl, "stream_s": 1 / stream}, nil
}

// readLatency gives NetPIPE's time of the shortest message one way, in seconds.
func readLatency(text string) (map[string]float64, error) {
	rows, err := readNetPIPE(text)
	if err != nil {
		return nil, err
	}
	return map[string]float64{"latency_s": rows[0].took}, nil
}

// readBandwidth gives NetPIPE's best throughput, in bits a second.
func readBandwidth(text string) (map[string]float64, error) {
	rows, err := readNetPIPE(text)
	if err != nil {
		return nil, err
	}
	best := 0.0
	for _, r := range rows {
		best = max(best, r.rate)
	}
	return map[string]float64{"bandwidth": best}, nil
}

// sent is what NetPIPE found of messages of one size: bits a second, and seconds.
type sent struct{ rate, took float64 }

// readNetPIPE gives all that it found, the shortest messages first.
func readNetPIPE(text string) (rows []sent, err error) {
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) != 3 {
			continue
		}
		_, err1 := strconv.Atoi(words[0])
		rate, err2 := strconv.ParseFloat(words[1], 64)
		took, err3 := strconv.ParseFloat(words[2], 64)
		if err := errors.Join(err1, err2, err3); err != nil || rate <= 0 || took <= 0 {
			return nil, fmt.Errorf("NetPIPE wrote %q", lines.Text())
		}
		rows = append(rows, sent{rate * 1e6, took})
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("NetPIPE measured nothing: %q", text)
	}
	return rows, nil
}

// readJacobi gives how long the solver took.
func readJacobi(text string) (map[string]float64, error) {
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		if words := strings.Fields(lines.Text()); len(words) > 1 && words[0] == "SECONDS" {
			took, err := strconv.ParseFloat(words[1], 64)
			return map[string]float64{"solver_s": took}, err
		}
	}
	return nil, fmt.Errorf("the solver did not say how long it took: %q", text)
}
