package roles

import (
	"slices"
	"testing"

	"github.com/spf13/pflag"
)

// Given flags are repeated for a program that has them, whatever their type.
func TestGivenFlagsAreRepeated(t *testing.T) {
	var a Agent
	var c Controller
	agent, controller, both := pflag.NewFlagSet("", 0), pflag.NewFlagSet("", 0), pflag.NewFlagSet("", 0)
	a.Add(agent)
	c.Add(controller, "")
	both.AddFlagSet(agent)
	both.AddFlagSet(controller)
	if err := both.Parse([]string{"--run", "here", "--etcd", "a:1,b:2", "--memory", "2G", "--verbose", "--slice", "0"}); err != nil {
		t.Fatal(err)
	}
	if got, want := Given(both, agent), []string{"--memory=2G", "--run=here", "--slice=0", "--verbose=true"}; !slices.Equal(got, want) {
		t.Errorf("the agent gets %q, want %q", got, want)
	}
	got := Given(both, controller)
	if want := []string{"--etcd=a:1,b:2", "--run=here", "--verbose=true"}; !slices.Equal(got, want) {
		t.Errorf("the controller gets %q, want %q", got, want)
	}
	var again Controller
	flags := pflag.NewFlagSet("", 0)
	again.Add(flags, "")
	if err := flags.Parse(got); err != nil || !slices.Equal(again.Etcd, []string{"a:1", "b:2"}) || !again.Verbose {
		t.Errorf("read again they are %+v, %v", again, err)
	}
}
