package main

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// A fault is counted in the phase it hit, not in the planned one; one that missed is not
// counted.
func TestFaultsAreCountedWhereTheyCame(t *testing.T) {
	c := &chaos{faults: 3, limit: time.Hour, checker: newChecker(), began: time.Now()}
	for i, hit := range []fleet.Phase{fleet.Retiring, fleet.Discarding, fleet.Copying} {
		c.injections = append(c.injections, &injection{fault: fault{Number: i + 1, Kind: linkCut, Phase: fleet.PostCopying}, Hit: hit})
	}
	c.forget(fault{Number: 3})
	var b strings.Builder
	c.summary(&b)
	for _, want := range []string{
		`(?m)^FAULT +ALL +PREPARING +WAITING +COPYING +READY +SWITCHING +ACTIVATING +POST-COPY +RETIRING +OTHER$`,
		`(?m)^link-cut +2( +0){7} +1 +1$`, `(?m)^all +2( +0){7} +1 +1$`, `(?m)^2 faults in `,
	} {
		if !regexp.MustCompile(want).MatchString(b.String()) {
			t.Errorf("it does not say %s:\n%s", want, b.String())
		}
	}
	if err := c.tooFew(); err == nil || !strings.Contains(err.Error(), "only 2 of 3 faults") {
		t.Errorf("that time ran out leads to %v", err)
	}
	if c.bounded = true; c.tooFew() != nil {
		t.Error("somebody who said how long it may take is told that it took too short")
	}
}
