package roles

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"pagurus/fleet"
	"pagurus/show/cli"
)

// What judges all flags lets the word for no lease pass, and a lease that is too short does not.
func TestLeaseFlag(t *testing.T) {
	for given, want := range map[string]time.Duration{"off": 0, "10s": 10 * time.Second, "5m": 5 * time.Minute, "1d": 24 * time.Hour, "9s": -1, "0": -1, "0s": -1, "2d": -1, "soon": -1, "": -1, "-1m": -1} {
		f, flags := Agent{}, pflag.NewFlagSet("agent", pflag.ContinueOnError)
		f.Add(flags)
		cli.JudgeSet(flags)
		err := flags.Parse([]string{"--" + fleet.LeaseFlag, given})
		switch {
		case want < 0 && (err == nil || !strings.Contains(err.Error(), "a lease lasts from 10s to")):
			t.Errorf("%q: %v", given, err)
		case want >= 0 && (err != nil || f.Lease != want || LeaseWord(f.Lease) == ""):
			t.Errorf("%q: %s, %v", given, f.Lease, err)
		}
	}
}
