package systemtest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"pagurus/internal/testkit"
)

// TestPython runs the tests of the Python client against the real controller, and looks whether the client is what the document of the
// HTTP interface says.
func TestPython(t *testing.T) {
	if testing.Short() {
		t.Skip("system ring: make test")
	}
	testkit.Root(t, "python3")
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"python/generate.py", "--check"}, {"-m", "unittest", "discover", "-s", "python/tests"}} {
		cmd := exec.CommandContext(ctx, "python3", args...)
		cmd.Dir, cmd.Env = root, append(os.Environ(), "PAGURUS_BIN="+bin(t), "PYTHONDONTWRITEBYTECODE=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("python3 %v: %v\n%s", args, err, out)
		}
	}
}
