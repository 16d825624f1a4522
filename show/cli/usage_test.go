package cli

import (
	"context"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// used is the controller's answer to a question for usage.
func used(_ context.Context, _ fleet.Caller, since time.Time) (fleet.UsageAnswer, error) {
	end := since.Add(time.Hour)
	return fleet.UsageAnswer{At: time.Now(), Cluster: "physics", Users: map[uint32]fleet.UserID{4711: "ada"}, Records: []fleet.UsageRecord{{
		Period: end.UTC().Format(fleet.UsageDay), UID: 4711, Job: "j7", Born: 1, Hosts: map[fleet.HostID]fleet.Usage{"host1": {CPUSeconds: 7200}, "host2": {CPUSeconds: 3600}},
		About: &fleet.UsedBy{Name: "lmp", Guests: 1, Need: fleet.Resources{CPUs: 1, MemoryBytes: 1 << 30}, Submitted: since, Started: since, Ended: end, Result: fleet.JobFinished, Exit: &fleet.Exit{}},
	}}}, nil
}

func TestUsage(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		args []string
		want string // in what it prints, or says
		code int
	}{
		{[]string{}, "ada   4711  1     3.00 h", 0},
		{[]string{"--by", "job", "--since", "7d"}, "j7   ada   4711  lmp      finished  3.00 h", 0},
		{[]string{"--by", "host"}, "host1  1     2.00 h", 0},
		{[]string{"--host", "host2", "--user", "ada"}, "1.00 h", 0},
		{[]string{"--user", "4711"}, "3.00 h", 0},
		{[]string{"--user", "1"}, "nothing was used", 0},
		{[]string{"--user", "bob"}, `there is no user "bob"`, 1},
		{[]string{"--csv"}, "ada,4711,,,1,,,,,10800.000,", 0},
		{[]string{"--json"}, `"rows":[{"user":"ada","uid":4711,"jobs":1,"cpu_seconds":10800,`, 0},
		{[]string{"--sacct"}, "7|7|physics|all|normal|ada|", 0},
		{[]string{"--csv", "--sacct"}, "only one of", 1},
		{[]string{"--sacct", "--by", "job"}, "leave out --by", 1},
		{[]string{"--by", "moon"}, `there is no "moon": write user, job or host`, 1},
	} {
		got := w.pagurus("", append([]string{"usage"}, c.args...)...)
		if got.code != c.code || !strings.Contains(got.out+got.err, c.want) {
			t.Errorf("usage %v: exit %d, %q %q lacks %q", c.args, got.code, got.out, got.err, c.want)
		}
	}
}
