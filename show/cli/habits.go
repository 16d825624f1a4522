package cli

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pagurus/fleet"
)

// habits are flags of mpirun and mpiexec that `run` does not have, with what to type
// instead. One-letter flags have that letter as key.
var habits = map[string]string{
	"N":                 "pagurus spreads ranks evenly: for K ranks a guest write --" + fleet.GuestsFlag + " RANKS/K where mpirun has -N K",
	"p":                 "write -n 4 where mpirun has -np 4",
	"np":                "write -n 4 where mpirun has --np 4",
	"ppn":               "pagurus spreads ranks evenly: for K ranks a guest write --" + fleet.GuestsFlag + " RANKS/K where mpiexec has --ppn K",
	"npernode":          "pagurus spreads ranks evenly: for K ranks a guest write --" + fleet.GuestsFlag + " RANKS/K where mpirun has --npernode K",
	"host":              "write --" + onFlag + " host1,host2 where mpirun has --host",
	"hosts":             "write --" + onFlag + " host1,host2 where mpiexec has --hosts",
	"hostfile":          "pagurus chooses the hosts: leave --hostfile out, or name hosts by --" + onFlag + " host1,host2",
	"machinefile":       "pagurus chooses the hosts: leave --machinefile out, or name hosts by --" + onFlag + " host1,host2",
	"f":                 "pagurus chooses the hosts: leave -f out, or name hosts by --" + onFlag + " host1,host2",
	"oversubscribe":     "a guest takes as many ranks as you ask for: leave --oversubscribe out",
	"use-hwthread-cpus": "leave --use-hwthread-cpus out: --" + cpusFlag + " says how many CPUs a guest has",
	"map-by":            "ranks fill guests in order: --" + fleet.GuestsFlag + " and --" + cpusFlag + " say how many of each",
	"bind-to":           "guests are bound, not ranks: --" + tuneFlag + " pin binds a guest's CPUs",
	"mca":               "write --" + envFlag + " OMPI_MCA_NAME=VALUE where mpirun has --mca NAME VALUE",
	"genv":              "write --" + envFlag + " NAME=VALUE where mpiexec has -genv NAME VALUE",
	"genvall":           "write --" + envFlag + " NAME for each variable that the program needs",
	"wdir":              "the program begins in the current directory: change to the one you mean",
	"allow-run-as-root": "leave --allow-run-as-root out: pagurus lets root run what root submits",
	"prefix":            "the image has its own MPI: --" + imageFlag + " says which",
}

// They match pflag's errors for an unknown flag and for "-np 4".
var (
	unknownFlag      = regexp.MustCompile(`^unknown flag: --(\S+)`)
	unknownShorthand = regexp.MustCompile(`^unknown shorthand flag: '(.)' in -(\S+)`)
)

// flagError says what is wrong with a flag, what to type instead, and where to read more.
func flagError(cmd *cobra.Command, err error, typed []string) error {
	text := err.Error()
	if cmd.Name() == "run" {
		if says := habit(text); says != "" {
			return usage(cmd, says)
		}
	}
	if m := unknownFlag.FindStringSubmatch(text); m != nil {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near := Nearest(m[1], names); near != "" {
			text += ", did you mean --" + near + "?"
		}
	}
	return usage(cmd, orElse(badValue(err, typed), text))
}

// habit says what to type instead of a flag of mpirun; empty for other errors.
func habit(text string) string {
	if strings.Contains(text, `"p" for "-n`) {
		return habits["p"]
	}
	if m := unknownFlag.FindStringSubmatch(text); m != nil {
		return habits[m[1]]
	}
	if m := unknownShorthand.FindStringSubmatch(text); m != nil {
		// mpirun also takes long names after one dash. An h before the rest asked for help.
		for _, name := range []string{m[2], "h" + m[2]} {
			if says := habits[name]; says != "" {
				return says
			}
		}
		return habits[m[1]]
	}
	return ""
}

// Nearest is the name with the fewest changes from a word, or empty if all have more than
// two. Among equals a name that begins with the word wins.
func Nearest(word string, names []string) string {
	const mostChanges = 2
	best, least := "", mostChanges+1
	for _, name := range slices.Sorted(slices.Values(names)) {
		changes := levenshtein.ComputeDistance(strings.ToLower(word), name)
		if changes < len(name) && (changes < least || changes == least && strings.HasPrefix(name, word) && !strings.HasPrefix(best, word)) {
			best, least = name, changes
		}
	}
	return best
}

// like names, for a sentence, the subcommand of cmd that a mistyped word may mean; empty if
// there is none.
func like(cmd *cobra.Command, word string) string {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(append(names, c.Name()), c.Aliases...)
		}
	}
	if near := Nearest(word, names); near != "" {
		return fmt.Sprintf(", did you mean %q?", near)
	}
	return ""
}
