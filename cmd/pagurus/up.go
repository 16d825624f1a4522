// This file has the commands that start the programs beside this one: `pagurus up`,
// `pagurus agent` and `pagurus controller`.

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pagurus/act/machine"
	"pagurus/cmd/roles"
	"pagurus/show/cli"
)

// agentCommand starts the program pagurus-agent.
func agentCommand() *cobra.Command {
	return roles.AgentCommand("agent", func(cmd *cobra.Command, _ roles.Agent, _ bool) error { return become(roles.AgentProgram, cmd) })
}

// controllerCommand starts the program pagurus-controller.
func controllerCommand(std streams) *cobra.Command {
	cmd := roles.ControllerCommand("controller", func(cmd *cobra.Command, _ roles.Controller) error { return become(roles.ControllerProgram, cmd) })
	cmd.AddCommand(controllerVerbs(std)...)
	return cmd
}

// become has the program beside this one go on in this process with a verb and the same flags,
// so that signals and the process's number are the program's: a unit, or a script, that started
// "pagurus agent" stops the agent itself. A child would need a parent that passes on every signal,
// and would run on when that parent is killed. become returns only if the program cannot start.
func become(program string, cmd *cobra.Command, verb ...string) error {
	path, err := roles.Beside(program)
	if err != nil {
		return err
	}
	has := pflag.NewFlagSet(program, pflag.ContinueOnError)
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "json" || len(verb) > 0 { // which daemons have nothing to do with
			has.AddFlag(f)
		}
	})
	return fmt.Errorf("starting %s: %w", path, syscall.Exec(path, slices.Concat([]string{program}, verb, roles.Given(cmd.Flags(), has)), os.Environ()))
}

// doctorCommand is short for the doctor of the program pagurus-agent, which has the drivers.
func doctorCommand() *cobra.Command {
	return roles.DoctorCommand(
		func(cmd *cobra.Command, _ bool) error { return become(roles.AgentProgram, cmd, roles.DoctorVerb) },
		func(cmd *cobra.Command) error {
			return become(roles.AgentProgram, cmd, roles.DoctorVerb, roles.CRIUVerb)
		})
}

// missing asks the doctor what guests need and this machine lacks.
func missing(ctx context.Context) (names []string, err error) {
	path, err := roles.Beside(roles.AgentProgram)
	if err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, path, roles.DoctorVerb, "--"+roles.QuickFlag, "--json").Output()
	if exit := (*exec.ExitError)(nil); err != nil && !(errors.As(err, &exit) && len(out) > 0) { // it fails when something is missing
		return nil, err
	}
	var found []machine.Finding
	if err := json.Unmarshal(out, &found); err != nil {
		return nil, fmt.Errorf("understanding the doctor: %w", err)
	}
	for _, f := range found {
		if !f.OK && f.Needed {
			names = append(names, f.Name)
		}
	}
	return names, nil
}

// mend has the doctor install it.
func mend(std streams) func(context.Context) error {
	return func(ctx context.Context) error {
		path, err := roles.Beside(roles.AgentProgram)
		if err != nil {
			return err
		}
		doctor := exec.CommandContext(ctx, path, roles.DoctorVerb, "--fix")
		doctor.Stdout, doctor.Stderr = std.out, std.err
		if exit := (*exec.ExitError)(nil); errors.As(doctor.Run(), &exit) {
			return cli.Exit{Code: exit.ExitCode()} // it has said why
		}
		return nil
	}
}

func upCommand(std streams) *cobra.Command {
	var a roles.Agent
	var c roles.Controller
	ofAgent, ofController := pflag.NewFlagSet("", pflag.ContinueOnError), pflag.NewFlagSet("", pflag.ContinueOnError)
	a.Add(ofAgent)
	c.Add(ofController, "")
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Make this machine a cluster of one host: a controller and an agent",
		Long: `Up runs a controller and an agent until it is told to end. If one of them ends before,
Up ends the other, says which it was, and exits with an error.
Guests run on, and the next one finds them again. For more hosts give --listen, make a
token with ` + "`pagurus token create`" + `, and run ` + "`pagurus join`" + ` on them.`,
		Example: "  sudo pagurus up",
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := configureBoth(cmd.Flags(), ofAgent, ofController); err != nil {
				return err
			}
			if err := roles.Blame(ofAgent, a.Finish()); err != nil {
				return err
			}
			c.Finish()
			roles.AddConfig(ofAgent) // both programs read it again
			roles.AddConfig(ofController)
			args := append(roles.Given(cmd.Flags(), ofAgent), roles.LeaseOfOne(ofAgent)...)
			if a.Address == "" {
				args = append(args, "--address="+roles.Loopback)
			}
			ctx, stop := roles.Until(cmd.Context())
			defer stop()
			return both(ctx, std, c, append(roles.Given(cmd.Flags(), ofController), "--listen="+c.Listen), args)
		},
	}
	cmd.Flags().AddFlagSet(ofAgent)
	cmd.Flags().AddFlagSet(ofController)
	roles.AddConfig(cmd.Flags())
	return cmd
}

// configureBoth completes the flags of both roles. Those that both have are given to both on
// a command line, which stores them with the agent's; a file may tell them apart.
func configureBoth(given, ofAgent, ofController *pflag.FlagSet) (err error) {
	given.Visit(func(f *pflag.Flag) {
		if same := ofController.Lookup(f.Name); same != nil && same != f {
			err = errors.Join(err, ofController.Set(f.Name, f.Value.String()))
		}
	})
	config := roles.ReadConfig(given)
	if err == nil {
		err = config.Apply(roles.AgentTable, ofAgent)
	}
	if err == nil {
		err = config.Apply(roles.ControllerTable, ofController)
	}
	return err
}

// upPurpose names the controller of `pagurus up` in errors.
const upPurpose = "`pagurus up`"

// both runs a controller and, once it answers, an agent. When one ends it ends the other.
// They print their own errors.
func both(ctx context.Context, std streams, c roles.Controller, ofController, ofAgent []string) error {
	// An existing controller would answer instead of ours.
	lock, err := roles.HoldLock(c.Socket, upPurpose)
	if err == nil {
		err = lock.Release()
	}
	if err != nil {
		return err
	}
	// The kernel sends Pdeathsig when the starting thread ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended, running := make(chan error), 0
	start := func(program string, args ...string) error {
		path, err := roles.Beside(program)
		if err != nil {
			return err
		}
		p := exec.CommandContext(ctx, path, args...)
		p.Stdout, p.Stderr, p.Env = std.out, std.err, environment()
		p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM} // a Ctrl-C is passed on once
		p.Cancel = func() error { return p.Process.Signal(syscall.SIGTERM) }
		if err := p.Start(); err != nil {
			return fmt.Errorf("starting %s: %w", program, err)
		}
		running++
		go func() { ended <- ending(ctx, program, p.Wait()) }()
		return nil
	}
	at := "unix:" + c.Socket
	err = start(roles.ControllerProgram, append(ofController, "--purpose="+upPurpose)...)
	for err == nil && running == 1 {
		select {
		case err = <-ended:
			return err
		case <-time.After(labPoll):
			if connected(ctx, at) != nil {
				err = start(roles.AgentProgram, append(ofAgent, "--controller="+at)...)
			}
		}
	}
	errs := []error{err}
	if err != nil {
		stop()
	}
	for range running {
		errs = append(errs, <-ended)
		stop()
	}
	return firstOf(errs)
}

// ending is the error to end with when a program has ended; nil: it was told to, and ended well.
// What made it fail it has said itself, unless it was killed.
func ending(ctx context.Context, program string, err error) error {
	code, how := 1, "without being told to"
	exit := (*exec.ExitError)(nil)
	if errors.As(err, &exit) {
		how = exit.String() // as in "exit status 1", "signal: killed"
		if exit.Exited() {
			code = exit.ExitCode()
		}
	}
	if exit == nil || !exit.Exited() && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGTERM {
		select { // who ends a service may tell all its programs at once, and this one is heard first
		case <-ctx.Done():
			return nil
		case <-time.After(labPoll):
		}
	}
	return cli.Exit{Code: code, Err: fmt.Errorf("%s has ended (%s), so "+upPurpose+" ends; guests run on, and the next "+upPurpose+" finds them", program, how)}
}

// firstOf is the first error: the rest follows from it.
func firstOf(errs []error) error {
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return errs[i]
	}
	return nil
}

// environment is this process's without another controller's address and credentials.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(s string) bool {
		return strings.HasPrefix(s, "PAGURUS_CONTROLLER=") || strings.HasPrefix(s, "PAGURUS_CREDENTIALS=")
	})
}
