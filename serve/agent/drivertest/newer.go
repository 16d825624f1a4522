package drivertest

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// NewerRecord replaces a running guest's record by those of an agent that is two versions newer,
// and of one whose record has another form: a driver refuses to open and leaves the guest alone.
// Then the record is of one version newer, with a field more, which a driver has to take. No driver
// may have the guest. open opens a driver and closes it again.
func NewerRecord(t *testing.T, record string, process int, open func() error) {
	t.Helper()
	ours, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	of := func(version int, more string) string {
		now := fmt.Sprintf(`"protocol": %d,`, fleet.Protocol())
		return strings.Replace(string(ours), now, fmt.Sprintf(`"protocol": %d,%s`, version, more), 1)
	}
	for _, newer := range []string{
		of(fleet.Protocol()+2, ""),
		fmt.Sprintf(`{"protocol": %d, "guest": {"a": "new form"}}`, fleet.Protocol()+1),
	} {
		if err := os.WriteFile(record, []byte(newer), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := open(); err == nil || !strings.Contains(err.Error(), "upgrade the agent of this host") {
			t.Fatalf("of %.30s: %v", newer, err)
		}
		if kept, err := os.ReadFile(record); err != nil || string(kept) != newer || unix.Kill(process, 0) != nil {
			t.Fatalf("the guest was touched: %.30s, %v", kept, err)
		}
	}
	next := of(fleet.Protocol()+1, ` "colour": 1,`)
	if next == string(ours) {
		t.Fatalf("the record does not say its version: %s", ours)
	}
	if err := os.WriteFile(record, []byte(next), 0o600); err != nil {
		t.Fatal(err)
	}
}
