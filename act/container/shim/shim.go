// Package shim finds the program of the small processes that run beside containers.
//
// Each of them is a part of this program, started again under a name of its own. With
// everything that the agent needs to talk to a cluster, each would start 15 ms later, at
// every start and move of a guest. pagurus-shim contains only these parts.
package shim

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// name is the file name of the program, which is in the same folder as this one.
const name = "pagurus-shim"

// self is this program.
const self = "/proc/self/exe"

var (
	program = find()
	asked   bool // Become was called
)

// Program returns a path at which a child of this process finds the program. It is the
// file that was beside this program at its start, even if another was installed since. If
// there was none, it is this program itself, which then must have called Become: otherwise
// each child would do all that this process does, and start the next one.
func Program() string {
	if program == self && !asked {
		panic("this program starts itself as another, and its main did not call shim.Become")
	}
	return program
}

// Table has what each of the small processes does, by the name under which the program is
// started. The arguments come without that name.
type Table map[string]func(args []string) error

// Become makes this process the one of the tables that it was started as, and does not
// return then. Every program that may be Program calls it before anything else.
func Become(tables ...Table) {
	asked = true
	for _, t := range tables {
		run, ok := t[os.Args[0]]
		if !ok {
			continue
		}
		// The kernel would name it by the last part of Program's path, which tells people nothing.
		_ = os.WriteFile("/proc/self/comm", []byte(os.Args[0]), 0) // it runs without, too
		if err := run(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

func find() string {
	path, err := os.Readlink(self)
	if err != nil {
		return self
	}
	fd, err := unix.Open(filepath.Join(filepath.Dir(path), name), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return self
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd) // in a child, this number may be another file's
}
