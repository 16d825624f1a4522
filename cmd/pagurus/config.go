package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pagurus/cmd/roles"
	"pagurus/show/cli"
	"pagurus/show/view"
)

// configNoun is the command for the configuration files of this machine.
func configNoun(std streams) cli.Noun {
	return cli.Noun{
		Title: "This machine:",
		Command: &cobra.Command{
			Use:     "config",
			Short:   "Check and show what the daemons on this machine are configured to do",
			Example: "  pagurus config check\n  pagurus config show",
			Args:    cli.OnlyVerbs,
			RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		},
		Verbs: []func() *cobra.Command{
			func() *cobra.Command { return configCheckCommand(std) },
			func() *cobra.Command { return configShowCommand(std) },
		},
	}
}

func configCheckCommand(std streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Read the configuration files, and say every mistake in them",
		Long: `Check reads a configuration file and conf.d/*.toml beside it, as the daemons do at
their start. It says "ok", or every mistake and exits with 1.`,
		Example: "  pagurus config check\n  pagurus config check new.toml",
		Args:    cli.AtMost(1, "one file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			config := roles.ReadConfig(cmd.Flags())
			if len(args) > 0 {
				config = roles.ReadConfigFile(args[0], true)
			}
			wrong := config.Errors
			if len(wrong) == 0 {
				wrong = config.Conflicts()
			}
			for _, err := range wrong {
				std.say(err.Error())
			}
			if len(wrong) > 0 {
				return cli.Exit{Code: 1}
			}
			_, err := fmt.Fprintln(std.out, "ok")
			return err
		},
	}
	roles.AddConfig(cmd.Flags())
	return cmd
}

// configured is one row of `config show`.
type configured struct {
	Key   string `json:"key"`
	Value string `json:"value"`
	From  string `json:"from"`
}

func configShowCommand(std streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show every setting of agent and controller, and where it comes from",
		Long: `Show lists what agent and controller would begin with now. A host that has joined a
cluster takes its name, its site and its controller from its certificate's folder where
these are not set.`,
		Example: "  pagurus config show\n  pagurus config show --json | jq '.[] | select(.from != \"default\")'",
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			rows, err := settings(cmd.Flags())
			if err != nil {
				return err
			}
			if asJSON, _ := cmd.Flags().GetBool("json"); asJSON {
				return json.NewEncoder(std.out).Encode(rows)
			}
			table := view.Table{Columns: []string{"KEY", "VALUE", "FROM"}}
			for _, r := range rows {
				table.Rows = append(table.Rows, []string{r.Key, dash(view.Clean(r.Value)), view.Clean(r.From)})
			}
			_, err = fmt.Fprint(std.out, table.Text())
			return err
		},
	}
	roles.AddConfig(cmd.Flags())
	return cmd
}

// settings are all settings of the daemons, by the files that a command line chose. What it
// says of the controller counts too.
func settings(given *pflag.FlagSet) (rows []configured, err error) {
	config, tables := roles.ReadConfig(given), roles.Tables()
	for _, name := range []string{roles.AgentTable, roles.ControllerTable} {
		flags := tables[name]
		given.Visit(func(f *pflag.Flag) {
			if same := flags.Lookup(f.Name); same != nil && err == nil {
				err = flags.Set(f.Name, f.Value.String())
			}
		})
		if err == nil {
			err = config.Apply(name, flags)
		}
		if err != nil {
			return nil, err
		}
		flags.VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				rows = append(rows, configured{name + "." + f.Name, roles.Value(f), roles.Source(f)})
			}
		})
	}
	return rows, nil
}
