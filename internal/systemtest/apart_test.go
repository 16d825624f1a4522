package systemtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"pagurus/internal/testkit"
)

// Whoever calls scripts/apart finds the repository that they are in, wherever it is, and else nothing of what is hidden.
func TestApartShowsTheRepository(t *testing.T) {
	testkit.Root(t, "unshare", "git")
	apart, err := filepath.Abs("../../scripts/apart")
	if err != nil {
		t.Fatal(err)
	}
	for _, hidden := range []string{"/tmp", "/var/tmp"} {
		top, err := os.MkdirTemp(hidden, "apart-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(top) })
		below := filepath.Join(top, "clone/below")
		if err := os.MkdirAll(below, 0o755); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("git", "init", "-q", filepath.Dir(below)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if err := os.WriteFile(filepath.Join(top, "clone/go.mod"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(apart, "sh", "-c", `pwd -P; ls "$0" `+hidden+` ..; touch made`, top)
		cmd.Dir = below
		out, err := cmd.CombinedOutput()
		want := below + "\n..:\nbelow\ngo.mod\n\n" + hidden + ":\n" + filepath.Base(top) + "\n\n" + top + ":\nclone\n"
		if err != nil || string(out) != want {
			t.Errorf("%v: %q, not %q", err, out, want)
		}
		if _, err := os.Stat(filepath.Join(below, "made")); err != nil {
			t.Errorf("what is written there is lost: %v", err)
		}
	}
}
