package measuring

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pagurus/bench"
)

// What lies beside a record is drawn with it, and what is none is not passed over.
func TestNoiseBesideARecordIsDrawn(t *testing.T) {
	dir := t.TempDir()
	record, beside := filepath.Join(dir, bench.RecordName), filepath.Join(dir, bench.NoiseName)
	if err := (&bench.Record{Spec: bench.Spec{Name: "noise", Targets: []string{"cpu0"}}}).Write(record); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ found, want, refused string }{
		{"", "<h1>noise</h1>", ""},
		{`{"version":1,"quantum_ns":1000000,"cores":[{"cpu":0,"quanta_s":[0.001,0.002],"sources":[{"name":"timer","count":9}]}],"predicted":{"2":{"value":1.5,"low":1.4,"high":1.6}}}`, "1.400 to 1.600", ""},
		{"[]", "", "not what `pagurus bench noise` finds"},
	} {
		if c.found != "" {
			if err := os.WriteFile(beside, []byte(c.found), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		r, err := bench.Load(record)
		if err != nil {
			t.Fatal(err)
		}
		o := asked{report: dir}
		page, err := o.page(r, r.Summarise())
		if c.refused == "" && err != nil || c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)) {
			t.Errorf("%q: %v", c.found, err)
		}
		if !strings.Contains(string(page), c.want) || strings.Contains(string(page), "What interrupted them") != (strings.Contains(c.found, "timer")) {
			t.Errorf("%q gives\n%s", c.found, string(page))
		}
	}
}
