package qemu

import (
	"os"
	"path/filepath"
	"testing"
)

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if got := tailOf(path); got != "" {
		t.Errorf("nothing says %q", got)
	}
	if err := os.WriteFile(path, []byte("a\nb\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := tailOf(path); got != "a; b" {
		t.Errorf("it says %q", got)
	}
	link := path + ".link"
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if got := tailOf(link); got != "" {
		t.Error("a link was followed")
	}
}
