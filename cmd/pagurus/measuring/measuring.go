// Package measuring has the commands that measure: `pagurus bench`. What is
// measured and how is package bench's; here are flags, and what is printed.
//
// It uses the cluster as a person would, by the binary. Its tests are of
// command lines and of what is printed.
package measuring

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"pagurus/bench"
	"pagurus/serve/wire"
	"pagurus/show/cli"
	"pagurus/show/view"
)

// Streams are where the commands write, and what they have to know of this program.
type Streams struct {
	Out, Err io.Writer
	Version  string                                        // of this program, as it was built
	Beside   func(program string) (path string, err error) // finds what is installed with it
}

func (s Streams) say(format string, args ...any) {
	_, _ = fmt.Fprintf(s.Err, "pagurus: "+format+"\n", args...)
}

// defaultFolder is where records go, a folder each.
const defaultFolder = "bench"

// Bench gives the command `pagurus bench`.
func Bench(std Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure what programs lose in guests, and compare measurements",
		Long: `Bench measures real programs in guests and beside them, in turn, and keeps a
record of every raw sample. docs/measuring.md says what may be concluded.`,
		Example: `  pagurus bench ls
  sudo pagurus bench overhead --targets native,container --suite hpl,stream,netpipe
  sudo pagurus bench migration --targets container,vm
  sudo pagurus bench network --loss 1%
  pagurus bench noise
  pagurus bench compare bench/monday bench/tuesday`,
		Args: cli.OnlyVerbs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(lsCommand(std), overheadCommand(std), migrationCommand(std), networkCommand(std), noiseCommand(std), compareCommand(std))
	return cmd
}

func lsCommand(std Streams) *cobra.Command {
	in := defaultFolder
	cmd := &cobra.Command{
		Use:     "ls",
		Short:   "List what can be measured, and the records there are",
		Example: "  pagurus bench ls\n  pagurus bench ls --in /srv/records\n  pagurus bench ls --json | jq -r '.records[].folder'",
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON, _ := cmd.Flags().GetBool("json"); asJSON {
				records, _, err := recordsIn(in)
				if err != nil {
					return err
				}
				return json.NewEncoder(std.Out).Encode(measurable{Measurements: bench.Catalogue, Suite: suite(), Targets: append(targetNames(), movedNames()...), Records: records})
			}
			what := view.Table{Columns: []string{"MEASUREMENT", "BY", "WHAT"}}
			for _, m := range bench.Catalogue {
				what.Rows = append(what.Rows, []string{m.Name, m.By, m.Says})
			}
			table := view.Table{Columns: []string{"SUITE", "WHAT"}}
			for _, part := range suite() {
				table.Rows = append(table.Rows, []string{part.Name, part.Says})
			}
			records, err := recordTable(in)
			if err == nil {
				_, err = fmt.Fprintf(std.Out, "%s\n%s\nTargets: %s\n\n%s", what.Text(), table.Text(), strings.Join(append(targetNames(), movedNames()...), ", "), records.Text())
			}
			return err
		},
	}
	cmd.Flags().StringVar(&in, "in", in, "folder of the records")
	return cmd
}

// short is the Short of a command that carries a measurement of the catalogue out.
func short(name string) string { return "Measure " + bench.Says(bench.ByCommand, name) }

// measurable is what there is, for --json.
type measurable struct {
	Measurements []bench.Measurable `json:"measurements"`
	Suite        []suitePart        `json:"suite"`
	Targets      []string           `json:"targets"`
	Records      []recorded         `json:"records"`
}

// recorded is a record in short.
type recorded struct {
	Folder   string    `json:"folder"`
	Begun    time.Time `json:"begun"`
	Commit   string    `json:"commit"`
	Targets  []string  `json:"targets"`
	Programs []string  `json:"programs"`
	Runs     int       `json:"runs"`
	Complete bool      `json:"complete"` // false: it was cut off
}

// recordsIn are the records in the folders of a folder, the newest first, and what is wrong
// with others.
func recordsIn(in string) (all []recorded, wrong []string, err error) {
	files, err := filepath.Glob(filepath.Join(in, "*", bench.RecordName))
	if err != nil {
		return nil, nil, err
	}
	all = []recorded{}
	for _, f := range files {
		r, err := bench.Load(f)
		if err != nil {
			wrong = append(wrong, err.Error())
			continue
		}
		one := recorded{Folder: filepath.Dir(f), Begun: r.Begun, Commit: r.Machine.Commit, Targets: r.Spec.Targets, Runs: r.Spec.Runs, Complete: r.Complete}
		for _, p := range r.Spec.Programs {
			one.Programs = append(one.Programs, p.Name)
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b recorded) int { return b.Begun.Compare(a.Begun) })
	return all, wrong, nil
}

// recordTable lists them for people.
func recordTable(in string) (view.Table, error) {
	table := view.Table{Columns: []string{"RECORD", "BEGUN", "COMMIT", "TARGETS", "PROGRAMS", "RUNS"}, Empty: "There are no records in " + in + "."}
	all, wrong, err := recordsIn(in)
	table.Notes = wrong
	for _, r := range all {
		runs := strconv.Itoa(r.Runs)
		if !r.Complete {
			runs += ", cut off"
		}
		table.Rows = append(table.Rows, []string{r.Folder, r.Begun.Format("2006-01-02 15:04"), r.Commit, several(r.Targets), strings.Join(r.Programs, ","), runs})
	}
	return table, err
}

// mostTargets is how many a record's line has room for.
const mostTargets = 4

// several names some of all: cores can be hundreds.
func several(targets []string) string {
	if n := len(targets); n > mostTargets {
		return fmt.Sprintf("%s to %s (%d)", targets[0], targets[n-1], n)
	}
	return strings.Join(targets, ",")
}

func compareCommand(std Streams) *cobra.Command {
	in := defaultFolder
	cmd := &cobra.Command{
		Use:   "compare A B",
		Short: "Compare two records",
		Long: `Compare takes every figure that two records have, and says the second one's as a
ratio to the first one's. A record is a file, its folder, or the commit of the Pagurus
that made it, as ` + "`pagurus version`" + ` prints it.

Runs of two records did not take turns. So a machine that has changed between them
changes the ratios too. Compare says which known things differ.`,
		Example: "  pagurus bench compare bench/monday bench/tuesday\n  pagurus bench compare 1a2b3c4 5d6e7f8 --json",
		Args:    cli.Exactly(2, "two records"),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := bench.Find(args[0], in)
			if err != nil {
				return err
			}
			b, err := bench.Find(args[1], in)
			if err != nil {
				return err
			}
			return std.print(cmd, bench.Compare(a, b))
		},
	}
	cmd.Flags().StringVar(&in, "in", in, "folder of the records, where commits are looked for")
	return cmd
}

const exitInterrupted = 130

// measured runs a bench until it has ended or this process is told to.
func measured(bench func(context.Context, *cobra.Command) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		if err := inherit(cmd); err != nil {
			return err
		}
		err := bench(ctx, cmd)
		if ctx.Err() != nil {
			return cli.Exit{Code: exitInterrupted, Err: errors.New("it was cancelled: what was measured before, if anything, is kept")}
		}
		return err
	}
}

// inherit makes the flags that locate the controller hold for the commands that are typed,
// too: these and this process read the environment.
func inherit(cmd *cobra.Command) error {
	for flag, variable := range map[string]string{"controller": wire.ControllerVariable, "credentials": wire.CredentialsVariable} {
		if value, err := cmd.Flags().GetString(flag); err == nil && value != "" {
			if err := os.Setenv(variable, value); err != nil {
				return err
			}
		}
	}
	return nil
}
