package monitor

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pagurus/fleet"
)

// A check that fails is a sign, with the last line that it prints, and one that is well again is none. What was counted
// is known to the next agent.
func TestHealth(t *testing.T) {
	dir := t.TempDir()
	program, verdict := filepath.Join(dir, "check"), filepath.Join(dir, "verdict")
	script := fmt.Sprintf("#!/bin/sh\necho looking\ncat %s\nexit $(wc -l <%s)\n", verdict, verdict)
	must(t, os.WriteFile(program, []byte(script), 0o755))
	must(t, os.WriteFile(verdict, []byte("sdb: pending sectors\n"), 0o644))
	var faults atomic.Uint64
	c := HealthConfig{
		Policy: fleet.HealthDrain, Check: program, Every: 10 * time.Millisecond, File: filepath.Join(dir, "health.json"), Log: slog.New(slog.DiscardHandler),
		Counters: func() ([]fleet.Counter, []string) {
			return []fleet.Counter{{Kind: fleet.MemoryFaults, Where: "mc0", Total: faults.Load()}}, []string{"blind to heat"}
		},
	}
	run := func(until func(*fleet.Health) bool) *fleet.Health {
		t.Helper()
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		h, done := NewHealth(c), make(chan struct{})
		go func() { defer close(done); h.Run(ctx) }()
		for !until(h.Seen()) {
			if ctx.Err() != nil {
				t.Fatalf("never: %+v", h.Seen())
			}
			time.Sleep(5 * time.Millisecond)
		}
		stop()
		<-done
		return h.Seen()
	}
	failing := func(f *fleet.Health) bool {
		return len(f.Signs) == 1 && f.Signs[0].Kind == fleet.CheckFailed && len(f.Blind) == 1
	}
	if f := run(failing); f.Signs[0].Says != "sdb: pending sectors" || !f.Grave(time.Time{}) {
		t.Errorf("%+v", f)
	}
	must(t, os.WriteFile(verdict, nil, 0o644))
	run(func(f *fleet.Health) bool { return len(f.Signs) == 0 })
	faults.Store(3)
	if f := run(func(f *fleet.Health) bool { return len(f.Signs) == 1 }); f.Signs[0].Kind != fleet.MemoryFaults || f.Signs[0].Count != 3 {
		t.Errorf("counted between two agents: %+v", f)
	}
	// A program that is not there cannot say that the host is well.
	must(t, os.Remove(program))
	f := run(func(f *fleet.Health) bool { return len(f.Signs) == 2 })
	if f.Signs[0].Kind != fleet.CheckFailed || !strings.Contains(f.Signs[0].Says, "no such file") {
		t.Errorf("%+v", f)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
