package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// execName is the guest agent's name when it becomes a program. It runs as the program's
// user, so that it gets the same errors as the program, also on the share, where root may do
// less than the user.
const execName = "pagurus-exec"

// Exit codes, as shells and containers have them.
const (
	exitOurs    = 125 // not the program's fault
	exitDenied  = 126 // it cannot be run
	exitMissing = 127
)

// execArgs makes the arguments for execProgram: change to dir, check that check can be run
// (if not empty), and become the program args.
func execArgs(dir, check string, args []string) []string {
	return append([]string{execName, dir, check}, args...)
}

// execProgram becomes a program. It returns only on failure, with the exit code, after a
// message.
func execProgram(args []string) int {
	if len(args) < 3 {
		fmt.Fprintln(os.Stderr, "pagurus: usage: "+execName+" DIRECTORY CHECK PROGRAM [ARGUMENT...]")
		return exitOurs
	}
	dir, check, args := args[0], args[1], args[2:]
	if err := os.Chdir(dir); err != nil {
		return sorry(exitOurs, fmt.Sprintf("working directory %s cannot be used in the guest (%v); run from a directory that the job's guests mount", dir, cause(err)))
	}
	if !isHere(os.Getenv("PWD")) { // the name that the job's user has for it
		os.Setenv("PWD", dir)
	}
	if check != "" {
		if _, code, err := resolve(check); err != nil {
			return sorry(code, err.Error())
		}
	}
	path, code, err := resolve(args[0])
	if err != nil {
		return sorry(code, err.Error())
	}
	return refused(args[0], syscall.Exec(path, args, os.Environ()))
}

// isHere reports whether a name is one of the working directory.
func isHere(name string) bool {
	there, err := os.Stat(name)
	here, herr := os.Stat(".")
	return filepath.IsAbs(name) && err == nil && herr == nil && os.SameFile(there, here)
}

func refused(name string, err error) int {
	switch {
	case errors.Is(err, unix.ENOENT):
		return sorry(exitMissing, name+" cannot be run: the interpreter or loader it names is missing in the image")
	case errors.Is(err, unix.ENOEXEC):
		return sorry(exitDenied, name+" cannot be run: it is not a program for this machine, and as a script it lacks a first line such as #!/bin/sh")
	}
	return sorry(exitDenied, fmt.Sprintf("%s cannot be run: %v", name, err))
}

func sorry(code int, sentence string) int {
	fmt.Fprintln(os.Stderr, "pagurus: "+sentence)
	return code
}

// resolve finds a program's file by its name, as execvp does. On failure code is the exit
// code.
func resolve(name string) (path string, code int, err error) {
	if strings.Contains(name, "/") {
		if code, err := runnable(name); err != nil {
			return "", code, err
		}
		return name, 0, nil
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		path := filepath.Join(dir, name)
		if _, err := runnable(path); err == nil {
			return path, 0, nil
		}
	}
	if _, err := os.Stat(name); err == nil && name != "" {
		return "", exitMissing, fmt.Errorf("%s is not in the guest's PATH; for the one in the working directory say ./%s", name, name)
	}
	return "", exitMissing, fmt.Errorf("program %q is not in the image; add its package to the image, or give the program's path on the job's files", name)
}

func runnable(path string) (code int, err error) {
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return exitMissing, fmt.Errorf("program %s does not exist in the guest; only the job's files and the image are there", path)
	case err != nil:
		return exitDenied, fmt.Errorf("program %s cannot be reached: %w", path, cause(err))
	case st.IsDir():
		return exitDenied, fmt.Errorf("%s is a directory, not a program", path)
	case unix.Access(path, unix.X_OK) != nil:
		return exitDenied, fmt.Errorf("%s is not executable; chmod +x it if it is a program", path)
	}
	return 0, nil
}

// cause strips operation and path from an error of package os, for sentences that already
// name both.
func cause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
