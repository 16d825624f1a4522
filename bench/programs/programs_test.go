package programs

import (
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"pagurus/bench/stats"
)

func TestReadHPCC(t *testing.T) {
	got, err := ReadHPCC("Begin\nHPL_time=1.25\nPTRANS_GBs=0.5\nMPIRandomAccess_GUPs=0.01\nMPIFFT_Gflops=2\nSuccess=1\n")
	if err != nil || got.Figures["hpl_s"] != 1.25 || got.Figures["ptrans_gbs"] != 0.5 || got.Figures["randomaccess_gups"] != 0.01 || got.Figures["fft_gflops"] != 2 {
		t.Errorf("%v, %v", got, err)
	}
	// The rate is more precise than the time, unless they contradict each other.
	got, err = ReadHPCC("WR11C2R4        3000   128     1     2               0.50              3.584e+01\nWR11C2R4 3000 128 1 2 0.25 60\nHPL_time=0.25\nSuccess=1\n")
	if err != nil || math.Abs(got.Figures["hpl_s"]-(18.0135/35.84+0.25)) > 1e-9 {
		t.Errorf("two solves: %v, %v", got, err)
	}
	for _, bad := range []string{"", "HPL_time=1\nSuccess=0\n", "HPL_time=0\nSuccess=1\n", "HPL_time=1\nMPIRandomAccess_ErrorsFraction=0.5\nSuccess=1\n"} {
		if _, err := ReadHPCC(bad); err == nil {
			t.Errorf("%q is a good end", bad)
		}
	}
	for _, f := range HPCC(Normal, 2, HPCCParts()...).Figures {
		if _, ok := got.Figures[f.Name]; !ok {
			t.Errorf("%s is not read", f.Name)
		}
	}
}

// The duration of a whole program, measured by a shell, counts if its own checks succeeded.
func TestWholeProgramsCount(t *testing.T) {
	for _, output := range []string{"", "some file"} {
		p := HPCC(Normal, 2, "hpl")
		p.Command, p.Output = `printf 'HPL_time=0.001\nSuccess=%s\n' "$GOOD"; sleep 0.2`, output
		if output != "" {
			p.Command = "(" + p.Command + ") >>'some file'"
		}
		p = Whole(p)
		for _, good := range []string{"1", "0"} {
			c := exec.Command("sh", "-c", p.Command)
			c.Dir, c.Env = t.TempDir(), append(os.Environ(), "GOOD="+good)
			text, err := c.Output()
			if err == nil && output != "" {
				text, err = os.ReadFile(filepath.Join(c.Dir, output))
			}
			if err != nil {
				t.Fatal(err)
			}
			got, err := p.Read(string(text))
			if v := got.Figures[p.Figures[0].Name]; (err == nil) != (good == "1") || err == nil && (v < 0.2 || v > 20) {
				t.Errorf("output %q, checks %s: %g, %v", output, good, v, err)
			}
		}
	}
	if _, err := Whole(HPCC(Normal, 2, "hpl")).Read("HPL_time=1\nSuccess=1\n"); err == nil {
		t.Error("how long it took was not said")
	}
}

func TestReadNetPIPE(t *testing.T) {
	const text = "       1 0.500 0.0000125\n    1024 900.5 0.00001\n 4096 800 0.0002\n"
	got, err := ReadNetPIPE(text)
	if err != nil || got.Figures["latency_s"] != 0.0000125 || math.Abs(got.Figures["bandwidth_bps"]-900.5e6) > 1 || len(got.Curves[LatencyCurve]) != 3 {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "one two three\n", "1 0 0\n"} {
		if _, err := ReadNetPIPE(bad); err == nil {
			t.Errorf("%q is a measurement", bad)
		}
	}
}

func TestReadStream(t *testing.T) {
	if got, err := ReadStream("hello\nTRIAD 2e9 sum 1\n"); err != nil || got.Figures["stream_s"] != 0.5 {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "TRIAD 0\n", "TRIAD many\n"} {
		if _, err := ReadStream(bad); err == nil {
			t.Errorf("%q is a rate", bad)
		}
	}
}

func TestReadNPB(t *testing.T) {
	const text = " CG Benchmark Completed.\n Class           =                        A\n Time in seconds =                     1.58\n" +
		" Mop/s total     =                   946.47\n Verification    =               %s\n"
	got, err := ReadNPB(strings.Replace(text, "%s", "SUCCESSFUL", 1))
	if err != nil || got.Figures["npb_s"] != 1.58 {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", strings.Replace(text, "%s", "UNSUCCESSFUL", 1), strings.Replace(text, "%s", "NOT PERFORMED", 1), " Verification = SUCCESSFUL\n"} {
		if _, err := ReadNPB(bad); err == nil {
			t.Errorf("%q is a good end", bad)
		}
	}
}

func TestNPBIsFoundByItsNames(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"cg.A.2", "cg.A.4", "LU.B.x", "readme", "a", "ft.Z.2", "is.S.x"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	all, others, err := NPB(dir, 2)
	var names []string
	for _, p := range all {
		names = append(names, p.Name)
	}
	if err != nil || strings.Join(names, " ") != "LU.B.x cg.A.2 is.S.x" || strings.Join(others, " ") != "cg.A.4" {
		t.Errorf("%q and for others %q, %v", names, others, err)
	}
	if more, others, err := NPB(dir, 4); err != nil || len(more) != 3 || more[1].Command != "./cg.A.4" || strings.Join(others, " ") != "cg.A.2" {
		t.Errorf("for 4 ranks: %+v and for others %q, %v", more, others, err)
	}
	if err := Copy(t.TempDir(), dir, all); err != nil {
		t.Error(err)
	}
	only := t.TempDir()
	if err := os.WriteFile(filepath.Join(only, "bt.B.16"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, _, err := NPB(only, 2); err == nil || !strings.Contains(err.Error(), "bt.B.16") {
		t.Errorf("only one for 16 ranks: %v", err)
	}
	if _, _, err := NPB(t.TempDir(), 2); err == nil {
		t.Error("programs were found in an empty folder")
	}
	if _, _, err := NPB(filepath.Join(dir, "nowhere"), 2); err == nil {
		t.Error("programs were found in no folder")
	}
}

// Any command is executed by a real shell, as a rank executes it.
func TestAnyCommandHasAFigure(t *testing.T) {
	dir := t.TempDir() + "/with 'quotes'"
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	run := func(command string) (string, error) {
		out, err := exec.Command("sh", "-c", command).Output()
		return string(out), err
	}
	p, err := Command(dir, "pwd; sleep 0.05", nil, stats.Slower)
	if err != nil {
		t.Fatal(err)
	}
	text, err := run(p.Command)
	if err != nil || !strings.HasPrefix(text, dir) {
		t.Fatalf("%q, %v", text, err)
	}
	if got, err := p.Read(text); err != nil || got.Figures["app_s"] < 0.05 || got.Figures["app_s"] > 30 {
		t.Errorf("%v, %v", got, err)
	}
	if p, _ = Command(dir, "exit 7", nil, stats.Slower); true {
		if _, err = run(p.Command); err == nil {
			t.Error("a command that failed did not")
		}
	}
	p, err = Command(dir, "echo rate: 42.5 things", regexp.MustCompile(`rate: ([0-9.]+)`), stats.Faster)
	if err != nil {
		t.Fatal(err)
	}
	if text, err = run(p.Command); err != nil {
		t.Fatal(err)
	}
	if got, err := p.Read(text); err != nil || got.Figures["app"] != 42.5 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := p.Read(""); err == nil || !strings.Contains(err.Error(), "printed nothing") {
		t.Errorf("a program that prints nothing: %v", err)
	}
	if _, err := Command(dir, "x", regexp.MustCompile(`rate`), stats.Faster); err == nil {
		t.Error("an expression that finds nothing was taken")
	}
}

// HPL reads its parameters line by line: all lines must exist.
func TestHPCCInputHasAllLines(t *testing.T) {
	for ranks, want := range map[int][2]string{
		2:    {"1            Ps", "2            Qs"},
		12:   {"3            Ps", "4            Qs"},
		1024: {"32           Ps", "32           Qs"},
	} {
		text := HPCC(Size{Rows: 1234, Solves: 2}, ranks, "hpl").Files["hpccinf.txt"]
		lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
		if len(lines) != 36 || !strings.HasPrefix(lines[4], "2 ") || !strings.HasPrefix(lines[5], "1234 1234 ") {
			t.Fatalf("%d lines, the matrix has %q", len(lines), lines[5])
		}
		if lines[10] != want[0] || lines[11] != want[1] {
			t.Errorf("the grid of %d ranks is %q and %q", ranks, lines[10], lines[11])
		}
	}
}

// Every rank has a place in the grid, which is as square as possible: the next number of rows
// that divides the ranks is above their square root.
func TestAGridHasAllRanks(t *testing.T) {
	for ranks := 1; ranks <= 300; ranks++ {
		p, q := grid(ranks)
		if p*q != ranks || p < 1 || p > q {
			t.Errorf("%d ranks are %d × %d", ranks, p, q)
		}
		for rows := p + 1; rows*rows <= ranks; rows++ {
			if ranks%rows == 0 {
				t.Errorf("%d ranks are %d × %d, where %d rows are squarer", ranks, p, q, rows)
			}
		}
	}
}
