package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"

	"golang.org/x/sys/unix"

	"pagurus/act/guestnet"
)

// lockDir is the folder in which programs make lock files.
const lockDir = "/run/lock"

// furnish makes what programs expect besides the image's files.
func furnish() error {
	links := map[string]string{
		"/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0",
		"/dev/stdout": "/proc/self/fd/1", "/dev/stderr": "/proc/self/fd/2",
	}
	for path, to := range links {
		if err := os.Symlink(to, path); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	for _, dir := range []string{runDir, lockDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := placeSelf(); err != nil {
		return err
	}
	// Ranks of one guest copy each other's memory; without this Open MPI warns and copies
	// twice.
	os.WriteFile("/proc/sys/kernel/yama/ptrace_scope", []byte("0"), 0)
	if err := guestnet.Up("lo"); err != nil {
		return fmt.Errorf("bringing lo up: %w", err)
	}
	return nil
}

// placeSelf puts the guest agent at selfPath under all its names.
func placeSelf() error {
	f, err := os.OpenFile(selfPath, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	f.Close()
	// The running binary lies outside this root; only its magic link leads there.
	if err := unix.Mount("/proc/self/exe", selfPath, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("placing the guest agent in the root: %w", err)
	}
	return nameSelf()
}

// nameSelf gives the guest agent at selfPath its other names.
func nameSelf() error {
	for _, name := range []string{"rsh", execName} {
		if err := os.Symlink("pagurus-guest", filepath.Join(runDir, name)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// ignoreSignals keeps signals from ending the first process, which would end the guest. They
// are caught and dropped: ignored signals would also be ignored in every program.
func ignoreSignals() {
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT,
		unix.SIGPIPE, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGPWR)
}
