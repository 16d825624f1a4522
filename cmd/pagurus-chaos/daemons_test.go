package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pagurus/act/daemon"
)

// What a daemon's log has of its end tells a kill from an end by itself, and is not taken for what it said last.
func TestALogTellsHowADaemonEnded(t *testing.T) {
	dir := t.TempDir()
	for script, want := range map[string]string{"kill -9 $$": "ended: signal: killed", "echo most of the controllers are away; exit 3": "ended: exit status 3",
		"echo becoming the controller: the store of controllers timed out; exit 1": "ended: exit status 1"} {
		s := &service{d: daemon.Daemon{Name: "it", Command: []string{"sh", "-c", script}, PIDFile: filepath.Join(dir, want, "pid"), LogFile: filepath.Join(dir, want, "log")}}
		if err := s.start(""); err != nil && !strings.Contains(err.Error(), "ended") { // it may have ended by then
			t.Fatal(err)
		}
		said := ""
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end) && !strings.Contains(said, "ended: "); time.Sleep(10 * time.Millisecond) {
			text, _ := os.ReadFile(s.d.LogFile)
			said = string(text)
		}
		if !strings.Contains(said, want) {
			t.Errorf("its log has %q, not %q", said, want)
		}
		if may := newWhole(1).mayEnd(s.d.Died()); may != strings.Contains(script, "controllers") {
			t.Errorf("after %q it may end: %t, %s", script, may, fmt.Sprint(s.d.Died()))
		}
	}
}
