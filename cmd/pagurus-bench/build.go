package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// builtBefore is where the binaries of other commits are kept, each in a folder of its commit's name.
const builtBefore = "bin/against"

// fullCommit is a commit's name as folders and records have it.
func fullCommit(ctx context.Context, name string) (string, error) {
	out, err := exec.CommandContext(ctx, "git", "rev-parse", "--verify", "--quiet", "--short=8", name+"^{commit}").Output()
	if err != nil {
		return "", fmt.Errorf("there is no commit %s here: `git log` lists those that there are", name)
	}
	return strings.TrimSpace(string(out)), nil
}

// built gives the binary of a commit, which is built with all that belong to it if it was not before.
// The commit's files are unpacked into a folder that is gone afterwards, also when ctx ends.
func built(ctx context.Context, commit string) (program string, err error) {
	folder := filepath.Join(builtBefore, commit)
	if program, err = filepath.Abs(filepath.Join(folder, "pagurus")); err != nil {
		return "", err
	}
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	if err := os.MkdirAll(builtBefore, 0o755); err != nil {
		return "", err
	}
	source, err := os.MkdirTemp(builtBefore, "source-") // beside the result, which is renamed
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(source)) }()
	fmt.Printf("building %s\n", commit)
	archive := filepath.Join(source, "commit.tar")
	for _, words := range [][]string{
		{"git", "archive", "--output", archive, commit},
		{"tar", "-C", source, "-xf", archive},
		{"make", "-C", source, "build", "VERSION=" + commit},
	} {
		if out, err := inGroup(ctx, words...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("building %s: %s: %w: %s", commit, words[0], errors.Join(context.Cause(ctx), err), tail(string(out)))
		}
	}
	return program, os.Rename(filepath.Join(source, "bin"), folder)
}

// inGroup is a command that ends with all that it has started when ctx ends.
func inGroup(ctx context.Context, words ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, words[0], words[1:]...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGTERM) }
	c.WaitDelay = 10 * time.Second
	return c
}

// tail is the end of what a command said, which has the error.
func tail(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}

// buildHere builds this commit's binaries, if their sources have changed.
func buildHere(ctx context.Context) error {
	if out, err := inGroup(ctx, "make", "build").CombinedOutput(); err != nil {
		return fmt.Errorf("make build: %w: %s", errors.Join(context.Cause(ctx), err), tail(string(out)))
	}
	return nil
}
