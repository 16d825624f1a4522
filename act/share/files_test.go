package share

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// More directories are served beside the job's own, and one that is to be read only is.
// Changing them makes another server.
func TestMoreDirectories(t *testing.T) {
	n, folder := job(t, user)
	more, shown := job(t, user)
	_, late := job(t, user)
	n.Share.Files = []fleet.Directory{{Path: shown, ReadOnly: true}}
	s := stage(t, n)
	s.apply(n)
	write(t, filepath.Join(folder, "input"), "own\n", user, 0o600)
	write(t, filepath.Join(shown, "input"), "shown\n", user, 0o600)
	source := filepath.Join(s.run, "output")
	write(t, source, "from the guest\n", user, 0o644)
	for path, want := range map[string]string{folder: "own\n", shown: "shown\n"} {
		if got := s.guest.Run("nfs-cat", url(n, path+"/input", user)); got != want {
			t.Errorf("%s: read %q", path, got)
		}
	}
	if out, err := s.guest.Try("nfs-cp", source, url(more, shown+"/output", user)); err == nil {
		t.Errorf("the directory to be read only was written to: %s", out)
	}
	s.guest.Run("nfs-cp", source, url(n, folder+"/output", user))
	n.Share.Files = append(n.Share.Files, fleet.Directory{Path: late})
	s.apply(n)
	testkit.Until(t, 2*graceSeconds*time.Second, "the new server takes files", func() bool {
		_, err := s.guest.Try("nfs-cp", source, url(n, late+"/output", user))
		return err == nil
	})
	if got, err := os.ReadFile(filepath.Join(late, "output")); err != nil || !strings.HasPrefix(string(got), "from") {
		t.Errorf("%q, %v", got, err)
	}
	closed := n
	closed.Share = &fleet.Share{Export: folder, UID: user, GID: user, Files: []fleet.Directory{{Path: "/root"}}}
	err := s.host.Do(func() error { return s.shares.Apply(t.Context(), []fleet.Network{closed}) })
	if err == nil || !strings.Contains(err.Error(), "may not enter the directory /root") {
		t.Errorf("a directory that the user may not enter: %v", err)
	}
}
