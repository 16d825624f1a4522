package main

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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

// What messages and documents tell people to type is there.
func TestCommandsToTypeAreThere(t *testing.T) {
	named := regexp.MustCompile("`pagurus ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?")
	root := command(streams{strings.NewReader(""), io.Discard, io.Discard})
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	seen := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch name := d.Name(); {
		case d.IsDir() && (name == ".git" || name == "bin" || name == "dist" || name == "testdata" || name == "decisions"), name == "CHANGELOG.md": // these two tell of what was
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		case d.IsDir(), strings.HasSuffix(name, "_test.go"), filepath.Ext(name) != ".go" && filepath.Ext(name) != ".md":
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			seen++
			cmd, _, err := root.Find(slices.DeleteFunc(m[1:], func(word string) bool { return word == "" }))
			if err != nil || cmd == root || cmd.HasSubCommands() && m[2] != "" && cmd.Name() != m[2] {
				t.Errorf("%s: there is no command %s`", path, m[0])
			}
		}
		return err
	})
	if err != nil || seen < 200 {
		t.Errorf("%d commands are named: %v", seen, err)
	}
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
