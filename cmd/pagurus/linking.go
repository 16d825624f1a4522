// This file has the command `pagurus lab link`, which impairs the links of a lab's hosts to
// test programs.
//
// It must not know more of a lab than the names of links. Its tests are of command lines.

package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"pagurus/act/badlink"
	"pagurus/cmd/pagurus/labnet"
	"pagurus/show/cli"
)

// linkCommand makes the command. ports gives the machine's ends of the named hosts' links,
// or of all.
func linkCommand(out io.Writer, ports func(hosts []string) ([]string, error)) *cobra.Command {
	trouble := badlink.Impairment{}
	cmd := &cobra.Command{
		Use:   "link [HOST…]",
		Short: "Make hosts' links lose or delay traffic",
		Long: `Link makes the links of hosts, or of all hosts, lose a share of the traffic from the hosts,
and delays the traffic to them. Without flags the links work as before. Each loss is
one buffer of the kernel: up to 64 KiB of a stream. Delays need a kernel with netem.`,
		Example: `  sudo pagurus lab link --loss 1%
  sudo pagurus lab link host1 host2 --loss 0.5% --delay 2ms
  sudo pagurus lab link                    # as before`,
		ValidArgsFunction: completeLab(labnet.MaxHosts),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := trouble.Check(); err != nil {
				return err
			}
			if os.Geteuid() != 0 {
				return errors.New("only root can change links: try `sudo pagurus lab link`")
			}
			all, err := ports(args)
			if err != nil {
				return err
			}
			for _, port := range all {
				if err := badlink.Set(port, trouble); err != nil {
					return err
				}
			}
			_, err = fmt.Fprintf(out, "hosts' links, %d: %s\n", len(all), trouble)
			return err
		},
	}
	cli.Share(cmd.Flags(), &trouble.Loss, "loss", "share of the traffic from hosts that is lost")
	cli.Duration(cmd.Flags(), &trouble.Delay, "delay", "delay of the traffic to hosts")
	return cmd
}
