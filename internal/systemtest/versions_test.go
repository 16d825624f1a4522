package systemtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// speaking builds the programs of another version of the protocol:
//
//	speaking NUMBER FOLDER
//
// They are what the Makefile builds, but for the number.
func speaking(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: speaking NUMBER FOLDER")
	}
	ts.Check(buildSpeaking(args[0], ts.MkAbs(args[1])))
}

// buildSpeaking builds the programs of a version of the protocol.
func buildSpeaking(number, folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	flags := "-s -w -X main.version=speaks" + number + " -X pagurus/fleet.spoken=" + number
	for cgo, programs := range map[string][]string{
		"CGO_ENABLED=0": {"pagurus-guest", "pagurus-shim", "pagurus-daemon"}, "": {"pagurus", "pagurus-agent", "pagurus-controller"},
	} {
		build := []string{"build", "-trimpath", "-ldflags", flags, "-o", folder + "/"}
		for _, p := range programs {
			build = append(build, "./cmd/"+p)
		}
		c := exec.Command("go", build...)
		c.Dir, c.Env = filepath.Join("..", ".."), append(os.Environ(), strings.Fields(cgo)...)
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("go %s: %w\n%s", strings.Join(build, " "), err, out)
		}
	}
	return nil
}
