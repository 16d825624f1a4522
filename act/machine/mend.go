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

// fixLimit bounds one command: packages may come over a slow line.
const fixLimit = 20 * time.Minute

// Mend runs the commands of what is not well, each once, and shows them and
// what they say in out. It goes on after an error and gives all of them. What
// is so afterwards only Check knows.
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
	// A group of its own, so that all of it can be ended, and gently: a package
	// manager that is killed leaves half a package.
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGTERM) }
	c.WaitDelay = time.Minute
	return c.Run()
}
