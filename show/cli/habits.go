package cli

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pagurus/fleet"
)

// habits are flags of mpirun and mpiexec that `run` does not have, with what to type
// instead. One-letter flags have that letter as key. What is in braces is an example of the
// flag's value; the answer has the value that was typed.
var habits = map[string]string{
	"N":                 "pagurus spreads ranks evenly: for {K} ranks a guest write --" + fleet.GuestsFlag + " RANKS/{K} where mpirun has -N {K}",
	"np":                "write -n {4} where mpirun has -np {4}",
	"ppn":               "pagurus spreads ranks evenly: for {K} ranks a guest write --" + fleet.GuestsFlag + " RANKS/{K} where mpiexec has --ppn {K}",
	"npernode":          "pagurus spreads ranks evenly: for {K} ranks a guest write --" + fleet.GuestsFlag + " RANKS/{K} where mpirun has --npernode {K}",
	"host":              "write --" + onFlag + " {host1,host2} where mpirun has --host {host1,host2}",
	"hosts":             "write --" + onFlag + " {host1,host2} where mpiexec has --hosts {host1,host2}",
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
	"c":                 "write -n {4} where mpirun has -c {4}; --" + cpusFlag + " says how many CPUs a guest has",
	"ntasks":            "write -n {4} where srun has --ntasks {4}",
	"nodes":             "write --" + fleet.GuestsFlag + " {2} where srun has --nodes {2}: a guest takes the place of a node",
	"npersocket":        "ranks fill guests in order: --" + fleet.GuestsFlag + " and --" + cpusFlag + " say how many of each",
	"rank-by":           "ranks fill guests in order, and have their numbers in that order: leave --rank-by out",
	"report-bindings":   "guests are bound, not ranks: `pagurus guest tune GUEST` shows a guest's CPUs",
	"display-map":       "`pagurus guest ls` shows where a job's guests are: leave --display-map out",
	"tag-output":        "leave --tag-output out: a program can print its rank, OMPI_COMM_WORLD_RANK or PMI_RANK, itself",
	"cpus-per-proc":     "leave --cpus-per-proc out: --" + cpusFlag + " says how many CPUs a guest has",
	"cpus-per-rank":     "leave --cpus-per-rank out: --" + cpusFlag + " says how many CPUs a guest has",
	"env":               "write --" + envFlag + " NAME=VALUE where mpiexec has -env NAME VALUE",
	"envall":            "write --" + envFlag + " NAME for each variable that the program needs",
	"iface":             "a job's guests have one network of their own: leave -iface out",
	"launcher":          "pagurus starts ranks in guests by itself: leave -launcher out",
	"gpus":              "write --" + fleet.DeviceFlag + " pci:ADDRESS where other programs have --gpus: `pagurus host ls --json` lists the devices of hosts",
	"gres":              "write --" + fleet.DeviceFlag + " pci:ADDRESS where srun has --gres: `pagurus host ls --json` lists the devices of hosts",
	"prefix":            "the image has its own MPI: --" + imageFlag + " says which",
}

// They match pflag's errors for an unknown flag and for "-np 4", a one-letter flag with the number that may
// follow it at once, and a value in habits.
var (
	unknownFlag      = regexp.MustCompile(`^unknown flag: --(\S+)`)
	unknownShorthand = regexp.MustCompile(`^unknown shorthand flag: '(.)' in -(\S+)`)
	numberOfRanks    = regexp.MustCompile(`"([a-z]+)=?[0-9]*" for "-n`)
	onlyDigits       = regexp.MustCompile(`^.=?[0-9]*$`)
	example          = regexp.MustCompile(`\{([^}]*)\}`)
)

// synonyms are names of verbs. Who types one of a line means the first of it that there is.
var synonyms = [][]string{
	{"ls", "list", "ps", "all"},
	{"show", "explain", "info", "describe", "inspect", "get", "status", "why"},
	{"rm", "delete", "del", "remove", "destroy", "drop", "purge"},
	{"create", "add", "build", "new", "make", "init", "pull"},
	{"migrate", "mv", "move"},
	{"cancel", "kill", "stop", "abort"},
	{"down", "stop", "rm", "delete", "destroy"},
	{"up", "start", "create"},
	{"run", "start", "submit", "exec", "launch"},
	{"logs", "log", "output", "tail", "cat"},
	{"drain", "cordon", "empty"},
	{"undrain", "uncordon"},
}

// elsewhere are commands of other programs, each with the one of pagurus that does it.
var elsewhere = map[string]string{
	"ls": "job ls", "list": "job ls", "ps": "job ls", "squeue": "job ls", "qstat": "job ls",
	"nodes": "host ls", "node": "host ls", "sinfo": "host ls", "pbsnodes": "host ls", "status": "host ls",
	"vm": "guest ls", "vms": "guest ls", "container": "guest ls", "containers": "guest ls",
	"mpirun": "run", "mpiexec": "run", "orterun": "run", "srun": "run", "sbatch": "run --detach", "qsub": "run --detach", "submit": "run --detach",
	"scancel": "cancel", "qdel": "cancel", "build": "image build", "remove": "host rm",
	"init": "cluster init", "check": "doctor",
}

// Habits are the commands of other programs that are answered with one of pagurus.
func Habits() []string { return slices.Sorted(maps.Keys(elsewhere)) }

// flagError says what is wrong with a flag, what to type instead, and where to read more.
func flagError(cmd *cobra.Command, err error, typed []string) error {
	text := err.Error()
	if cmd.Name() == "run" {
		if says := habit(text, typed); says != "" {
			return usage(cmd, says)
		}
	}
	if m := unknownFlag.FindStringSubmatch(text); m != nil {
		text += likeFlag(cmd, m[1])
	}
	return usage(cmd, orElse(badValue(err, typed), text))
}

// likeFlag names, for a sentence, the flag that a mistyped one may mean: a near name, a
// shorter or longer one, or the flag of a command beside it; empty if there is none.
func likeFlag(cmd *cobra.Command, word string) string {
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if near := Nearest(word, names); near != "" {
		return ", did you mean --" + near + "?"
	}
	const least = 3 // letters that say what is meant
	for _, name := range names {
		if min(len(word), len(name)) >= least && (strings.HasPrefix(word, name) || strings.HasPrefix(name, word)) {
			return ", did you mean --" + name + "?"
		}
	}
	if !cmd.HasParent() {
		return ""
	}
	for _, beside := range cmd.Parent().Commands() {
		if beside.IsAvailableCommand() && beside.Flags().Lookup(word) != nil {
			return fmt.Sprintf(", did you mean `%s --%s`?", beside.CommandPath(), word)
		}
	}
	return ""
}

// habit says what to type instead of a flag of mpirun; empty for other errors.
func habit(text string, typed []string) string {
	var names []string
	switch {
	case numberOfRanks.MatchString(text):
		names = []string{"n" + numberOfRanks.FindStringSubmatch(text)[1]}
	case unknownFlag.MatchString(text):
		names = []string{unknownFlag.FindStringSubmatch(text)[1]}
	case unknownShorthand.MatchString(text):
		// mpirun also takes long names after one dash. An h before the rest asked for help.
		m := unknownShorthand.FindStringSubmatch(text)
		names = []string{m[2], "h" + m[2]}
		if onlyDigits.MatchString(m[2]) {
			names = append(names, m[1])
		}
	}
	for _, name := range names {
		if says := habits[name]; says != "" {
			value := valueOf(name, typed)
			return example.ReplaceAllStringFunc(says, func(s string) string { return cmp.Or(value, strings.Trim(s, "{}")) })
		}
	}
	return ""
}

// valueOf is what was typed as a flag's value: the next word, or the rest of the flag's own;
// empty if there is none.
func valueOf(name string, typed []string) string {
	for i, arg := range typed {
		rest, is := strings.CutPrefix(strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-"), name)
		switch {
		case !is || !strings.HasPrefix(arg, "-"):
		case rest == "" && i+1 < len(typed) && !strings.HasPrefix(typed[i+1], "-"):
			return typed[i+1]
		case strings.Trim(rest, "=0123456789") == "" || strings.HasPrefix(rest, "="):
			return strings.TrimPrefix(rest, "=")
		}
	}
	return ""
}

// Nearest is the name with the fewest changes from a word, or empty if all have more than
// two, of a short word more than one. Two letters in the wrong order are one change. Among
// equals a name that begins with the word wins.
func Nearest(word string, names []string) string {
	const short = 4
	word = strings.ToLower(word)
	most := 2
	if len(word) <= short {
		most = 1
	}
	best, least := "", most+1
	for _, name := range slices.Sorted(slices.Values(names)) {
		changes := levenshtein.ComputeDistance(word, name)
		if changes == 2 && sortedLetters(word) == sortedLetters(name) {
			changes = 1
		}
		if changes < len(name) && (changes < least || changes == least && strings.HasPrefix(name, word) && !strings.HasPrefix(best, word)) {
			best, least = name, changes
		}
	}
	return best
}

func sortedLetters(word string) string { return string(slices.Sorted(slices.Values([]byte(word)))) }

// like names, for a sentence, the subcommand of cmd that a word may mean, mistyped or learnt
// elsewhere; empty if there is none.
func like(cmd *cobra.Command, word string) string {
	found := ""
	if !cmd.HasParent() {
		found = elsewhere[word]
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(append(names, c.Name()), c.Aliases...)
		}
	}
	if found = cmp.Or(found, synonym(word, names), Nearest(word, names)); found != "" {
		return fmt.Sprintf(", did you mean %q?", found)
	}
	return ""
}

// synonym is the name that means the same as a word; empty if there is none.
func synonym(word string, names []string) string {
	for _, line := range synonyms {
		if !slices.Contains(line, word) {
			continue
		}
		if i := slices.IndexFunc(line, func(verb string) bool { return slices.Contains(names, verb) }); i >= 0 {
			return line[i]
		}
	}
	return ""
}
