package shim

import (
	"strings"
	"testing"
)

// TestWithoutTheProgram: beside this test there is no pagurus-shim, as where an installation is
// not whole. That is an error with what to do, and no child starts this program by mistake.
func TestWithoutTheProgram(t *testing.T) {
	if err := Check(); err == nil || !strings.Contains(err.Error(), "install Pagurus again") || Program() != "" || Daemon() != "" {
		t.Errorf("without the program: %v, %q", err, Program())
	}
	Become(Table{"no such helper": func([]string) error { t.Error("it became a helper"); return nil }})
	if err := Check(); err != nil || Program() != self || Daemon() != self {
		t.Errorf("a test that can be the program: %v, %q", err, Program())
	}
}
