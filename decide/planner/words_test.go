package planner

import "testing"

func TestWords(t *testing.T) {
	for got, want := range map[string]string{
		counted(0, "guest"): "0 guests", counted(1, "guest"): "1 guest", counted(2, "guest"): "2 guests",
		plural(1, "this", "these"): "this", plural(0, "this", "these"): "these",
		orNone(""): `""`, orNone("j1"): "j1",
	} {
		if got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}
