package kstate

import "testing"

func TestRowsAreWhole(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range Rows() {
		if r.Object == "" || r.Name == "" || r.Fate == "" || r.Case == "" {
			t.Errorf("%+v is not whole", r)
		}
		if (r.Fate == Refused || r.Fate == Differs) && r.Note == "" {
			t.Errorf("%s of %s is %s, and nothing says what to do", r.Name, r.Object, r.Fate)
		}
		if key := r.Object + " " + r.Name; seen[key] {
			t.Errorf("%s is there twice", key)
		} else {
			seen[key] = true
		}
	}
}
