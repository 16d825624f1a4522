package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"pagurus/fleet"
)

// Every list is also there for programs, and no list is null: jq '.[]' then has nothing to do
// instead of failing.
func TestEveryListIsJSONToo(t *testing.T) {
	w := newWorld(t)
	w.answers(func(fleet.Request) (fleet.Answer, error) { return fleet.Answer{}, nil })
	var lists []string
	root := Root(Options{Args: []string{}})
	for _, noun := range root.Commands() {
		if _, _, err := noun.Find([]string{"ls"}); err == nil && hasVerb(noun, "ls") {
			lists = append(lists, noun.Name()+" ls", noun.Name())
		}
	}
	if len(lists) < 14 {
		t.Fatalf("there are only %q", lists)
	}
	for _, list := range lists {
		got := w.pagurus("", append(strings.Fields(list), "--json")...)
		var rows []map[string]any
		if got.code != 0 || json.Unmarshal([]byte(got.out), &rows) != nil || !strings.HasPrefix(got.out, "[") {
			t.Errorf("%s: %+v", list, got)
		}
	}
	w.Change(func(s *fleet.Snapshot) {
		s.Jobs["j1"] = fleet.Job{ID: "j1", State: fleet.JobEnded, Spec: fleet.JobSpec{Args: []string{"true"}}}
		s.Moves["m1"] = fleet.Move{ID: "m1", Migrations: []fleet.MigrationID{}}
	})
	for _, args := range append(lists, "job show j1", "move show m1", "explain host1", "drain host1", "migrate --job j1", "policy show") {
		got := w.pagurus("", append(strings.Fields(args), "--json")...)
		if got.code != 0 || strings.Contains(got.out, "null") || strings.TrimSpace(got.out) == "" {
			t.Errorf("%s: %+v", args, got)
		}
	}
}

func hasVerb(noun *cobra.Command, name string) bool {
	for _, verb := range noun.Commands() {
		if verb.Name() == name {
			return true
		}
	}
	return false
}

// What is no terminal has no screen, and is told what programs read.
func TestTopNeedsATerminal(t *testing.T) {
	w := newWorld(t)
	for _, args := range [][]string{{"top"}, {"top", "--json"}} {
		got := w.pagurus("", args...)
		if got.code != 1 || got.out != "" || !strings.Contains(got.err, "`pagurus host ls --json`") {
			t.Errorf("%q: %+v", args, got)
		}
	}
	if got := w.pagurus("", "top", "host1"); got.code != 1 || !strings.Contains(got.err, "takes no argument") {
		t.Errorf("%+v", got)
	}
}
