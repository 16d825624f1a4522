// This file has `pagurus isolate --boot`: it prepares this machine's boot loader. act/isolate knows how.

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pagurus/act/isolate"
	"pagurus/fleet"
	"pagurus/show/view"
)

// booting is one call of `pagurus isolate --boot`.
type booting struct {
	on, undo, dry, domain, json bool

	root string // empty: /; tests have others
	out  io.Writer
	say  func(string)
}

// The flags beside --boot.
const (
	bootFlag   = "boot"
	undoFlag   = "undo"
	dryFlag    = "dry-run"
	domainFlag = "domain"
)

func (b *booting) add(f *pflag.FlagSet) {
	f.BoolVar(&b.on, bootFlag, false, "prepare this machine's boot loader, instead of asking a host")
	f.BoolVar(&b.undo, undoFlag, false, "with --boot: put back what --boot has changed")
	f.BoolVar(&b.dry, dryFlag, false, "with --boot: say what would change, and change nothing")
	f.BoolVar(&b.domain, domainFlag, false, "with --boot: the scheduler does not spread threads over these CPUs; only for hosts whose guests are all tuned")
}

func (b *booting) check(cmd *cobra.Command, args []string) error {
	switch {
	case !b.on:
		return fmt.Errorf("--%s, --%s and --%s go with --%s, as in `pagurus isolate --boot --undo`", undoFlag, dryFlag, domainFlag, bootFlag)
	case len(args) > 0:
		return fmt.Errorf("--%s is about this machine, so leave %q out: run it on that host itself", bootFlag, args[0])
	case b.undo && (b.domain || cmd.Flags().Changed(fleet.CoresFlag)):
		return fmt.Errorf("--%s puts everything back: leave --%s and --%s out", undoFlag, fleet.CoresFlag, domainFlag)
	}
	return nil
}

// run shows what changes, and changes it.
func (b *booting) run(ctx context.Context, cores string) error {
	loader := isolate.Boot{Root: b.root}
	change, err := b.wanted(loader, cores)
	if err != nil {
		return err
	}
	if err := b.print(change); err != nil || b.dry || !change.Needed() {
		return err
	}
	if b.root == "" {
		if os.Geteuid() != 0 {
			return errors.New("only root may change how this machine boots: run it with sudo")
		}
		if why := isolate.Foreign(); why != "" {
			return fmt.Errorf("this is not the machine itself: %s", strings.Replace(why, "its agent runs", "this runs", 1))
		}
	}
	if err := loader.Do(ctx, change); err != nil {
		return err
	}
	if b.undo {
		b.say("done: the machine boots without it from its next boot on")
		return nil
	}
	b.say("done: restart the machine when its guests are elsewhere (`pagurus drain HOST --wait`); then isolate the same CPUs with `pagurus isolate HOST on`")
	return nil
}

func (b *booting) wanted(loader isolate.Boot, cores string) (isolate.BootChange, error) {
	if b.undo {
		return loader.Undo()
	}
	cpus, err := fleet.ParseCPUs(cores)
	if err != nil {
		return isolate.BootChange{}, fmt.Errorf("--"+fleet.CoresFlag+" %w", err)
	}
	if len(cpus) == 0 {
		if cpus, err = loader.Usual(); err != nil {
			return isolate.BootChange{}, err
		}
	}
	return loader.Prepare(cpus, b.domain)
}

// print shows a change before it is made.
func (b *booting) print(c isolate.BootChange) error {
	if b.json {
		return json.NewEncoder(b.out).Encode(c)
	}
	var text strings.Builder
	switch {
	case !c.Needed() && b.undo:
		fmt.Fprintln(&text, "nothing is prepared, so there is nothing to put back")
	case !c.Needed():
		fmt.Fprintln(&text, "it is prepared already:", strings.Join(c.Words, " "))
	}
	for _, f := range c.Files {
		if f.Text == "" {
			fmt.Fprintf(&text, "remove %s\n", f.Path)
			continue
		}
		fmt.Fprintf(&text, "write %s:\n", f.Path)
		for line := range strings.Lines(f.Text) {
			text.WriteString("    " + line)
		}
	}
	if c.Needed() {
		fmt.Fprintln(&text, "run", strings.Join(c.Command, " "))
	}
	for _, n := range c.Notes {
		fmt.Fprintln(&text, "note:", n)
	}
	for line := range strings.Lines(text.String()) {
		if _, err := fmt.Fprintln(b.out, view.Clean(strings.TrimSuffix(line, "\n"))); err != nil {
			return err
		}
	}
	return nil
}
