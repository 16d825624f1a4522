package host

import (
	"errors"
	"testing"

	"pagurus/fleet"
)

// TestClaim: one that lives is found, of another what is left is destroyed, and after an
// error the ID is free.
func TestClaim(t *testing.T) {
	var all Guests[bool]
	destroyed, wrong := 0, error(nil)
	claim := func() (*bool, error) {
		release, g, err := all.Claim(t.Context(), "g1", func(g *bool) bool { return *g }, func(fleet.GuestID) error { destroyed++; return wrong })
		if (release == nil) != (err != nil) {
			t.Fatalf("with the error %v the ID is locked: %v", err, release != nil)
		}
		if release != nil {
			release()
		}
		return g, err
	}
	if g, err := claim(); g != nil || err != nil || destroyed != 1 {
		t.Errorf("none is here: %v, %v, destroyed %d times", g, err, destroyed)
	}
	lives := true
	if err := all.Add("g1", &lives, func() {}); err != nil {
		t.Fatal(err)
	}
	if g, err := claim(); g != &lives || err != nil || destroyed != 1 {
		t.Errorf("one is here: %v, %v, destroyed %d times", g, err, destroyed)
	}
	lives, wrong = false, errors.New("no")
	if _, err := claim(); !errors.Is(err, wrong) || destroyed != 2 {
		t.Errorf("what cannot be destroyed: %v", err)
	}
	all.Close(func(*bool) {})
	if _, err := claim(); !errors.Is(err, ErrClosed) || destroyed != 2 {
		t.Errorf("the driver is closed: %v, destroyed %d times", err, destroyed)
	}
}
