package sim

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the scenarios' logs again")

// Every scenario gives its golden log.
func TestScenarios(t *testing.T) {
	folders, err := filepath.Glob("testdata/*/" + worldFile)
	if err != nil || len(folders) < 10 {
		t.Fatalf("%d scenarios, %v", len(folders), err)
	}
	for _, f := range folders {
		folder := filepath.Dir(f)
		t.Run(filepath.Base(folder), func(t *testing.T) {
			c, err := ReadScenario(folder)
			if err != nil {
				t.Fatal(err)
			}
			var log strings.Builder
			c.Strict, c.Log = true, func(line string) { log.WriteString(strings.TrimRight(line, " ") + "\n") }
			r, err := Run(c)
			if err != nil {
				t.Fatal(err)
			}
			if r.Lost > 0 && c.Machine.Lease == 0 {
				t.Errorf("%d guests were lost", r.Lost)
			}
			golden := filepath.Join(folder, goldenFile)
			if *update {
				if err := os.WriteFile(golden, []byte(log.String()), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if log.String() == string(want) {
				return
			}
			old, now := strings.Split(string(want), "\n"), strings.Split(log.String(), "\n")
			for i := range now {
				if i >= len(old) || old[i] != now[i] {
					t.Fatalf("it goes another way, see go test -update; line %d: %s", i+1, now[i])
				}
			}
			t.Fatalf("it ends after line %d", len(now))
		})
	}
}

// Errors name the line.
func TestNonsense(t *testing.T) {
	for text, want := range map[string]string{
		"":                                     "is empty",
		"a,1":                                  "line 1: 2 columns",
		"a,1,2\nb,x,2":                         `line 2: "x" is not a time`,
		"host,from,to\n\n# owners\na,5,5":      "line 4: the owner goes at 5s",
		"a,5,9\na,8,10":                        "line 2: the owner of a comes at 8s, before they have gone at 9s",
		"a,5,9,2":                              `line 1: "2" is not a load`,
		"a,NaN,9":                              "is not a time",
		"a,-1,9":                               "is not a time",
		"a,1,9e99":                             "is not a time",
		",1,2":                                 "line 1: the host has no name",
		"\"a,1,2":                              "line",
		"{\"metadata\": {\n\"gap_seconds\": }": "line 2",
		`{"data": [0, 1]}`:                     "metadata.gap_seconds is 0",
		`{"metadata": {"gap_seconds": 60}, "data": [0, 2]}`:   "sample 1 of instance 0 is 2",
		`{"metadata": {"gap_seconds": 60}, "data": "x"}`:      "data is not a list of samples",
		`{"metadata": {"gap_seconds": 1e300}, "data": [0]}`:   "gap_seconds is 1e+300",
		`{"metadata": {"gap_seconds": 3e8}, "data": [0,0,0]}`: "longer than any trace",
	} {
		if _, err := ReadTrace(strings.NewReader(text), "owners"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	for text, want := range map[string]string{
		"hosts":                "line 1: hosts has one value",
		"for 1h\nhosts -1":     `line 2: hosts cannot be "-1"`,
		"hsots 3":              `line 1: there is no setting "hsots"`,
		"for 1h\n\nmemory 1XB": `line 3: memory cannot be "1XB"`,
		"owners nd08":          `there is no model "nd08"`,
		"policy none":          "there are stay, suspend",
		"hosts 3":              "has to say hosts and for",
	} {
		if err := new(Config).world([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	for text, want := range map[string]string{
		"1s host1":           "line 1: an event is when",
		"\nx host1 cut":      `line 2: "x" is not a time`,
		"1s host9 cut":       "there is no host host9: they are host1 to host3",
		"1s host01 cut":      "there is no host host01",
		"1s host1 explodes":  `"explodes" cannot happen`,
		"1s host1 returns":   "say how many CPUs",
		"1s host1 returns x": `"x" is not a number of CPUs`,
		"1s host1 cut now":   `"now" is one word too many`,
	} {
		c := Config{Hosts: 3}
		if err := c.events([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// FuzzTrace: any file is read or refused.
func FuzzTrace(f *testing.F) {
	f.Add("host,from,to\na,1,2\n")
	f.Add(`{"metadata": {"gap_seconds": 60}, "data": [0, 1, 1, 0]}`)
	f.Fuzz(func(t *testing.T, text string) {
		trace, err := ReadTrace(strings.NewReader(text), "owners")
		if err != nil {
			return
		}
		for _, host := range trace.Hosts {
			for i, v := range host {
				if v.To <= v.From || v.From < 0 || i > 0 && v.From < host[i-1].To || !(v.Load >= 0 && v.Load <= 1) {
					t.Fatalf("visit %d is %+v", i, v)
				}
			}
		}
	})
}
