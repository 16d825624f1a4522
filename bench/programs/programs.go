// Package programs knows the measured programs: how they are given their parameters, and what
// they print. They are real programs: those of Debian's hpcc and netpipe-openmpi, the NAS
// Parallel Benchmarks as a user has built them, and any other command.
//
// It must not know where they run. Its tests read outputs of such programs.
package programs

import (
	_ "embed" // of sources
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"pagurus/bench"
	"pagurus/bench/stats"
)

// Size says how much work a program does.
type Size struct {
	Rows         int // of HPL's matrix
	Solves       int // of HPL, 1 to 20
	StreamLength int // elements of each of STREAM's three vectors
	StreamTimes  int
	MessageBytes int // of NetPIPE's longest messages
	Messages     int // of each of its sizes
}

// The known sizes. Emulated guests take some fifty times as long for the same size.
var (
	Normal   = Size{3000, 1, 4_000_000, 40, 1 << 20, 200}
	Emulated = Size{600, 1, 1_000_000, 10, 1 << 16, 40}
)

// StreamSource is the source of STREAM's triad for any number of ranks, in C.
//
//go:embed source/stream.c
var StreamSource []byte

// StreamName is the name under which it is compiled, in the folder where programs run.
const StreamName = "stream"

// BusySource is the source of a busy, coupled job that says how long it stood still, in C; see
// drive.Gaps. Its argument is how many MiB each rank changes.
//
//go:embed source/busy.c
var BusySource []byte

// BusyName is the name under which it is compiled.
const BusyName = "busy"

// ofHPCC has the figures of HPCC's parts. HPCC always runs all its tests.
var ofHPCC = map[string]bench.Figure{
	"hpl":          {Name: "hpl_s", Says: "HPL time", Unit: "s", Sense: stats.Slower},
	"randomaccess": {Name: "randomaccess_gups", Says: "RandomAccess rate", Unit: "GUP/s", Sense: stats.Faster},
	"ptrans":       {Name: "ptrans_gbs", Says: "PTRANS rate", Unit: "GB/s", Sense: stats.Faster},
	"fft":          {Name: "fft_gflops", Says: "FFT rate", Unit: "GFlop/s", Sense: stats.Faster},
}

// HPCCParts returns the parts of HPCC that have a figure.
func HPCCParts() []string { return slices.Sorted(maps.Keys(ofHPCC)) }

// HPCC returns HPCC for so many ranks, with the figures of the named parts.
func HPCC(size Size, ranks int, parts ...string) bench.Program {
	p := bench.Program{
		Name: "hpcc", Command: "hpcc", Output: "hpccoutf.txt", Read: ReadHPCC,
		// The tests beside HPL cannot be omitted. This sets their size: random access over TCP
		// takes long.
		Files: map[string]string{"hpccinf.txt": hpccInput(size, ranks), "hpccmemf.txt": "Process=1\n"},
	}
	for _, part := range parts {
		p.Figures = append(p.Figures, ofHPCC[part])
	}
	return p
}

// Stream returns STREAM's triad on all ranks at once.
func Stream(size Size) bench.Program {
	return bench.Program{
		Name: "stream", Command: fmt.Sprintf("./%s %d %d", StreamName, size.StreamLength, size.StreamTimes), Read: ReadStream,
		Figures: []bench.Figure{{Name: "stream_s", Says: "STREAM time for a GB", Unit: "s", Sense: stats.Slower}},
	}
}

// Curves of NetPIPE.
const (
	LatencyCurve   = "latency"   // seconds over bytes
	BandwidthCurve = "bandwidth" // bits a second over bytes
)

// NetPIPE returns a ping-pong over MPI, from single bytes up.
func NetPIPE(size Size) bench.Program {
	return bench.Program{
		Name: "netpipe", Output: "np.out", Read: ReadNetPIPE,
		Command: fmt.Sprintf("NPopenmpi -l 1 -u %d -p 0 -n %d -o np.out", size.MessageBytes, size.Messages),
		Figures: []bench.Figure{
			{Name: "latency_s", Says: "NetPIPE latency", Unit: "s", Sense: stats.Slower},
			{Name: "bandwidth_bps", Says: "NetPIPE bandwidth", Unit: "bit/s", Sense: stats.Faster},
		},
	}
}

// npbName matches the names of NAS Parallel Benchmarks. Those before 3.4 are for one number of
// processes each, later ones for any.
var npbName = regexp.MustCompile(`^(bt|cg|dt|ep|ft|is|lu|mg|sp)\.([A-FSW])\.(\d+|x)$`)

// NPB returns the NAS Parallel Benchmarks in a folder for so many ranks, and the names of those
// for other numbers.
func NPB(folder string, ranks int) (all []bench.Program, others []string, err error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, nil, fmt.Errorf("look for the NAS Parallel Benchmarks: %w", err)
	}
	for _, e := range entries {
		m := npbName.FindStringSubmatch(strings.ToLower(e.Name()[:min(2, len(e.Name()))]) + e.Name()[min(2, len(e.Name())):])
		if m == nil {
			continue
		}
		if m[3] != "x" && m[3] != strconv.Itoa(ranks) {
			others = append(others, e.Name())
			continue
		}
		all = append(all, bench.Program{
			Name: e.Name(), Command: "./" + e.Name(), Read: ReadNPB,
			Figures: []bench.Figure{{Name: "npb_s", Says: strings.ToUpper(m[1]) + " class " + m[2] + " time", Unit: "s", Sense: stats.Slower}},
		})
	}
	if len(all) == 0 {
		err = fmt.Errorf("%s has no NAS Parallel Benchmark for %d ranks: they are called as cg.A.%d or cg.A.x", folder, ranks, ranks)
		if len(others) > 0 {
			err = fmt.Errorf("%w; for other numbers of ranks are %s", err, strings.Join(others, ", "))
		}
	}
	return all, others, err
}

// AppName is the name of a user's own command.
const AppName = "app"

// tookMark precedes the duration of a command, in nanoseconds.
const tookMark = "pagurus-bench-took"

// Command returns a program for any shell command. Its figure is the match of the expression's
// first group in the output of rank 0, or without an expression the command's duration.
func Command(folder, command string, figure *regexp.Regexp, sense stats.Sense) (bench.Program, error) {
	p := bench.Program{Name: AppName, Figures: []bench.Figure{{Name: "app_s", Says: "time of " + command, Unit: "s", Sense: stats.Slower}}}
	into := "cd " + quoted(folder) + " && "
	if figure == nil {
		p.Command = "sh -c " + quoted(into+timed(command, ""))
		p.Read = readTook
		return p, nil
	}
	if figure.NumSubexp() < 1 {
		return p, fmt.Errorf("%q has no group: put what finds the number in parentheses", figure)
	}
	p.Command = "sh -c " + quoted(into+command)
	p.Figures[0] = bench.Figure{Name: "app", Says: "figure of " + command, Sense: sense}
	p.Read = func(text string) (bench.Result, error) {
		m := figure.FindStringSubmatch(text)
		if m == nil {
			return bench.Result{}, fmt.Errorf("%q is not in what it printed: %s", figure, ending(text))
		}
		v, err := strconv.ParseFloat(m[1], 64)
		return one("app", v), err
	}
	return p, nil
}

func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// Copy copies the programs from one folder into another.
func Copy(into, from string, programs []bench.Program) error {
	var errs []error
	for _, p := range programs {
		text, err := os.ReadFile(filepath.Join(from, p.Name))
		if err == nil {
			err = os.WriteFile(filepath.Join(into, p.Name), text, 0o755)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
