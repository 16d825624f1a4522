// Package port has containers plugged into their jobs' networks: it takes the
// far end of a port into a container, cuts what the container sends, and holds
// what comes for it until it runs. The port itself, a pair of links whose near
// end is the bridge's, is made by others, and stays theirs.
//
// It must not know what a container is but its network namespace, nor why it is
// cut or held. It works in the network namespace it is called in, which is the
// host's. Cutting and holding are filters on the bridge's end of the pair, of
// lower rank than those that lead frames to where a guest moves to. Its tests run
// against the kernel, in namespaces that stand for hosts and for containers.
package port

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// Port is a container's place on its job's network. All addresses and names
// follow from it.
type Port struct {
	Subnet fleet.Subnet `json:"subnet"`
	Index  int          `json:"index"`  // of the container in its job
	Guests int          `json:"guests"` // that the job has, whose addresses are made known; only for Take
}

func (p Port) link() string { return p.Subnet.TapName(p.Index) }

// Cut lets nothing of what the container sends from now on leave, be it its
// programs that send or its kernel for them. What comes for it still reaches it.
// It holds until Mend, whatever becomes of this process, or until the port is
// gone. Cutting twice changes nothing. After an error it is as it was.
//
// A container that moves has to be frozen before it is cut, and best some
// milliseconds before, with other work in between. What it has sent and is cut off
// is lost, and a restored connection, which knows nothing of how long an answer
// takes, sends it again only after a second.
func (p Port) Cut() error {
	err := withLink(p.link(), func(h *netlink.Handle, link netlink.Link) error {
		drop, err := load("pg_cut", asm.Instructions{asm.Mov.Imm(asm.R0, shot), asm.Return()})
		if err != nil {
			return err
		}
		defer drop.Close() // the filter holds it
		f := filter(link, cut)
		f.Fd, f.Name = drop.FD(), "cut"
		return h.FilterReplace(f)
	})
	if err != nil {
		return fmt.Errorf("cutting the container's link %s: %w", p.link(), err)
	}
	return nil
}

// Mend ends what Cut began, if it did. A port that is gone is no error. After an
// error call again.
func (p Port) Mend() error {
	if err := p.unfilter(cut); err != nil {
		return fmt.Errorf("mending the container's link %s: %w", p.link(), err)
	}
	return nil
}

// Free ends a hold that nobody has any more, as after the death of the process
// that had it: until then what comes for the container is lost. A hold that
// somebody has is ended by that, not by this. A port that is not held, or is gone,
// is no error. After an error call again.
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
	cut               = hook{netlink.HANDLE_MIN_INGRESS, fleet.CutPriority} // what the bridge is given is what the container sends
	frameQueueProgram = hook{netlink.HANDLE_MIN_EGRESS, fleet.QueuePriority}
)

// What programs answer (TC_ACT_*).
const (
	shot    = 2
	carryOn = -1 // what the frame would do anyway
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

// gone reports what kernels say of a filter that is not there, of no place for one,
// and of a link that is gone with all it had.
func gone(err error) bool {
	return missing(err) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL)
}

// netlinkLimit is how long the kernel may take to answer. It answers at once,
// but for its lock on the network, which others may hold for seconds.
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
