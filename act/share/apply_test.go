package share

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// Troubles must not wait, because the host's heartbeat asks for them.
func TestTroublesDoNotWait(t *testing.T) {
	s, err := Open(Config{Run: t.TempDir(), Shim: "/proc/self/exe"})
	if err != nil {
		t.Fatal(err)
	}
	v := s.newServer("j1", t.TempDir())
	v.history.died(time.Now())
	v.history.tried(errors.New("out of order"))
	s.set(v.job, v)
	s.lock <- struct{}{} // a server is being started
	told := make(chan []string, 1)
	go func() { told <- s.Troubles() }()
	select {
	case lines := <-told:
		if len(lines) != 1 || !strings.Contains(lines[0], "out of order") {
			t.Errorf("troubles: %q", lines)
		}
	case <-time.After(startLimit):
		t.Fatal("it waits")
	}
	s.leave()
	s.Close()
	if err := s.Apply(context.Background(), nil); !errors.Is(err, errClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// The unfinished part of an earlier Apply is done only if a later one wants it.
func TestLaterApplyCounts(t *testing.T) {
	run := t.TempDir()
	folder := filepath.Join(run, "shares", "kept")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	s, err := Open(Config{Run: run, Shim: "/proc/self/exe"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	// Neither can be served; the error shows that it was tried.
	network := func(job fleet.JobID, path string) fleet.Network {
		return fleet.Network{Job: job, Subnet: 1, Share: &fleet.Share{Export: path, UID: user}}
	}
	first := []fleet.Network{network("changed", "first"), network("same", "second"), network("gone", "third")}
	last := []fleet.Network{network("changed", "fourth"), network("same", "second"), network("kept", "fifth")}
	s.lock <- struct{}{}
	answers := make(chan error, 1)
	go func() { answers <- s.Apply(context.Background(), first) }()
	testkit.Until(t, startLimit, "the first is under way", func() bool { _, ok := s.wantedNow("gone"); return ok })
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Apply(ctx, last); !errors.Is(err, context.Canceled) {
		t.Errorf("who does not want to wait: %v", err)
	}
	s.leave()
	err = <-answers
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the first call: %v", err)
	}
	for path, tried := range map[string]bool{"first": false, "second": true, "third": false} {
		if strings.Contains(err.Error(), path) != tried {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := os.Stat(folder); err != nil {
		t.Errorf("the first call removed what the last wants: %v", err)
	}
	err = s.Apply(context.Background(), last)
	if errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "fourth") || !strings.Contains(err.Error(), "fifth") {
		t.Errorf("the last call: %v", err)
	}
	if err := s.Apply(context.Background(), nil); err != nil {
		t.Error(err)
	}
}
