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
	"strings"

	"golang.org/x/sys/unix"
)

// name is the file name of the program, which is in the same folder as this one.
const name = "pagurus-shim"

// parts begins the names under which the program is started.
const parts = "pagurus-"

// self is this program.
const self = "/proc/self/exe"

var program = find()

// Program returns a path at which a child of this process finds the program. It is the
// file that was beside this program at its start, even if another was installed since. If
// there was none, it is this program itself.
func Program() string { return program }

// Otherwise the kernel would name the process by the last part of that path, which means
// nothing to people.
func init() {
	if len(os.Args) > 0 && strings.HasPrefix(os.Args[0], parts) {
		_ = os.WriteFile("/proc/self/comm", []byte(os.Args[0]), 0) // it runs without, too
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
