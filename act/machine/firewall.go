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

// bridged says whether frames on bridges are shown to the firewall. The file
// is there only while br_netfilter is loaded.
var bridged = "/proc/sys/net/bridge/bridge-nf-call-iptables"

// What lets frames on Pagurus's bridges pass, which all have names that begin
// so: the lab's, and those of jobs.
const (
	passRule    = "FORWARD -i pg+ -j ACCEPT"
	passNftRule = `iifname "pg*" accept`
)

// checkFirewall looks whether the firewall drops what guests say to each other
// within one host, or within a lab: Docker leaves it so.
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
		// The chain that iptables keeps there is iptables' to change.
		if chain != "ip filter FORWARD" || len(fixes) == 0 {
			fixes = append(fixes, "nft insert rule "+chain+" "+strings.ReplaceAll(passNftRule, `"pg*"`, `'"pg*"'`))
		}
	}
	switch f.OK = len(fixes) == 0; {
	case missing:
		f.Detail = "it sees frames on bridges; neither iptables nor nft is here to tell whether it drops them"
	case f.OK:
		f.Detail = "lets frames on bridges pass"
	default:
		f.Detail = "drops frames on bridges, so that guests do not reach each other (net.bridge.bridge-nf-call-iptables is 1 and the policy of FORWARD is DROP, as Docker leaves them)"
		f.Fix = strings.Join(fixes, " && ")
	}
	return f
}

// asked gives what a program of the firewall says.
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

// passes reports whether a FORWARD chain, as iptables -S prints it, lets frames
// on our bridges pass.
func passes(rules string) bool {
	lines := strings.Split(rules, "\n")
	return !slices.Contains(lines, "-P FORWARD DROP") || slices.Contains(lines, "-A "+passRule)
}

var (
	nftTable = regexp.MustCompile(`^table (ip|inet) (\S+) \{`)
	nftChain = regexp.MustCompile(`^\tchain (\S+) \{`)
	nftPass  = regexp.MustCompile(`^\t\tiifname "pg\*" (counter .*)?accept`)
)

// dropping lists the chains of a ruleset, as nft prints it, by family, table
// and name, that drop what is forwarded for IPv4 unless a rule lets it pass,
// and have none for our bridges.
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
