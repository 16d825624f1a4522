package cli

import (
	"strings"
	"testing"
)

// TestNotUTF8: a job whose directory or argument would have another name in guests is
// refused at submission.
func TestNotUTF8(t *testing.T) {
	for _, bad := range [][2]string{{"/home/me\xff", "/home/me\xff"}, {"/home/me", "/home/me/caf\xe9"}} {
		if err := checkExport(bad[0], bad[1]); err == nil || !strings.Contains(err.Error(), "is not UTF-8") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if err := checkExport("/home/café", "/home/café/run"); err != nil {
		t.Error(err)
	}
	t.Chdir(t.TempDir())
	err := (&runFlags{ranks: 1}).check([]string{"program", "caf\xe9"})
	if err == nil || !strings.Contains(err.Error(), `"caf\xe9" is not UTF-8`) {
		t.Errorf("an argument: %v", err)
	}
}
