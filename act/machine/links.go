package machine

import (
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pagurus/internal/thread"
)

// checkLinks makes one link of each kind used by jobs' networks, and a filter hook, in a
// network namespace that ends with its thread. Checking for modules would prove nothing:
// they may be built in, or not permitted.
func checkLinks() Finding {
	f := Finding{Name: "kernel's networks", Needed: true}
	if os.Geteuid() != 0 {
		f.OK, f.Detail = true, "not checked without root"
		return f
	}
	if err := thread.Own(tryLinks); err != nil {
		f.Detail, f.Fix = err.Error(), "modprobe -a bridge vxlan tun veth sch_ingress cls_bpf"
		return f
	}
	f.OK, f.Detail = true, "bridge, vxlan, veth and tap links can be made, and filters hung on them"
	return f
}

func tryLinks() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("no network namespace can be made: %w", err)
	}
	named := func(name string) netlink.LinkAttrs {
		a := netlink.NewLinkAttrs()
		a.Name = name
		return a
	}
	for _, l := range []netlink.Link{
		&netlink.Bridge{LinkAttrs: named("b")},
		&netlink.Vxlan{LinkAttrs: named("x"), VxlanId: 1, Port: 4789},
		&netlink.Veth{LinkAttrs: named("v"), PeerName: "w"},
		&netlink.Tuntap{LinkAttrs: named("t"), Mode: netlink.TUNTAP_MODE_TAP, Flags: netlink.TUNTAP_ONE_QUEUE},
	} {
		if err := netlink.LinkAdd(l); err != nil {
			return fmt.Errorf("no %s link can be made: %w", l.Type(), err)
		}
	}
	tap, err := netlink.LinkByName("t")
	if err == nil {
		err = netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: tap.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
		}})
	}
	if err != nil {
		return fmt.Errorf("no filter can be hung on a link: %w", err)
	}
	return nil
}
