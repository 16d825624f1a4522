// Package drive uses Pagurus as a person would, by its binary, for programs that
// measure and try it. It must not know what they measure. Its tests run commands
// of the machine in the binary's place.
package drive

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Pagurus is the binary, and the folder that jobs are started from.
type Pagurus struct {
	Program string
	Dir     string
	Imager  string // the binary that is told of images, where another than Program makes those that it uses; empty: Program
	Own     Own
	Meter   *Meter // counts what the commands cost; nil: nothing is counted
}

// Beside gives the binary in the folder of the program that runs.
func Beside() (string, error) {
	self, err := os.Executable()
	return filepath.Join(filepath.Dir(self), "pagurus"), err
}

// leaveTime is how long a command that was told to end may take to end what it
// has begun.
const leaveTime = time.Minute

// Type types one command and gives what it prints, without its notes. They are
// in the error. When ctx ends the command is told to end, not killed.
func (p Pagurus) Type(ctx context.Context, args ...string) (string, error) {
	out, _, err := p.Both(ctx, args...)
	return out, err
}

// Both is Type that gives the notes, too.
func (p Pagurus) Both(ctx context.Context, args ...string) (printed, notes string, err error) {
	c := p.command(ctx, args...)
	var out, said bytes.Buffer
	c.Stdout, c.Stderr = &out, &said
	if err := p.Meter.run(c); err != nil {
		return "", "", fmt.Errorf("pagurus %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(out.String()+said.String()))
	}
	return strings.TrimSpace(out.String()), strings.TrimSpace(said.String()), nil
}

// command is one that is told to end when ctx ends. It is in a group of processes of
// its own: a Ctrl-C at the terminal is the caller's to pass on, and two at once would
// have it leave without ending what it began.
func (p Pagurus) command(ctx context.Context, args ...string) *exec.Cmd {
	program := p.Program
	if len(args) > 0 && args[0] == "image" {
		program = cmp.Or(p.Imager, program)
	}
	c := exec.CommandContext(ctx, program, p.Own.words(args)...)
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.WaitDelay = leaveTime
	c.Dir = p.Dir
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return c
}

// Witness makes the image openmpi and compiles in it, into Dir, the program that
// notices if anything was not right while it ran. It has to be called from the
// top of the source tree.
func (p Pagurus) Witness(ctx context.Context) error {
	if _, err := p.Type(ctx, "image", "build", "openmpi"); err != nil {
		return err
	}
	text, err := os.ReadFile("internal/testkit/witness/witness.c")
	if err != nil {
		return fmt.Errorf("run it from the top of the source tree: %w", err)
	}
	return p.Compile(ctx, "openmpi", "witness", text, "mpicc", "-O2")
}

// Commit names the commit of the source tree that one stands in, for what is run from
// there, with "-dirty" where files differ from it, other than what measurements write; empty
// where there is none.
func Commit() string {
	out, _ := exec.Command("git", "describe", "--always").Output()
	differ, _ := exec.Command("git", "status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)docs/figures").Output()
	commit := strings.TrimSpace(string(out))
	if len(differ) > 0 && commit != "" {
		commit += "-dirty"
	}
	return commit
}

// Pause waits, unless ctx ends before: then it says why.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
