package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// fixLimit is the time for one command, which may download packages slowly.
const fixLimit = 20 * time.Minute

// Mend runs the repair commands of findings, each once, and prints them with their output
// to out. It continues after errors and returns all of them. Only Check knows the result.
func Mend(ctx context.Context, found []Finding, out io.Writer) error {
	if os.Geteuid() != 0 {
		return errNotRoot
	}
	var errs []error
	done := map[string]bool{}
	for _, f := range found {
		if f.OK || f.Fix == "" || done[f.Fix] {
			continue
		}
		if ctx.Err() != nil {
			return errors.Join(append(errs, context.Cause(ctx))...)
		}
		done[f.Fix] = true
		fmt.Fprintln(out, "# "+f.Fix)
		if err := run(ctx, f.Fix, out); err != nil {
			errs = append(errs, fmt.Errorf("fix %s: %w", f.Name, err))
		}
	}
	return errors.Join(errs...)
}

func run(ctx context.Context, command string, out io.Writer) error {
	ctx, stop := context.WithTimeout(ctx, fixLimit)
	defer stop()
	c := exec.CommandContext(ctx, "sh", "-c", command)
	c.Stdout, c.Stderr = out, out
	c.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	// A group of its own, so that all of it can be terminated gently: a killed package
	// manager leaves incomplete packages.
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGTERM) }
	c.WaitDelay = time.Minute
	return c.Run()
}
