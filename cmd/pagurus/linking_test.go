package main

import (
	"bytes"
	"strings"
	"testing"
)

// Invalid flags are refused before any host is looked up.
func TestLinksThatMakeNoSense(t *testing.T) {
	for says, args := range map[string][]string{"between 0 and 50 %": {"--loss", "60%"}, "not a share": {"--loss", "some"}, "between 0 and 2s": {"--delay", "1h"}, "unknown flag": {"--jitter", "1"}} {
		var out bytes.Buffer
		cmd := linkCommand(&out, func([]string) ([]string, error) { t.Error("hosts were asked for"); return nil, nil })
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		cmd.SetArgs(args)
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", args, err)
		}
	}
}
