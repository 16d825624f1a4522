package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pagurus/show/cli"
)

// every calls each with every command of the program.
func every(t *testing.T, each func(*cobra.Command)) {
	t.Helper()
	var said bytes.Buffer
	var look func(*cobra.Command)
	look = func(cmd *cobra.Command) {
		each(cmd)
		for _, sub := range cmd.Commands() {
			look(sub)
		}
	}
	look(command(streams{strings.NewReader(""), &said, &said}))
}

// The rule of package cli holds for the commands that are here: no flag takes a value that
// cannot be meant, whatever command it is of. Sizes and times take the same forms everywhere.
func TestEveryFlagIsJudged(t *testing.T) {
	tried := 0
	every(t, func(cmd *cobra.Command) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			good, bad := map[string][]string{
				"size":     {"5G", "5GiB", "512M", "512MB", "1.5g"},
				"duration": {"30s", "5m", "1h", "2d", "1d12h"},
			}[f.Value.Type()], []string{""}
			if _, empty := f.Annotations[cli.EmptyMeans]; empty {
				bad = nil
			}
			switch f.Value.Type() {
			case "bool":
				return
			case "int", "int64", "float64", "size", "rate", "share":
				bad = append(bad, "-1", "many", "NaN")
			case "duration":
				bad = append(bad, "-1s", "soon", "5")
			}
			for _, value := range bad {
				tried++
				if err := f.Value.Set(value); err == nil {
					t.Errorf("%s --%s takes %q", cmd.CommandPath(), f.Name, value)
				}
			}
			for _, value := range good {
				tried++
				if err := f.Value.Set(value); err != nil {
					t.Errorf("%s --%s: %v", cmd.CommandPath(), f.Name, err)
				}
			}
		})
	})
	if tried < 300 {
		t.Errorf("only %d values were tried", tried)
	}
}

// Whatever an argument names, a Tab completes.
func TestEveryArgumentCompletes(t *testing.T) {
	every(t, func(cmd *cobra.Command) {
		_, what, _ := strings.Cut(cmd.Use, " ")
		for _, name := range []string{"HOST", "JOB", "GUEST", "MOVE", "IMAGE", "TOKEN", "USER"} {
			first := strings.TrimPrefix(strings.TrimPrefix(what, "[-f] "), "[")
			if strings.HasPrefix(first, name) && cmd.ValidArgsFunction == nil && len(cmd.ValidArgs) == 0 {
				t.Errorf("%s does not complete %s", cmd.CommandPath(), name)
			}
		}
	})
}
