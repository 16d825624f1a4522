package packaging

import (
	"os"
	"testing"
)

// TestAlerts: Prometheus's own tool takes the alerts, and they fire when they should.
func TestAlerts(t *testing.T) {
	if testing.Short() {
		t.Skip("contract ring: make test")
	}
	if _, err := os.Stat("../bin/promtool"); err != nil {
		t.Fatalf("scripts/promtool fetches it: %v", err)
	}
	run(t, "../bin/promtool", "check", "rules", "monitoring/pagurus.rules.yml")
	run(t, "../bin/promtool", "test", "rules", "monitoring/pagurus.rules.test.yml")
}
