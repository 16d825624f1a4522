package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"pagurus/cmd/roles"
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
