package roles

import (
	"fmt"
	"net"
	"strconv"

	"github.com/spf13/pflag"

	"pagurus/show/cli"
)

// MetricsFlag is where monitoring reads.
const MetricsFlag = "metrics"

// addMetrics defines the flag with the address for monitoring.
func addMetrics(flags *pflag.FlagSet, to *string) {
	flags.StringVar(to, MetricsFlag, "", "TCP address for monitoring, like 127.0.0.1:9464: /metrics there has what Prometheus reads, for whoever reaches it (default: none)")
	cli.Judge(flags, MetricsFlag, refusedMetrics)
	cli.MayBeEmpty(flags, MetricsFlag)
}

// refusedMetrics says what is wrong with an address for monitoring.
func refusedMetrics(s string) error {
	if s == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(s)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("%q is not an address for monitoring: write it like 127.0.0.1:9464, or :9464 for all networks", s)
	}
	return nil
}
