package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"pagurus/cmd/roles"
	"pagurus/fleet"
)

// Each line is answered, also a wrong one, and the end of the input is the end of all.
func TestAnEndByHandAnswersEachLine(t *testing.T) {
	var out bytes.Buffer
	if err := driveByHand(t.Context(), strings.NewReader("{\"here\":7}\n\"no setting\"\n"), &out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 {
		t.Errorf("said is %q", lines)
	}
	for _, line := range lines {
		var a roles.HandAnswer
		if err := json.Unmarshal([]byte(line), &a); err != nil || a.Error == "" {
			t.Errorf("%q, %v", line, err)
		}
	}
}

// Guests by hand that would run otherwise than those of the agent are refused, with the reason.
func TestGuestsByHandRunAsPagurussDo(t *testing.T) {
	can := fleet.Abilities{Accelerator: fleet.TCG, Emulated: "its kernel dies"}
	err := likePagurus(roles.HandSetting{Accelerator: fleet.KVM}, can)
	if err == nil || !strings.Contains(err.Error(), "its kernel dies") {
		t.Error(err)
	}
	for _, as := range []string{fleet.TCG, ""} {
		if err := likePagurus(roles.HandSetting{Accelerator: as}, can); err != nil {
			t.Errorf("%q: %v", as, err)
		}
	}
}
