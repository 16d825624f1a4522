package words

import "testing"

func TestWords(t *testing.T) {
	for got, want := range map[string]string{
		Counted(0, "guest"): "0 guests", Counted(1, "guest"): "1 guest", Counted(2, "guest"): "2 guests",
		Plural(1, "this", "these"): "this", Plural(0, "this", "these"): "these",
		OrNone(""): `""`, OrNone("j1"): "j1",
	} {
		if got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}
