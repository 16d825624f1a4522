package cli

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"pagurus/fleet"
)

// read applies a command line to a policy.
func read(p fleet.OwnerPolicy, args ...string) (fleet.OwnerPolicy, bool, error) {
	var f ownerFlags
	var changed bool
	cmd := &cobra.Command{SilenceUsage: true, SilenceErrors: true, RunE: func(cmd *cobra.Command, _ []string) (err error) {
		changed, err = f.Amend(cmd.Flags(), &p)
		return err
	}}
	cmd.Flags().Bool("json", false, "")
	f.Add(cmd)
	cmd.SetArgs(args)
	err := cmd.Execute()
	return p, changed, err
}

func TestAmend(t *testing.T) {
	before := fleet.OwnerPolicy{Owned: true, Vacate: fleet.Stay, IdleAfter: time.Hour, Cap: 0.25, Preset: "condor", Claimed: true,
		Hours: fleet.Hours{From: time.Hour, To: 2 * time.Hour}, Exclusive: []string{"blender"}}
	if p, changed, err := read(before, "--json"); changed || err != nil || !reflect.DeepEqual(p, before) {
		t.Errorf("without a flag: %+v %v %v", p, changed, err)
	}
	p, changed, err := read(before, "--owner", "no", "--vacate", "suspend", "--idle-after", "90s", "--hours", "19:00-07:30", "--cap", "50%",
		"--preset", "own", "--exclusive", "a,b")
	want := fleet.OwnerPolicy{Vacate: fleet.Suspend, IdleAfter: 90 * time.Second, Cap: 0.5, Claimed: true,
		Hours: fleet.Hours{From: 19 * time.Hour, To: 7*time.Hour + 30*time.Minute}, Exclusive: []string{"a", "b"}}
	if !changed || err != nil || !reflect.DeepEqual(p, want) {
		t.Errorf("all of them: %+v %v %v, want %+v", p, changed, err, want)
	}
	if p, _, err := read(before, "--cap", "0.75", "--hours", "all"); err != nil || p.Cap != 0.75 || !p.Hours.All() || p.Vacate != fleet.Stay {
		t.Errorf("some of them: %+v %v", p, err)
	}
	for text, want := range map[string][2]fleet.Vacate{"evacuate,stay": {fleet.Evacuate, fleet.Stay}, "cluster,stay": {"", fleet.Stay}, "evacuate": {fleet.Evacuate, ""}} {
		before.Nowhere = fleet.Suspend
		if p, _, err := read(before, "--vacate", text); err != nil || p.Vacate != want[0] || p.Nowhere != want[1] {
			t.Errorf("--vacate %s: %+v %v", text, p, err)
		}
	}
	for _, bad := range [][]string{
		{"--owner", "maybe"}, {"--owner", ""}, {"--hours", "19-7"}, {"--hours", "25:00-07:00"}, {"--hours", "19:00"}, {"--hours", ""},
		{"--cap", "150%"}, {"--cap", "-1%"}, {"--cap", "NaN"}, {"--cap", "half"}, {"--cap", ""}, {"--idle-after", "soon"},
	} {
		if _, _, err := read(before, bad...); err == nil || !strings.Contains(err.Error(), bad[0]) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}
