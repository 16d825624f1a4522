package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"pagurus/fleet"
	"pagurus/show/api"
	"pagurus/show/view"
)

// auditSpan is how far back audit looks, if nothing is said.
const auditSpan = 24 * time.Hour

func (a *app) auditCommand() *cobra.Command {
	span := auditSpan
	var user, host string
	refused := false
	cmd := &cobra.Command{
		Use:   "audit",
		Short: api.Summary("listAudit"),
		Long: `Audit shows what people and machines asked of the controller, and what was refused to them.
Only administrators may read it. The controller keeps the newest of it, as much as its --audit-size says, and says the same in
its log (journalctl -u pagurus-controller).`,
		Example: "  pagurus audit\n  pagurus audit --since 7d --user ada\n  pagurus audit --refused --json",
		Args:    NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.dial()
			if err != nil {
				return err
			}
			var kept []fleet.AuditRecord
			damaged, err := c.Audit(cmd.Context(), time.Now().Add(-span), func(r fleet.AuditRecord) error {
				wanted := (user == "" || string(r.By.User) == user) && (host == "" || string(r.By.Host) == host) && (!refused || r.Refused != "")
				switch {
				case !wanted:
					return nil
				case a.json: // it may be long
					return json.NewEncoder(a.Out).Encode(r)
				}
				kept = append(kept, r)
				return nil
			})
			if damaged > 0 {
				_, _ = fmt.Fprintf(a.Err, "pagurus: %d lines of the audit are damaged, as a power cut leaves them\n", damaged)
			}
			if err != nil || a.json {
				return err
			}
			_, err = io.WriteString(a.Out, view.AuditTable(kept).Text())
			return err
		},
	}
	f := cmd.Flags()
	Duration(f, &span, "since", "how far back")
	f.StringVar(&user, "user", "", "only what this user did")
	f.StringVar(&host, fleet.HostFlag, "", "only what this host's agent did")
	f.BoolVar(&refused, "refused", false, "only what was refused")
	_ = cmd.RegisterFlagCompletionFunc("user", a.completeUsers)
	_ = cmd.RegisterFlagCompletionFunc(fleet.HostFlag, a.completeHosts)
	return cmd
}
