// Package port connects containers, and guests of Xen, to their jobs' networks. It moves the far end of a port into
// a container. It cuts what the container sends, and holds frames for it, or for a guest of Xen that arrives, until it runs. The port
// itself, a pair of links with one end in the bridge, belongs to other packages.
//
// The package knows only a container's network namespace, and not why it is cut or held. It
// works in the network namespace in which it is called, which is the host's. Cutting and holding
// are filters on the bridge's end of the pair. They have a lower rank than the filters that
// direct frames to where a guest moves. The tests run against the kernel, in namespaces that
// stand for hosts and for containers.
package port

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// Port is a container's place on its job's network. All addresses and names follow from
// it.
type Port struct {
	Subnet fleet.Subnet `json:"subnet"`
	Index  int          `json:"index"`         // number of the container in its job
	Guests int          `json:"guests"`        // number of guests of the job, whose addresses are made known; only for Attach
	Out    bool         `json:"out,omitempty"` // its network has a gateway to the Internet; only for Attach
	MTU    int          `json:"mtu,omitempty"` // of the network; 0: fleet.NetworkMTU
}

func (p Port) mtu() int { return cmp.Or(p.MTU, fleet.NetworkMTU) }

func (p Port) link() string { return p.Subnet.TapName(p.Index) }

// Cut stops everything that the container's programs or kernel send from now on. Frames
// for the container still reach it. The cut lasts until Mend, even if this process ends,
// or until the port is gone. Cutting again changes nothing. After an error nothing is
// changed.
//
// A container that moves must be frozen before it is cut, preferably some milliseconds
// before, with other work in between. Frames that the cut stops are lost. A restored
// connection, which does not know how long an answer takes, sends them again only after a
// second.
func (p Port) Cut() error {
	err := withLink(p.link(), func(h *netlink.Handle, link netlink.Link) error {
		drop, err := load("pg_cut", asm.Instructions{asm.Mov.Imm(asm.R0, shot), asm.Return()})
		if err != nil {
			return err
		}
		defer drop.Close() // the filter keeps the program
		f := filter(link, cut)
		f.Fd, f.Name = drop.FD(), "cut"
		return h.FilterReplace(f)
	})
	if err != nil {
		return fmt.Errorf("cutting the container's link %s: %w", p.link(), err)
	}
	return nil
}

// Mend ends the cut, if there is one. It is not an error if the port is gone. After an
// error call it again.
func (p Port) Mend() error {
	if err := p.unfilter(cut); err != nil {
		return fmt.Errorf("restoring the container's link %s: %w", p.link(), err)
	}
	return nil
}

// Free ends a hold whose process has died; until then the frames for the container are
// lost. It does not end the hold of a process that lives. It is not an error if the port
// is not held, or is gone. After an error call it again.
func (p Port) Free() error {
	if err := p.unfilter(frameQueueProgram); err != nil {
		return fmt.Errorf("letting frames to the container's link %s: %w", p.link(), err)
	}
	return nil
}

// hook is a place for a filter on a port's link.
type hook struct {
	parent   uint32
	priority uint16
}

var (
	cut               = hook{netlink.HANDLE_MIN_INGRESS, fleet.CutPriority} // what the container sends enters at the bridge's end
	frameQueueProgram = hook{netlink.HANDLE_MIN_EGRESS, fleet.QueuePriority}
)

// Results of programs (TC_ACT_*).
const (
	shot    = 2
	carryOn = -1 // continue as without the filter
)

func load(name string, code asm.Instructions) (*ebpf.Program, error) {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: ebpf.SchedCLS, License: "Apache-2.0", Instructions: code})
	if err != nil {
		return nil, fmt.Errorf("loading the filter %s into the kernel (the agent needs to be root): %w", name, err)
	}
	return p, nil
}

func filter(link netlink.Link, at hook) *netlink.BpfFilter {
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: link.Attrs().Index, Parent: at.parent, Priority: at.priority, Handle: 1, Protocol: unix.ETH_P_ALL,
		},
		Fd: -1, DirectAction: true,
	}
}

func (p Port) unfilter(at hook) error {
	err := withLink(p.link(), func(h *netlink.Handle, link netlink.Link) error { return h.FilterDel(filter(link, at)) })
	if gone(err) {
		return nil
	}
	return err
}

// gone reports whether an error means that there is no filter, no place for one, or no
// link.
func gone(err error) bool {
	return missing(err) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL)
}

// netlinkLimit is how long the kernel may take to answer. It answers at once, unless
// others hold its network lock, which may last seconds.
const netlinkLimit = 30 * time.Second

func openKernel() (*netlink.Handle, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	if err := h.SetSocketTimeout(netlinkLimit); err != nil {
		h.Close()
		return nil, fmt.Errorf("setting up a netlink socket: %w", err)
	}
	return h, nil
}

func withLink(name string, do func(*netlink.Handle, netlink.Link) error) error {
	h, err := openKernel()
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := h.LinkByName(name)
	if err != nil {
		return err
	}
	return do(h, link)
}

func missing(err error) bool {
	var none netlink.LinkNotFoundError
	return errors.As(err, &none) || errors.Is(err, unix.ENODEV)
}
