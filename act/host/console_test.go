package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	for _, c := range []struct{ text, want string }{
		{"", ""},
		{strings.Repeat("x\n", 9000) + "a\r\n\nb\nc\n", "x; x; x; a; b; c"},
		{"a\n\x1b[0mb\nc\x07\n", "a; b; c"},
		{"\x1b[0mPower down\r\n\x1b[2J \r\n", "Power down"},
	} {
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := tailAt(t, path); got != c.want {
			t.Errorf("it says %q, want %q", got, c.want)
		}
	}
	if got := tailAt(t, "/dev/zero"); got != "" {
		t.Errorf("a device says %q", got)
	}
}

func tailAt(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return Tail(f)
}
