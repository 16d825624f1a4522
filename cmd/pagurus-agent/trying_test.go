package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pagurus/internal/testkit"
	"pagurus/internal/thread"
)

func TestGuestsOfTwoHostsReachEachOther(t *testing.T) {
	testkit.Leftovers(t)
	testkit.Root(t)
	if err := Network(t.Context()); err != nil {
		t.Error(err)
	}
}

// Without the tunnel nothing arrives, and the trial finds that.
func TestBrokenNetworkIsFound(t *testing.T) {
	testkit.Leftovers(t)
	testkit.Root(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	s, err := open(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	err = thread.In(s[1].host, func() error { return s[1].overlay.Clear(ctx) })
	if err != nil {
		t.Fatal(err)
	}
	if err := s.exchange(ctx); err == nil || !strings.Contains(err.Error(), "does not reach the other") && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without a tunnel: %v", err)
	}
}

func TestFilesAreReadOverTheNetwork(t *testing.T) {
	testkit.Leftovers(t)
	testkit.Root(t, "ganesha.nfsd")
	folder := t.TempDir()
	if err := Files(t.Context(), folder); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(folder); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// The trial finds a server that does not start, as once on Debian 13, with its own message.
func TestServerThatDoesNotStartIsFound(t *testing.T) {
	testkit.Leftovers(t)
	testkit.Root(t)
	bin, folder := t.TempDir(), t.TempDir()
	other, err := exec.LookPath("ls") // to which the server's arguments are names of files
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(other)
	if err == nil {
		err = os.WriteFile(filepath.Join(bin, "ganesha.nfsd"), text, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	if err := Files(t.Context(), folder); err == nil || !strings.Contains(err.Error(), "cannot access 'STDERR'") {
		t.Errorf("it starts: %v", err)
	}
	if left, _ := os.ReadDir(folder); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
