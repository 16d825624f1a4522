package main

import (
	"bytes"
	"regexp"
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

// What users of other programs type is answered with a command that there is, and things of
// every kind have the same verbs.
func TestHabitsAndVerbs(t *testing.T) {
	var said bytes.Buffer
	root := command(streams{strings.NewReader(""), &said, &said})
	there := func(line string) bool {
		cmd, rest, err := root.Find(strings.Fields(line))
		return err == nil && cmd != root && (len(rest) == 0 || strings.HasPrefix(rest[0], "-")) && cmd.IsAvailableCommand()
	}
	answered := regexp.MustCompile(`did you mean "([^"]+)"`)
	tried := 0
	for _, typed := range append(cli.Habits(), "image delete", "image create", "lab stop", "lab start", "host status", "config get") {
		root.SetArgs(strings.Fields(typed))
		err := root.Execute()
		if err == nil {
			continue // it is a command itself
		}
		m := answered.FindStringSubmatch(err.Error())
		if m == nil {
			t.Errorf("%s: %v", typed, err)
			continue
		}
		tried++
		if noun, _, below := strings.Cut(typed, " "); below && !there(noun+" "+m[1]) || !below && !there(m[1]) {
			t.Errorf("%s: there is no %q", typed, m[1])
		}
	}
	if tried < 30 {
		t.Errorf("only %d were tried", tried)
	}
	for _, line := range []string{
		"guest show", "guest explain", "guest tune", "host show", "host explain", "host tune", "host rm", "host remove", "job explain", "job trace",
		"move explain", "image show", "image rm", "image remove", "token rm", "token remove", "user rm", "user remove",
	} {
		if !there(line) {
			t.Errorf("there is no %q", line)
		}
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
