package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The README says that every command's help has examples.
func TestEveryCommandHasAnExample(t *testing.T) {
	var said bytes.Buffer
	var look func(*cobra.Command)
	look = func(cmd *cobra.Command) {
		if !strings.HasPrefix(cmd.Example, "  ") || !strings.Contains(cmd.Example, cmd.CommandPath()) {
			t.Errorf("%s has no example of itself: %q", cmd.CommandPath(), cmd.Example)
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if strings.Contains(f.Usage, "`") { // pflag takes it for the name of the flag's value
				t.Errorf("%s --%s would be printed without its quotes: %s", cmd.CommandPath(), f.Name, f.Usage)
			}
		})
		for _, sub := range cmd.Commands() {
			if sub.Name() != "completion" && sub.Name() != "help" { // cobra's own
				look(sub)
			}
		}
	}
	look(command(streams{strings.NewReader(""), &said, &said}))
}

func TestOnlyAbandonedProbesAreSwept(t *testing.T) {
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	want := []string{}
	for name, abandoned := range map[string]bool{
		fmt.Sprintf("probe-%d-123", os.Getpid()):      false,
		fmt.Sprintf("probe-%d-123", dead.Process.Pid): true,
		"probe-x": true, "lab": false,
	} {
		path := filepath.Join(dir, name)
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if abandoned {
			want = append(want, path)
		}
	}
	slices.Sort(want)
	if got := abandonedProbes(dir); !slices.Equal(got, want) {
		t.Errorf("abandoned are %q, want %q", got, want)
	}
}
