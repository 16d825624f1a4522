package roles

import (
	"github.com/spf13/cobra"

	"pagurus/show/cli"
)

// What the client leaves to the agent's program, which has the drivers.
const (
	DoctorVerb      = "doctor"
	CRIUVerb        = "criu"        // of the doctor
	QuickFlag       = "quick"       // of the doctor: it looks and tries nothing
	AcceleratorVerb = "accelerator" // prints what guests on this machine run with
)

// ProbePrefix begins the names of the folders in which guests are tried. The number of the
// process that tries them follows.
const ProbePrefix = "probe-"

// DoctorCommand returns the command of the doctor. It calls run, and its command for CRIU
// calls bring.
func DoctorCommand(run func(cmd *cobra.Command, fix bool) error, bring func(cmd *cobra.Command) error) *cobra.Command {
	fix := false
	cmd := &cobra.Command{
		Use:   DoctorVerb,
		Short: "Test this machine, say what is missing, and the command that fixes it",
		Long: `Doctor checks what Pagurus needs. As root it also tries each part: a network of two
hosts, a file server, a guest that boots, a container that moves. It takes seconds
and leaves nothing behind. It exits with 0 if everything needed works, otherwise 1.`,
		Example: `  pagurus doctor
  sudo pagurus doctor --fix`,
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd, fix) },
	}
	cmd.Flags().BoolVar(&fix, "fix", false, "run the commands that fix what is missing")
	cmd.Flags().Bool(QuickFlag, false, "look only, and try nothing")
	_ = cmd.Flags().MarkHidden(QuickFlag)
	cmd.AddCommand(&cobra.Command{
		Use:     CRIUVerb,
		Short:   "Bring a CRIU that can move containers to this machine, if it has none",
		Example: "  sudo pagurus doctor criu",
		Args:    cli.NoArguments,
		RunE:    func(cmd *cobra.Command, _ []string) error { return bring(cmd) },
	})
	return cmd
}
