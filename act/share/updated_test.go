package share

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pagurus/internal/testkit"
)

// TestServerAfterAnUpdate: while an agent holds a program that was replaced since, as by an update, its servers begin.
func TestServerAfterAnUpdate(t *testing.T) {
	n, folder := job(t, user)
	s := stage(t, n)
	write(t, filepath.Join(folder, "input"), "here\n", user, 0o600)
	s.shares.Close()
	s.shim = testkit.Unnamed(t)
	s.open()
	s.apply(n)
	if got := s.guest.Run("nfs-ls", url(n, folder, user)); !strings.Contains(got, "input") {
		t.Errorf("it serves %q", got)
	}
	s.apply()
	if _, err := os.Lstat(s.file("")); err == nil {
		t.Error("its folder is left")
	}
}
