package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"pagurus/fleet"
)

// This file finds the programs of another version of the protocol. They are found by themselves where scripts/chaos has put them: as they had to be
// named, no run of a program that was started by hand ever mixed versions.

const (
	// otherFolder has them, beside this program.
	otherFolder = "other"
	// noOther is the value of --other for a run of one version.
	noOther = "none"
	// saysLimit is how long a program may take to say its version.
	saysLimit = 20 * time.Second
)

// findOther checks --other, or finds what is its default.
func (c *chaos) findOther() error {
	chosen := c.other
	switch {
	case c.whole == nil && chosen != "":
		return fmt.Errorf("--other is for --kind %s", hostsKind)
	case c.whole == nil:
		return nil
	case chosen == noOther:
		c.other = ""
	case chosen == "":
		c.other = beside()
	}
	if c.other == "" {
		if slices.ContainsFunc(c.only, func(k kind) bool { return slices.Contains(ofOtherVersions, k) }) {
			return fmt.Errorf("faults of versions need --other: scripts/chaos builds programs of another version")
		}
		return nil
	}
	where, err := filepath.Abs(c.other)
	if err == nil {
		err = oneApart(where)
	}
	if err != nil {
		return fmt.Errorf("--other: %w", err)
	}
	c.other = where
	return nil
}

// beside is the folder of other programs that is beside this one; empty: there is none.
func beside() string {
	self, err := os.Executable()
	if err != nil {
		return ""
	}
	at := filepath.Join(filepath.Dir(self), otherFolder)
	if _, err := os.Stat(filepath.Join(at, "pagurus-agent")); err != nil {
		return ""
	}
	return at
}

// oneApart says what is wrong with programs of another version.
func oneApart(folder string) error {
	for _, name := range []string{"pagurus", "pagurus-agent", "pagurus-controller", "pagurus-guest", "pagurus-shim", "pagurus-daemon"} {
		if _, err := os.Stat(filepath.Join(folder, name)); err != nil {
			return err
		}
	}
	ctx, stop := context.WithTimeout(context.Background(), saysLimit)
	defer stop()
	text, err := exec.CommandContext(ctx, filepath.Join(folder, "pagurus"), "version", "--json").Output()
	if err != nil {
		return fmt.Errorf("asking %s for its version: %w", folder, err)
	}
	var said struct {
		Client struct{ Protocol int }
	}
	if err := json.Unmarshal(text, &said); err != nil {
		return fmt.Errorf("reading the version of %s: %w", folder, err)
	}
	if apart := said.Client.Protocol - fleet.Protocol(); apart != 1 && apart != -1 {
		return fmt.Errorf("the programs in %s speak version %d of the protocol and this one version %d, which are not one apart: build them with scripts/chaos", folder, said.Client.Protocol, fleet.Protocol())
	}
	return nil
}
