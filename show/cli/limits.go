package cli

import (
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"pagurus/fleet"
)

// limitAuto leaves a choice to the controller.
const limitAuto = "auto"

// limitFlags are a command's flags of fleet.LimitFlags.
type limitFlags struct {
	given fleet.Limits
	takes []fleet.LimitFlag
}

// transferHelp is what the commands whose moves send memory say of it.
const transferHelp = `

Free memory is not sent. A guest drops its page cache (what it can read
from files again) before the copy, if that is much of its memory and the job does not
read it repeatedly; --page-cache drop or send overrides this. Memory is compressed
where the network, or --bandwidth, is slow; --compress on or off overrides this. Guests
that move together are never compressed.`

// add makes the flags in of cmd.
func (f *limitFlags) add(cmd *cobra.Command, of []fleet.LimitFlag) {
	f.takes = of
	flags := cmd.Flags()
	for _, l := range of {
		switch at := l.Field(&f.given).(type) {
		case *string:
			flags.StringVar(at, l.Flag, limitAuto, l.Help)
			OneOf(cmd, l.Flag, append([]string{limitAuto}, l.Choices...)...)
		case *int64:
			Rate(flags, at, l.Flag, l.Help)
		case *time.Duration:
			Duration(flags, at, l.Flag, l.Help)
		}
	}
}

// drainFlags are those that drain takes.
func drainFlags() []fleet.LimitFlag {
	return slices.DeleteFunc(slices.Clone(fleet.LimitFlags), func(l fleet.LimitFlag) bool { return !l.Drain })
}

// limits is what was asked for, if it makes sense by itself.
func (f *limitFlags) limits(cmd *cobra.Command) (fleet.Limits, error) {
	out := f.given
	for _, l := range f.takes {
		switch v := l.Field(&out).(type) {
		case *string:
			if *v == limitAuto {
				*v = ""
			}
		case *time.Duration:
			if cmd.Flags().Changed(l.Flag) && *v < l.Least {
				return out, usage(cmd, fmt.Sprintf("--%s %s %s", l.Flag, *v, l.LeastWhy))
			}
		}
	}
	if reason := out.Refused(); reason != "" {
		return out, usage(cmd, reason)
	}
	return out, nil
}
