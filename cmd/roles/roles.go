// Package roles has what Pagurus's programs share: the flags of agent and controller, the
// programs' names, and the folders.
//
// The commands `pagurus up`, `agent` and `controller` have the flags of the programs
// pagurus-agent and pagurus-controller, so these flags are defined once, here. The package
// must not know what the programs do. Its tests check command lines.
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

// Pagurus's folders on a machine.
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

// OpenLimit bounds the opening of drivers: a hanging hardware probe takes seconds.
const OpenLimit = 60 * time.Second

// Group is the control group of a host's guests. It has no parent group: siblings decide who
// shares the CPUs with whom, and guests that are deprioritised against everyone must be
// siblings of everyone.
func Group(host string) string { return "pagurus-" + host }

// Given returns the flags that were given on a command line, as arguments for another program.
// It leaves out the flags that the other program does not have.
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

// Until returns a context that ends on SIGINT or SIGTERM.
func Until(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
}

// Beside returns the path of a program that is installed beside this one.
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
