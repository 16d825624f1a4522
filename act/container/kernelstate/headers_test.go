package kernelstate

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"
)

// headers lists the files in which the kernel and the C library define socket options, with the
// prefixes of the options' names. Packet sockets (if_packet.h) have one row together, because
// programs of a container cannot make them. Unix sockets (un.h) have no level of their own.
var headers = []struct {
	file, names string
	level       int
}{
	{"asm-generic/socket.h", `SO_`, SocketLevel},
	{"linux/in.h", `IP_|MCAST_`, IPLevel},
	{"x86_64-linux-gnu/bits/in.h", `IP_`, IPLevel},
	{"linux/in6.h", `IPV6_`, IPv6Level},
	{"x86_64-linux-gnu/bits/in.h", `IPV6_`, IPv6Level},
	{"linux/tcp.h", `TCP_`, TCPLevel},
	{"netinet/tcp.h", `TCP_`, TCPLevel},
	{"linux/udp.h", `UDP_`, UDPLevel},
	{"linux/netlink.h", `NETLINK_`, NetlinkLevel},
}

// values matches names with an option's prefix that are values, families or limits.
var values = regexp.MustCompile(`^(IP_PMTUDISC_.*|IPV6_PMTUDISC_.*|IP_DEFAULT_.*|IP_MAX_MEMBERSHIPS|IPV6_(PRIORITY|TLV|FL|SRCRT|PREFER|RTHDR_TYPE)_.*|IPV6_RTHDR_(LOOSE|STRICT|TYPE_0)|IPV6_USE_MIN_MTU` +
	`|MCAST_(EXCLUDE|INCLUDE)|TCP_(MSS|FLAG|MD5SIG_(MAX|FLAG)|RECEIVE|AO_(KEYF|MAX)|REPAIR_(ON|OFF)|COOKIE|S_DATA|MAX|NLA|CA|MAXWIN).*|TCP_ENCAP_.*` +
	`|UDP_ENCAP_.*|UDP_MAX_.*|NETLINK_(ROUTE|UNUSED|USERSOCK|FIREWALL|SOCK_DIAG|NFLOG|XFRM|SELINUX|ISCSI|AUDIT|FIB_LOOKUP|CONNECTOR|NETFILTER|IP6_FW|DNRTMSG|KOBJECT_UEVENT|GENERIC|SCSITRANSPORT|ECRYPTFS|RDMA|CRYPTO|SMC|INET_DIAG))$`)

var defined = regexp.MustCompile(`(?m)^\s*#\s*define\s+([A-Z0-9_]+)\s+(\d+)\b`)

// TestEveryOptionOfTheHeadersHasARow: the table has every option of the kernel's headers.
func TestEveryOptionOfTheHeadersHasARow(t *testing.T) {
	for _, h := range headers {
		text, err := os.ReadFile("/usr/include/" + h.file)
		if errors.Is(err, os.ErrNotExist) {
			t.Skipf("there are no headers: %v", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		begins, found := regexp.MustCompile("^("+h.names+")"), 0
		for _, m := range defined.FindAllStringSubmatch(string(text), -1) {
			if !begins.MatchString(m[1]) || values.MatchString(m[1]) {
				continue
			}
			number, _ := strconv.Atoi(m[2])
			found++
			if !slices.ContainsFunc(Options, func(o Option) bool { return o.Level == h.level && o.Number == number }) {
				t.Errorf("%s defines %s as %d, which has no row", h.file, m[1], number)
			}
		}
		if found < 6 {
			t.Errorf("%s has only %d options: it is not read rightly", h.file, found)
		}
	}
}

// newest holds the highest numbers of Linux 6.18, which a distribution's headers may lack.
var newest = map[int]int{SocketLevel: 84, IPLevel: 52, IPv6Level: 78, TCPLevel: 46, UDPLevel: 104, NetlinkLevel: 12}

// gaps lists lower numbers of control messages, or of no option.
var gaps = map[int][]int{
	SocketLevel: {54, 58, 81}, // SCM_TIMESTAMPING_OPT_STATS, SCM_TIMESTAMPING_PKTINFO, SCM_TS_OPT_ID
	IPLevel:     {27, 28, 29, 30, 31},
	IPv6Level:   {12, 13, 14, 15, 37, 38, 39, 40, 41, 63, 64, 65, 68, 69, 71},
	TCPLevel:    {15},
}

func TestNoNumberIsLeftOut(t *testing.T) {
	for level, last := range newest {
		if level == UDPLevel {
			continue // 1, and from 100 on
		}
		for n := 1; n <= last; n++ {
			is := slices.ContainsFunc(Options, func(o Option) bool { return o.Level == level && o.Number == n })
			if is == slices.Contains(gaps[level], n) {
				t.Errorf("%s: number %d: it has a row: %v", objects[level], n, is)
			}
		}
	}
}
