// Package libpagurus has the files of the library by which programs steer their own jobs: for C, Fortran and
// Python. The guest agent puts them into each guest as it begins, and `pagurus image shell` has them, too: so they
// are there with any image, and fit the guest agent that answers them, and images stay as they are.
//
// It must not know what the library says. Its tests build the library from its source, and use it without Pagurus,
// from C, Fortran and Python.
package libpagurus

import (
	_ "embed"
	"errors"
	"os"
	"path/filepath"
)

//go:embed lib/libpagurus.so
var library []byte

//go:embed lib/pagurus.h
var header []byte

//go:embed lib/pagurus.pc
var pkgConfig []byte

//go:embed lib/pagurus.f90
var fortran []byte

//go:embed lib/libpagurus.py
var python []byte

//go:embed lib/libpagurus-mpi.so
var spawner []byte

//go:embed lib/libpagurus-launch.so
var launcher []byte

// Launcher is loaded before all other libraries (LD_PRELOAD) by Open MPI's mpirun.
const Launcher = "/" + libraries + "/libpagurus-launch.so"

// Spawner is what is loaded before all other libraries (LD_PRELOAD) by programs whose job may grow: it gives MPI_Comm_spawn its hints.
const Spawner = "/" + libraries + "/" + soName + ":" + spawnerPath

const spawnerPath = "/" + libraries + "/libpagurus-mpi.so"

// libraries is where Debian's compilers and loaders look without being told.
const libraries = "usr/lib/x86_64-linux-gnu"

// soName is what programs that are linked with the library load.
const soName = "libpagurus.so.0"

// Place puts the files below a root. It may be called again. After an error some of them are there.
func Place(root string) error {
	var errs []error
	for _, f := range []struct {
		at   string
		text []byte
	}{
		{filepath.Join(libraries, soName), library},
		{spawnerPath, spawner},
		{Launcher, launcher},
		{filepath.Join(libraries, "pkgconfig/pagurus.pc"), pkgConfig},
		{"usr/include/pagurus.h", header},
		{"usr/include/pagurus.f90", fortran},
		{"usr/lib/python3/dist-packages/libpagurus.py", python},
	} {
		at := filepath.Join(root, f.at)
		err := os.MkdirAll(filepath.Dir(at), 0o755)
		if err == nil {
			err = os.WriteFile(at, f.text, 0o644)
		}
		errs = append(errs, err)
	}
	plain := filepath.Join(root, libraries, "libpagurus.so") // what -lpagurus finds
	if _, err := os.Lstat(plain); err != nil {
		errs = append(errs, os.Symlink(soName, plain))
	}
	return errors.Join(errs...)
}
