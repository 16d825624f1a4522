// This file answers mpirun's colon, which starts several programs as one job. Pagurus
// cannot do that itself, and the shell of each rank can.
//
// It must not know flags besides the one for ranks. Its tests are command lines.

package cli

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// rankVariable is a rank's number under Open MPI and under MPICH.
const rankVariable = "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"

// plainWord matches what needs no quotes in a shell.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./=+,@%-]+$`)

// severalPrograms says what to type instead of mpirun's `-n 2 a : -n 1 b`; empty: there is
// no such colon. A colon that no flag follows is an argument of the program, as expr has.
func severalPrograms(ranks int, args []string) string {
	i := slices.Index(args, ":")
	if i < 1 || i+1 >= len(args) || !strings.HasPrefix(args[i+1], "-") {
		return ""
	}
	const says = "pagurus runs one program in a job, so there is no colon as mpirun has it: let a shell choose by the rank, as in `%s`"
	const general = "pagurus run -n 3 -- sh -c 'if [ " + rankVariable + " -lt 2 ]; then exec ./a; else exec ./b; fi'"
	total, script := 0, ""
	for n, part := range splitColons(args) {
		count, words := ranks, part
		if n > 0 {
			if count, words = partRanks(part); count < 1 {
				return fmt.Sprintf(says, general)
			}
		}
		if len(words) == 0 || slices.ContainsFunc(words, func(w string) bool { return !plainWord.MatchString(w) }) {
			return fmt.Sprintf(says, general)
		}
		total += count
		script += fmt.Sprintf("if [ %s -lt %d ]; then exec %s; el", rankVariable, total, strings.Join(words, " "))
	}
	// The last part needs no condition.
	at := strings.LastIndex(script, "if [ ")
	last := script[at:]
	last = strings.TrimSuffix(last[strings.Index(last, "exec "):], "; el")
	return fmt.Sprintf(says, fmt.Sprintf("pagurus run -n %d -- sh -c '%sse %s; fi'", total, script[:at], last))
}

// splitColons parts a command line at its colons.
func splitColons(args []string) (parts [][]string) {
	for {
		i := slices.Index(args, ":")
		if i < 0 {
			return append(parts, args)
		}
		parts, args = append(parts, args[:i]), args[i+1:]
	}
}

// partRanks reads the ranks before a program, as mpirun has them behind a colon; 0: other
// flags are there.
func partRanks(part []string) (int, []string) {
	if len(part) < 3 || !slices.Contains([]string{"-n", "-np", "-c", "--np"}, part[0]) {
		return 0, nil
	}
	n, err := strconv.Atoi(part[1])
	if err != nil || strings.HasPrefix(part[2], "-") {
		return 0, nil
	}
	return n, part[2:]
}
