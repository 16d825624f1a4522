package systemtest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"pagurus/fleet"
)

// chaosLimit is many times the usual time.
const chaosLimit = 5 * time.Minute

// A short run of faults while guests of each kind move. No guest is lost or runs twice, the
// lab is removed, and the report names every fault. make chaos is the long run. With these
// seeds the faults are of all kinds and planned for all phases; in the run of hosts they are of eight kinds, with an agent and a controller of
// another version of the protocol, without a rollback of the store, and none is longer than a lease. But no container is killed
// during its switch, after which the hosts that may have it are asked for minutes. Machines
// have the memory size of other tests, for which there is a snapshot.
func TestLongChaos(t *testing.T) {
	alone(t)
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(bin(t), "pagurus-chaos")
	build := exec.Command("go", "build", "-trimpath", "-o", program, "./cmd/pagurus-chaos")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	other := filepath.Join(t.TempDir(), "other")
	if err := buildSpeaking(fmt.Sprint(fleet.Protocol()+1), other); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		kind   string
		memory string
		faults int
		seed   uint64
		more   []string
	}{{"vm", "512M", 13, 284, nil}, {"container", "192M", 18, 11468, nil}, {"hosts", "192M", 8, 25864, []string{"--hosts", "4", "--seconds", "5", "--other", other}}} {
		t.Run(c.kind, func(t *testing.T) {
			report := filepath.Join(t.TempDir(), "chaos.json")
			// A fault that never finds its phase would be waited for without end.
			ctx, cancel := context.WithTimeout(t.Context(), chaosLimit)
			defer cancel()
			run := exec.CommandContext(ctx, program, append([]string{"--kind", c.kind, "--mem", c.memory, "--faults", fmt.Sprint(c.faults), "--seed", fmt.Sprint(c.seed), "--seconds", "10",
				"--report", report, "--logs", t.TempDir()}, c.more...)...)
			run.Cancel, run.WaitDelay = func() error { return run.Process.Signal(os.Interrupt) }, time.Minute
			run.Dir = root
			out, err := run.CombinedOutput()
			t.Logf("%s", out)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{
				fmt.Sprintf(`(?m)^seed %d: %d faults$`, c.seed, c.faults), fmt.Sprintf(`(?m)^%d faults in .*, seed %d$`, c.faults, c.seed),
				`(?m)^guests: .* 0 lost( without a fault)?, 0 doubled$`,
			} {
				if !regexp.MustCompile(want).Match(out) {
					t.Errorf("it does not say %q", want)
				}
			}
			text, err := os.ReadFile(report)
			if err != nil {
				t.Fatal(err)
			}
			var record struct {
				Seed   uint64
				Kind   string
				Faults []struct{ Kind string }
			}
			mixed := map[string]bool{}
			if err := json.Unmarshal(text, &record); err != nil || record.Seed != c.seed || record.Kind != c.kind || len(record.Faults) != c.faults {
				t.Errorf("the report has seed %d, %q and %d faults, %v", record.Seed, record.Kind, len(record.Faults), err)
			}
			for _, f := range record.Faults {
				mixed[f.Kind] = true
			}
			if c.kind == "hosts" && (!mixed["agent-version"] || !mixed["controller-version"]) {
				t.Errorf("no versions were mixed: %v", mixed)
			}
		})
	}
}
