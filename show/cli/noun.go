package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"pagurus/show/view"
)

// Noun is a command named after a kind of thing. Its verbs are subcommands; alone it does
// what `ls` does.
type Noun struct {
	*cobra.Command
	Title string                  // of its group in the help
	Verbs []func() *cobra.Command // only below the noun
	Short []func() *cobra.Command // verbs that also work without the noun
}

// AddNoun adds a noun with its verbs to the command line, and its Short verbs also at the
// top.
func AddNoun(root *cobra.Command, n Noun) {
	for _, verb := range append(n.Verbs, n.Short...) {
		AddVerb(n.Command, verb())
	}
	if ls, _, err := n.Find([]string{"ls"}); err == nil && n.RunE == nil {
		n.Args, n.RunE = OnlyVerbs, ls.RunE
		n.Flags().AddFlagSet(ls.Flags())
	}
	all := []*cobra.Command{n.Command}
	for _, verb := range n.Short {
		all = append(all, verb())
	}
	AddGroup(root, n.Title, all...)
}

// AddGroup adds commands under a new or existing title.
func AddGroup(root *cobra.Command, title string, all ...*cobra.Command) {
	if !root.ContainsGroup(title) {
		root.AddGroup(&cobra.Group{ID: title, Title: title})
	}
	for _, cmd := range all {
		cmd.GroupID = title
	}
	root.AddCommand(all...)
}

// AddVerb adds a verb to a noun, and adapts its examples.
func AddVerb(noun, verb *cobra.Command) {
	alone, under := "pagurus "+verb.Name(), "pagurus "+noun.Name()+" "+verb.Name()
	verb.Example = strings.ReplaceAll(verb.Example, alone, under)
	noun.AddCommand(verb)
}

// OnlyVerbs refuses unknown subcommands.
func OnlyVerbs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	_, typed, _ := strings.Cut(cmd.CommandPath()+" "+args[0], " ")
	return usage(cmd, fmt.Sprintf("there is no command %q%s", typed, like(cmd, args[0])))
}

// nouns are the kinds of things that the controller manages.
func (a *app) nouns() []Noun {
	return []Noun{
		{
			Title: "Jobs:",
			Command: &cobra.Command{
				Use: "job", Aliases: []string{"jobs"}, Short: "List, run, follow, suspend, restart, end and remove jobs",
				Example: "  pagurus job ls\n  pagurus job run -n 4 -- ./a.out\n  pagurus job show j3            # what its ranks do\n  pagurus job cancel j3\n  pagurus job rm j3              # with its output",
			},
			Verbs: verbs(a.ls("jobs", listing{view.Cluster.JobTable, func(c view.Cluster) any { return c.Jobs }}, "  pagurus ls --json | jq -r '.[] | select(.state == \"running\") | .id'"), a.showJobCommand, a.removeJobCommand, a.explainVerb("JOB", "j3", oneJob, a.completeJobs(anyJob))),
			Short: verbs(a.runCommand, a.logsCommand, a.waitCommand, a.cancelCommand, a.signalCommand, a.restartCommand, a.suspendCommand, a.resumeCommand),
		},
		a.checkpointNoun(),
		{
			Title: "Guests:",
			Command: &cobra.Command{
				Use: "guest", Aliases: []string{"guests"}, Short: "List guests and move them",
				Example: "  pagurus guest ls\n  pagurus guest migrate j3g1 --to host2 --wait",
			},
			Verbs: verbs(a.ls("guests and where they are", listing{view.Cluster.GuestTable, func(c view.Cluster) any { return c.Guests }}, ""), a.explainVerb("GUEST", "j3g1", oneGuest, a.completeGuests, "show")),
			Short: verbs(a.migrateCommand),
		},
		{
			Title: "Hosts:",
			Command: &cobra.Command{
				Use: "host", Aliases: []string{"hosts"}, Short: "List hosts, empty them, and agree with their owners",
				Long: `Without a verb it lists the hosts, the state of each owner, and what happens next.

Some hosts belong to people who use them. There, guests are deprioritised as soon as
the owner comes. If the owner stays, the host's policy decides what happens to them.`,
				Example: "  pagurus host ls\n  pagurus host drain host1 --wait\n  pagurus host policy office3 --owner yes --hours 19:00-07:00\n  pagurus host claim office3      # I need it now\n  pagurus host release office3    # I am done",
			},
			Verbs: verbs(a.ls("hosts", listing{view.Cluster.HostTable, func(c view.Cluster) any { return c.Hosts }}, "  pagurus ls --json | jq '.[] | {id, state}'"),
				a.policyCommand, a.claimCommand, a.releaseCommand, a.removeHostCommand, a.explainVerb("HOST", "host2", oneHost, a.completeHostArgument, "show")),
			Short: verbs(a.drainCommand, a.undrainCommand, a.forgetCommand),
		},
		a.ownerNoun(),
		{
			Title: "Moves:",
			Command: &cobra.Command{
				Use: "move", Aliases: []string{"moves"}, Short: "List moves, show one, cancel one, or predict one",
				Example: "  pagurus move ls\n  pagurus move show m3            # every phase of one move\n  pagurus move cancel m3\n  pagurus move predict j3g1",
			},
			Verbs: verbs(a.ls("moves, under way and past", listing{view.Cluster.MoveTable, func(c view.Cluster) any { return c.Moves }}, ""), a.showMoveCommand, a.cancelMoveCommand, a.explainVerb("MOVE", "m4", oneMove, a.completeMoves)),
			Short: verbs(a.predictCommand),
		},
		{
			Title: "Policies:",
			Command: &cobra.Command{
				Use: "policy", Aliases: []string{"policies"}, Short: "Show and set what happens to guests when owners return",
				Long: `The cluster's policy says what happens to guests on a host when its owner stays,
and how hosts are chosen for guests. What a host's owner has agreed to counts more:
see 'pagurus host policy'. 'pagurus simulate' compares the policies.`,
				Example: "  pagurus policy ls\n  pagurus policy show predictive\n  pagurus policy set evacuate --placement longest-idle",
			},
			Verbs: verbs(a.ls("policies, and which one is in force", listing{func(c view.Cluster) view.Table { return view.PolicyTable(c.Rules) }, func(c view.Cluster) any { return view.Policies(c.Rules) }}, ""),
				a.showPolicyCommand, a.setPolicyCommand),
		},
	}
}

// verbs is a shorthand.
func verbs(make ...func() *cobra.Command) []func() *cobra.Command { return make }

// ls makes a verb that shows a table.
func (a *app) ls(what string, l listing, example string) func() *cobra.Command {
	return func() *cobra.Command {
		return a.list(&cobra.Command{
			Use:     "ls",
			Short:   "List the " + what,
			Example: strings.TrimRight("  pagurus ls\n  pagurus ls -w        # until Ctrl-C\n"+example, "\n"),
		}, l)
	}
}
