// Package shim finds the program of the small helper processes that run beside containers.
//
// Each helper is a part of this program, started again under a name of its own. If it
// contained everything that the agent needs to talk to a cluster, each would start 15 ms
// later, at every start and move of a guest. So there is pagurus-shim, which contains only the
// helpers. Those that need much and stay for long, as of encryption, are in pagurus-daemon: a shim
// with them starts in 7 ms in place of 4.
package shim

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// The programs' file names. They are in the same folder as this one.
const (
	name   = "pagurus-shim"
	daemon = "pagurus-daemon"
)

// self is this program.
const self = "/proc/self/exe"

var (
	program = find(name)
	kept    = find(daemon)
	asked   bool // Become was called
)

// Program returns a path at which a child of this process finds the program. It is the file
// that was beside this program at its start, even if another was installed since. In a test, whose
// main called Become, it is the test itself. Without either, Check has said so, and nothing starts.
func Program() string { return startable(program) }

// Daemon is as Program, of the helpers that stay.
func Daemon() string { return startable(kept) }

func startable(program string) string {
	if program == self && !asked {
		return "" // so no child does all that this process does, and starts the next one
	}
	return program
}

// Check says what to do if Program or Daemon cannot be started.
func Check() error {
	for path, is := range map[string]string{program: name, kept: daemon} {
		if startable(path) == "" {
			return fmt.Errorf("%s is not beside this program, and containers need it: install Pagurus again", is)
		}
	}
	return nil
}

// Table has the function of each helper process, by the name under which the program is
// started. The arguments come without that name.
type Table map[string]func(args []string) error

// Become makes this process the helper of the tables that it was started as; then it does not
// return. Both programs call Become before anything else, and so do tests, beside which there is
// neither.
func Become(tables ...Table) {
	asked = true
	as := filepath.Base(os.Args[0]) // Xen's tools start it by a path
	for _, t := range tables {
		run, ok := t[as]
		if !ok {
			continue
		}
		// The kernel would name it by the last part of Program's path, which tells people nothing.
		_ = os.WriteFile("/proc/self/comm", []byte(as), 0) // it runs without, too
		if err := run(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

func find(name string) string {
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
