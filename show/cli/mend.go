package cli

import (
	"bufio"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// mending says whether join installs what this machine lacks: it asks, does it, or does not.
type mending struct{ fix, no bool }

func (m *mending) Add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&m.fix, "fix", false, "install what guests need and this machine lacks, without asking")
	cmd.Flags().BoolVar(&m.no, "no-fix", false, "install nothing, and do not ask")
	cmd.MarkFlagsMutuallyExclusive("fix", "no-fix")
}

// lacks says what this machine lacks, and installs it if that is wanted. It waits for an
// answer only on a terminal. The machine has joined, whatever comes of this.
func (a *app) lacks(ctx context.Context, m mending) error {
	if a.Missing == nil {
		return nil
	}
	missing, err := a.Missing(ctx)
	if err != nil {
		_, _ = fmt.Fprintf(a.Err, "pagurus: what this machine lacks is not known (%v): `pagurus doctor` says it\n", err)
		return nil
	}
	if len(missing) == 0 {
		return nil
	}
	lacks := "this machine lacks " + strings.Join(missing, ", ")
	switch {
	case m.fix:
		_, err = fmt.Fprintln(a.Err, "pagurus: "+lacks)
	case m.no || !terminal(a.In) || !terminal(a.Err):
		_, err = fmt.Fprintln(a.Err, "pagurus: "+lacks+": `sudo pagurus doctor --fix` installs what a command can")
		return err
	default:
		if _, err := fmt.Fprint(a.Err, "pagurus: "+lacks+": install what a command can, as `pagurus doctor --fix`? [y/N] "); err != nil {
			return err
		}
		answer, _ := bufio.NewReader(a.In).ReadString('\n') // an end of the input is a no
		if !strings.HasPrefix(strings.ToLower(strings.TrimSpace(answer)), "y") {
			return nil
		}
	}
	if err != nil {
		return err
	}
	return a.Mend(ctx)
}

// named is a cluster's name before a word, if it has one.
func named(cluster string) string {
	if cluster == "" {
		return ""
	}
	return cluster + " "
}
