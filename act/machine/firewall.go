package machine

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

// bridged says whether the firewall sees frames on bridges. The file exists only while
// br_netfilter is loaded.
var bridged = "/proc/sys/net/bridge/bridge-nf-call-iptables"

// Rules that accept frames on Pagurus's bridges, which have a common name prefix: the
// lab's, and those of jobs.
const (
	passRule    = "FORWARD -i pg+ -j ACCEPT"
	passNftRule = `iifname "pg*" accept`
)

// checkFirewall checks whether the firewall drops frames between guests on one host, or
// in a lab, as Docker configures it.
func checkFirewall(ctx context.Context) Finding {
	f := Finding{Name: "firewall"}
	text, err := os.ReadFile(bridged)
	if err != nil || strings.TrimSpace(string(text)) != "1" {
		f.OK, f.Detail = true, "it does not see frames on bridges"
		return f
	}
	if os.Geteuid() != 0 {
		f.OK, f.Detail = true, "not checked without root"
		return f
	}
	var fixes []string
	rules, err := asked(ctx, "iptables", "-S", "FORWARD")
	missing := errors.Is(err, exec.ErrNotFound)
	if !passes(rules) {
		fixes = append(fixes, "iptables -I "+passRule)
	}
	rules, err = asked(ctx, "nft", "list", "ruleset")
	missing = missing && errors.Is(err, exec.ErrNotFound)
	for _, chain := range dropping(rules) {
		// Only iptables may change the chain that it keeps there.
		if chain != "ip filter FORWARD" || len(fixes) == 0 {
			fixes = append(fixes, "nft insert rule "+chain+" "+strings.ReplaceAll(passNftRule, `"pg*"`, `'"pg*"'`))
		}
	}
	switch f.OK = len(fixes) == 0; {
	case missing:
		f.Detail = "it sees frames on bridges; neither iptables nor nft is here to tell whether it drops them"
	case f.OK:
		f.Detail = "lets frames on bridges pass; jobs' frames take no place in its table of connections, if the kernel has nftables"
	default:
		f.Detail = "drops frames on bridges, so that guests do not reach each other (net.bridge.bridge-nf-call-iptables is 1 and the policy of FORWARD is DROP, as Docker leaves them)"
		f.Fix = strings.Join(fixes, " && ")
	}
	return f
}

// asked returns the output of a firewall program.
func asked(ctx context.Context, name string, args ...string) (string, error) {
	path, err := find(name)
	if err != nil {
		return "", err
	}
	ctx, stop := context.WithTimeout(ctx, programLimit)
	defer stop()
	out, err := exec.CommandContext(ctx, path, args...).Output()
	return string(out), err
}

// passes reports whether a FORWARD chain, as printed by iptables -S, accepts frames on
// our bridges.
func passes(rules string) bool {
	lines := strings.Split(rules, "\n")
	return !slices.Contains(lines, "-P FORWARD DROP") || slices.Contains(lines, "-A "+passRule)
}

var (
	nftTable = regexp.MustCompile(`^table (ip|inet) (\S+) \{`)
	nftChain = regexp.MustCompile(`^\tchain (\S+) \{`)
	nftPass  = regexp.MustCompile(`^\t\tiifname "pg\*" (counter .*)?accept`)
)

// dropping lists the chains of a ruleset, as printed by nft, by family, table and name.
// They drop forwarded IPv4 by default, and have no rule for our bridges.
func dropping(ruleset string) []string {
	var found []string
	table, chain := "", ""
	for line := range strings.Lines(ruleset) {
		switch {
		case strings.HasPrefix(line, "table "):
			table, chain = "", ""
			if m := nftTable.FindStringSubmatch(line); m != nil {
				table = m[1] + " " + m[2]
			}
		case nftChain.MatchString(line):
			chain = table + " " + nftChain.FindStringSubmatch(line)[1]
		case table == "":
		case strings.Contains(line, " hook forward ") && strings.Contains(line, "policy drop;"):
			found = append(found, chain)
		case nftPass.MatchString(line):
			found = slices.DeleteFunc(found, func(c string) bool { return c == chain })
		}
	}
	return found
}
