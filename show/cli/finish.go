package cli

import "github.com/spf13/cobra"

// Finish completes a program to which all commands were added: every flag is judged, and
// help and completion refuse what is not there.
func Finish(root *cobra.Command) {
	root.SetHelpCommand(&cobra.Command{
		Use:     "help [COMMAND…]",
		Short:   "Say what a command does",
		Example: "  pagurus help run",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) (words []string, _ cobra.ShellCompDirective) {
			if about, rest, err := cmd.Root().Find(args); err == nil && len(rest) == 0 {
				for _, sub := range about.Commands() {
					if sub.IsAvailableCommand() {
						words = append(words, sub.Name()+"\t"+sub.Short)
					}
				}
			}
			return words, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil {
				return err
			}
			if err := OnlyVerbs(about, rest); err != nil {
				return err
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	})
	root.InitDefaultCompletionCmd()
	if completion, _, err := root.Find([]string{"completion"}); err == nil && completion != root {
		completion.Args = OnlyVerbs
		completion.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	JudgeFlags(root)
}
