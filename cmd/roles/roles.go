// Package roles has what Pagurus's programs agree on: the flags of agent and controller,
// the names of the programs, and the folders.
//
// What people type, `pagurus up`, `agent` and `controller`, has the flags of the programs
// pagurus-agent and pagurus-controller, so they are here once. It must not know what
// those programs do. Its tests are of command lines.
package roles

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
)

// Where a machine keeps Pagurus's things.
const (
	State  = "/var/lib/pagurus"
	Run    = "/run/pagurus"
	Images = State + "/images"
)

// The programs, which are in one folder.
const (
	ClientProgram     = "pagurus"
	AgentProgram      = "pagurus-agent"
	ControllerProgram = "pagurus-controller"
	GuestProgram      = "pagurus-guest"
)

// OpenLimit bounds how long drivers may take to look at the host: a probe
// of hardware that hangs takes seconds.
const OpenLimit = 60 * time.Second

// Group is the group of a host's guests. It has none above it: who shares
// the CPUs with whom is decided between siblings, and guests that give way to
// everybody on the machine have to be everybody's.
func Group(host string) string { return "pagurus-" + host }

// Given repeats, as arguments for another program, the flags of a command line that it
// has too.
func Given(flags, has *pflag.FlagSet) (args []string) {
	flags.Visit(func(f *pflag.Flag) {
		value := f.Value.String()
		if list, ok := f.Value.(pflag.SliceValue); ok {
			value = strings.Join(list.GetSlice(), ",")
		}
		if has.Lookup(f.Name) != nil {
			args = append(args, "--"+f.Name+"="+value)
		}
	})
	return args
}

// Until gives a context that ends when this process is told to.
func Until(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
}

// Beside gives the path of a program that is installed beside this one.
func Beside(name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding this program: %w", err)
	}
	if self, err = filepath.EvalSymlinks(self); err != nil {
		return "", fmt.Errorf("finding this program: %w", err)
	}
	path := filepath.Join(filepath.Dir(self), name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s belongs beside %s: build all with `make`: %w", name, self, err)
	}
	return path, nil
}
