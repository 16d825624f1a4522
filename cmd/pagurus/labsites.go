// This file has the sites of a lab: networks of their own, with routers between them and the Internet, which is
// the bridge where the controller is.
//
// It must not know how a router works. Its tests are of command lines; the system ring runs sites.

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/spf13/pflag"

	"pagurus/act/badlink"
	"pagurus/act/daemon"
	"pagurus/cmd/pagurus/labnet"
	"pagurus/fleet"
	"pagurus/show/cli"
	"pagurus/show/view"
)

// The flags of sites.
const (
	natFlag           = "nat"
	siteDelayFlag     = "site-delay"
	siteLossFlag      = "site-loss"
	siteBandwidthFlag = "site-bandwidth"
)

var siteFlags = []string{natFlag, siteDelayFlag, siteLossFlag, siteBandwidthFlag}

// labSites are the sites of a lab.
type labSites struct {
	Number int                `json:"number"` // to which hosts belong in turn
	NATs   []labnet.NAT       `json:"nat"`    // of their routers, in turn
	Link   badlink.Impairment `json:"link"`   // of each site's link to the Internet
}

// addFlags defines the flags; nats are read by complete.
func (s *labSites) addFlags(flags *pflag.FlagSet, nats *[]string) {
	flags.IntVar(&s.Number, sitesFlag, 0, "sites that the hosts belong to in turn: site1, site2; each is a network of its own behind a router (default: one network)")
	flags.StringSliceVar(nats, natFlag, []string{string(labnet.Cone)}, "cone, symmetric or none: how the sites' routers translate addresses, of each in turn: with one port outside for each host, with another for whoever is called, or not at all")
	cli.Duration(flags, &s.Link.Delay, siteDelayFlag, "delay of each site's link to the Internet, in each direction; needs a kernel with netem")
	cli.Share(flags, &s.Link.Loss, siteLossFlag, "share of the packets that leave a site which is lost")
	cli.Rate(flags, &s.Link.BytesPerSecond, siteBandwidthFlag, "bytes a second that pass each site's link to the Internet, in each direction, like 10M (default: no limit)")
}

// complete says what is wrong with the sites that are asked for. none: there are no sites.
func (s *labSites) complete(asked func(flag string) bool, nats []string, by6 bool) (none bool, err error) {
	switch {
	case s.Number < 0 || s.Number > labnet.MaxSites:
		return false, fmt.Errorf("--"+sitesFlag+" must be between 0 and %d", labnet.MaxSites)
	case s.Number == 0:
		for _, flag := range siteFlags {
			if asked(flag) {
				return false, errors.New("--" + flag + " is about sites: give --" + sitesFlag + ", too")
			}
		}
		return true, nil
	}
	if by6 && !asked(natFlag) {
		nats = []string{string(labnet.Routed)}
	}
	if s.NATs, err = labnet.ParseNATs(nats); err == nil && by6 && slices.ContainsFunc(s.NATs, func(n labnet.NAT) bool { return n != labnet.Routed }) {
		err = fmt.Errorf("addresses of IPv6 are not translated: with --"+ipv6Flag+" it is %s", labnet.Routed)
	}
	if err != nil {
		return false, fmt.Errorf("--"+natFlag+": %w", err)
	}
	return false, s.Link.Check()
}

// site is the site of host n, and its number there.
func (l lab) site(n int) (labnet.Site, int) {
	return l.siteOf((n-1)%l.Sites.Number + 1), (n-1)/l.Sites.Number + 1
}

func (l lab) siteOf(number int) labnet.Site {
	return labnet.Site{Number: number, NATs: l.Sites.NATs, Family: l.family()}
}

func siteName(number int) string { return fmt.Sprintf("site%d", number) }

// addr is the address of host n.
func (l lab) addr(n int) netip.Addr {
	if l.Sites == nil {
		return l.family().Addr(n)
	}
	s, i := l.site(n)
	return s.Addr(i)
}

// labEndpoint is where the controller is, unless it is on a machine.
func (l lab) labEndpoint() string {
	return netip.AddrPortFrom(l.family().Controller(), labListen).String()
}

// family is of what kind the hosts' addresses are.
func (l lab) family() labnet.Family {
	if l.IPv6 {
		return labnet.IPv6
	}
	return labnet.IPv4
}

// endpoint is where hosts reach the controller.
func (l lab) endpoint() string {
	if l.Machines != nil {
		return netip.AddrPortFrom(labnet.IPv4.Addr(head), labListen).String()
	}
	return l.labEndpoint()
}

// router is the namespace of a site's router.
func (l lab) router(s labnet.Site) daemon.Namespace {
	return daemon.Namespace(labNamespace + siteName(s.Number))
}

// bringUpSites makes the sites and their routers.
func (l lab) bringUpSites(std streams) error {
	if l.Sites == nil {
		return nil
	}
	std.say(fmt.Sprintf("making %s, NAT %s, with %s", view.Count(l.Sites.Number, "site"), labnet.Kinds(l.Sites.NATs), l.Sites.Link))
	most := (l.Hosts + l.Sites.Number - 1) / l.Sites.Number
	for number := 1; number <= l.Sites.Number; number++ {
		s := l.siteOf(number)
		router := l.router(s)
		if err := router.Ensure(); err != nil {
			return err
		}
		if err := errors.Join(labnet.EnsureSite(s, router, fleet.WireGuardPort, most), s.Impair(router, l.Sites.Link)); err != nil {
			return err
		}
	}
	return nil
}

// ensureUplink joins host n to its network.
func (l lab) ensureUplink(n int) error {
	if l.Sites == nil {
		return errors.Join(labnet.EnsureUplink(n, l.namespace(n), l.family()), labnet.Widen(n, l.namespace(n)))
	}
	s, i := l.site(n)
	return labnet.EnsureSiteUplink(n, l.namespace(n), s, i)
}
