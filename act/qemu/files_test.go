package qemu

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if got := tailOf(path, 3); got != "" {
		t.Errorf("nothing says %q", got)
	}
	if err := os.WriteFile(path, []byte(strings.Repeat("x\n", 9000)+"a\r\n\nb\nc\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := tailOf(path, 3); got != "a; b; c" {
		t.Errorf("it says %q", got)
	}
	link := path + ".link"
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if got := tailOf(link, 3); got != "" {
		t.Error("a link was followed")
	}
	if err := os.WriteFile(path, []byte("\x1b[0mPower down\r\n\x1b[2J \r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := tailOf(path, 3); got != "Power down" {
		t.Errorf("it says %q", got)
	}
}
