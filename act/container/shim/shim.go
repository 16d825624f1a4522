// Package shim finds the program of the small processes that stand beside
// containers.
//
// Each of them is a part of this program, started anew under a name of its own.
// Started with all that it takes to speak to a cluster, it would be ready some 15 ms
// later, at every start and move of a guest; pagurus-shim has these parts alone.
package shim

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Name is the program's, which is beside this one.
const Name = "pagurus-shim"

// self is this program.
const self = "/proc/self/exe"

var program = find()

// Program is a path at which a child of this process finds the program: what was
// beside this one when it was started, whatever was installed since. Where there was
// none it is this program itself.
func Program() string { return program }

func find() string {
	path, err := os.Readlink(self)
	if err != nil {
		return self
	}
	fd, err := unix.Open(filepath.Join(filepath.Dir(path), Name), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return self
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd) // a child may have another file of that number
}
