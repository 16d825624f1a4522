// Package roles is what a machine can be in a cluster: its head, a host, or both.
//
// Here each driver meets the interface that it satisfies. The head itself is a
// program of its own, pagurus-controller: its store takes longer to begin than most
// commands take altogether, and no host needs it. What people type is the same for
// either, so the flags are here.
package roles

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

// Where a machine keeps Pagurus's things.
const (
	State  = "/var/lib/pagurus"
	Run    = "/run/pagurus"
	Images = State + "/images"
	Token  = "token" // in the controller's state folder
)

// The programs that take a role, which are in one folder.
const (
	hostProgram = "pagurus"
	HeadProgram = "pagurus-controller"
)

// Head is the head of a cluster until ctx ends. It calls serving when it can be
// asked.
type Head func(ctx context.Context, c Controller, log *slog.Logger, serving func()) error

// Roles makes the commands.
type Roles struct {
	Version string
	Head    Head // nil: pagurus-controller, which takes the place of this program
}

// becomeHead has pagurus-controller be this process, with the same number and
// arguments. It returns only if that cannot be done.
func becomeHead() error {
	path, err := Beside(HeadProgram)
	if err != nil {
		return err
	}
	return fmt.Errorf("starting %s: %w", path, syscall.Exec(path, os.Args, os.Environ()))
}

// Until gives a context that ends when this process is told to.
func Until(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
}

// Beside gives the path of a program that is installed beside this one.
func Beside(name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding this program: %w", err)
	}
	if self, err = filepath.EvalSymlinks(self); err != nil {
		return "", fmt.Errorf("finding this program: %w", err)
	}
	path := filepath.Join(filepath.Dir(self), name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s belongs beside %s: build all with `make`: %w", name, self, err)
	}
	return path, nil
}
