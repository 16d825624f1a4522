package measuring

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"pagurus/bench"
	"pagurus/bench/timeline"
	"pagurus/fleet"
	"pagurus/serve/wire"
	"pagurus/show/cli"
	"pagurus/show/view"
)

// Trace gives the command `pagurus trace`.
func Trace(std Streams) *cobra.Command {
	report := ""
	cmd := &cobra.Command{
		Use:   "trace JOB",
		Short: "Show what a job's ranks did when, their gaps and why",
		Long: `Trace prints what a job's ranks have spent their time with, who has sent what to
whom, and the longest gaps (times without progress) with their causes. With --report it
writes a timeline for ui.perfetto.dev (Chrome's trace events): the gaps, the newest
calls one by one, and the share of time in each class of calls. Tables of all of it are
beside it. Trace works while the job runs, and afterwards until the controller forgets
the job.`,
		Example:           "  pagurus trace j3\n  pagurus trace j3 --report j3-trace",
		Args:              cli.Exactly(1, "one job: `pagurus job ls` lists them"),
		ValidArgsFunction: cli.CompleteJob,
		RunE: func(cmd *cobra.Command, args []string) error {
			return std.trace(cmd, fleet.JobID(args[0]), report)
		},
	}
	cmd.Flags().StringVar(&report, "report", "", "folder for the timeline (JSON for ui.perfetto.dev) and the tables (CSV)")
	return cmd
}

func (s Streams) trace(cmd *cobra.Command, id fleet.JobID, report string) error {
	where, err := cli.Controller(cmd.Flags(), wire.UserCredentials())
	if err != nil {
		return err
	}
	c, err := wire.Dial(where)
	if err != nil {
		return err
	}
	defer c.Close()
	snapshot, err := c.Snapshot(cmd.Context())
	if err != nil {
		return err
	}
	cluster := view.Read(snapshot)
	job, ok := cluster.Job(id)
	if !ok {
		return fmt.Errorf("there is no job %q: `pagurus job ls` lists them", id)
	}
	if !job.Spec.Trace {
		return fmt.Errorf("job %s runs with --no-trace: what its ranks do is not known", id)
	}
	traces, err := c.Trace(cmd.Context(), id)
	if err != nil {
		return err
	}
	if traces == nil {
		traces = []fleet.Trace{} // an empty list, and not null
	}
	if asJSON, _ := cmd.Flags().GetBool("json"); asJSON {
		err = json.NewEncoder(s.Out).Encode(traces)
	} else {
		_, err = fmt.Fprint(s.Out, cluster.Detail(job, traces).Text(cluster))
	}
	if err == nil && report != "" {
		err = s.keepTrace(report, traces)
	}
	return err
}

// keepTrace writes the timeline and the tables.
func (s Streams) keepTrace(folder string, traces []fleet.Trace) error {
	files, err := timeline.Files(traces, timeline.Words{Why: view.Why})
	if err != nil {
		return err
	}
	for name, text := range files {
		if err := bench.Whole(filepath.Join(folder, name), text); err != nil {
			return err
		}
	}
	s.say("the timeline is in %s: open it at https://ui.perfetto.dev", filepath.Join(folder, "timeline.json"))
	return nil
}
