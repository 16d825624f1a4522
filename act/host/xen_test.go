package host

import (
	"os"
	"path/filepath"
	"testing"
)

// Only the first domain controls others: a guest of Xen has the file too, without the word, and another machine has none.
func TestFirstDomainControls(t *testing.T) {
	path := filepath.Join(t.TempDir(), "capabilities")
	if controls(path) {
		t.Error("a machine without Xen is a Xen host")
	}
	for text, want := range map[string]bool{"": false, "control_d\n": true} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if controls(path) != want {
			t.Errorf("%q: not %v", text, want)
		}
	}
}
