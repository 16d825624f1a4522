package agent

import (
	"os"
	"testing"

	"pagurus/fleet"
)

// FuzzJournal: whatever is in an order journal is read to promises or to an error, and what is written is read again.
func FuzzJournal(f *testing.F) {
	f.Add([]byte(`{"last_gen":3,"answers":[{"order":{"verb":"copy","host":"h","guest":"j1g0","gen":3,"attempt":1},"outcome":"failed"}]}`))
	f.Add([]byte(`{"last_gen":18446744073709551615,"answers":[{},{},{"outcome":"done"}]}`))
	f.Add([]byte(`{`))
	f.Fuzz(func(t *testing.T, text []byte) {
		l := journal{Dir: t.TempDir()}
		if err := os.WriteFile(l.path("j1g0"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := l.Read("j1g0")
		if err != nil {
			return
		}
		o := fleet.Order{Verb: fleet.Copy, Host: "h", Guest: "j1g0", Gen: p.LastGen, Attempt: 1}
		for range 2 {
			p = p.With(fleet.Report{Order: o, Outcome: fleet.Failed, Cause: "x"}, o.Gen)
		}
		if r, known := p.Answer(o); !known || r.Order != o {
			t.Errorf("a promise is not there: %+v", p)
		}
		if len(p.Answers) > 0 && l.Write("j1g0", p) == nil {
			back, err := l.Read("j1g0")
			if err != nil || len(back.Answers) != len(p.Answers) || back.LastGen != p.LastGen {
				t.Errorf("%+v is read as %+v: %v", p, back, err)
			}
		}
	})
}
