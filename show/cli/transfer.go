package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"pagurus/fleet"
)

// transferFlags say which of a guest's memory is sent, how, and how fast.
type transferFlags struct {
	bandwidth       int64 // bytes a second
	cache, compress string
}

// transferHelp is the help on transferFlags.
const transferHelp = `

Free memory is not sent. A guest drops its page cache (what it can read
from files again) before the copy, if that is much of its memory and the job does not
read it repeatedly; --page-cache drop or send overrides this. Memory is compressed
where the network, or --bandwidth, is slow; --compress on or off overrides this. Guests that move together are never
compressed.`

var (
	cacheChoices    = []string{modeAuto, string(fleet.DropCache), string(fleet.SendCache)}
	compressChoices = []string{modeAuto, string(fleet.CompressOn), string(fleet.CompressOff)}
)

func (f *transferFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	Rate(flags, &f.bandwidth, fleet.BandwidthFlag, "send at most this many bytes a second from one host, like 200M (default: no limit)")
	flags.StringVar(&f.cache, pageCacheFlag, modeAuto, "auto, drop (the guest drops what it can read from files again) or send (send all of it)")
	flags.StringVar(&f.compress, fleet.CompressFlag, modeAuto, "auto (where the link is slow), on or off")
	_ = cmd.RegisterFlagCompletionFunc(pageCacheFlag, cobra.FixedCompletions(cacheChoices, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc(fleet.CompressFlag, cobra.FixedCompletions(compressChoices, cobra.ShellCompDirectiveNoFileComp))
}

// set sets the requested limits in l. The controller checks the values.
func (f transferFlags) set(cmd *cobra.Command, l *fleet.Limits) error {
	for flag, value := range map[string]string{pageCacheFlag: f.cache, fleet.CompressFlag: f.compress} {
		if value == "" {
			return usage(cmd, fmt.Sprintf("--%s is empty: give auto, or leave it out", flag))
		}
	}
	l.BytesPerSecond = f.bandwidth
	if f.cache != modeAuto {
		l.PageCache = fleet.CachePolicy(f.cache)
	}
	if f.compress != modeAuto {
		l.Compress = fleet.Compression(f.compress)
	}
	return nil
}
