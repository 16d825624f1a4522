// Package badlink makes a network link worse than it is: it loses some of what comes
// in by it, and what is sent by it is late. That shows how programs take it.
//
// It must not know whose link it is. Its tests send over links of namespaces of their
// own.
package badlink

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Impairment is what is wrong with a link.
type Impairment struct {
	// Loss is which share of what comes in is lost. It is of what a kernel hands
	// over at once, which may be up to 64 KiB of a stream.
	Loss float64
	// Delay is how much later all that is sent goes out.
	Delay time.Duration
}

// The most that a link may be troubled: with more nothing would work.
const (
	mostLoss  = 0.5
	mostDelay = 2 * time.Second
)

// Check says what is wrong with a trouble.
func (t Impairment) Check() error {
	if !(t.Loss >= 0 && t.Loss <= mostLoss) {
		return fmt.Errorf("a loss has to be between 0 and %g %%", 100*mostLoss)
	}
	if t.Delay < 0 || t.Delay > mostDelay {
		return fmt.Errorf("a delay has to be between 0 and %s", mostDelay)
	}
	return nil
}

// String says it for people.
func (t Impairment) String() string {
	switch {
	case t.Loss > 0 && t.Delay > 0:
		return fmt.Sprintf("%g %% loss, %s delay", 100*t.Loss, t.Delay)
	case t.Loss > 0:
		return fmt.Sprintf("%g %% lost", 100*t.Loss)
	case t.Delay > 0:
		return fmt.Sprintf("%s delay", t.Delay)
	}
	return "nothing lost"
}

// ParseShare reads a share as people write it: 1% or 0.01.
func ParseShare(text string) (float64, error) {
	number, percent := strings.CutSuffix(strings.TrimSpace(text), "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil || math.IsNaN(v) {
		return 0, fmt.Errorf("%q is not a share: write something like 1%%", text)
	}
	if percent {
		v /= 100
	}
	return v, nil
}

// Set gives a link of this network namespace its trouble, in place of what it had; the
// zero one is none. It takes all filters of others off the link. It holds until the
// link is removed. After an error it may lose and not wait: call again.
func Set(name string, t Impairment) error {
	if err := t.Check(); err != nil {
		return err
	}
	if err := Lose(name, t.Loss); err != nil {
		return err
	}
	return with(name, "wait", func(link netlink.Link) error { return delay(link, t.Delay) })
}

// Lose has a link of this network namespace lose that share of what comes in by it, as
// Set does, and leaves how late it is as it was.
func Lose(name string, share float64) error {
	if err := (Impairment{Loss: share}).Check(); err != nil {
		return err
	}
	return with(name, "lose", func(link netlink.Link) error { return lose(link, share) })
}

// with does something to a link.
func with(name, what string, do func(netlink.Link) error) error {
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = do(link)
	}
	if err != nil {
		return fmt.Errorf("have link %s %s: %w", name, what, err)
	}
	return nil
}

// hook is the place on a link where the filter hangs that loses.
func hook(link netlink.Link) *netlink.Clsact {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
}

// absent takes what kernels say of what is not there for success.
func absent(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

// What a filter answers: this is lost; others decide.
const (
	shot    = 2
	carryOn = -1
)

// draw is of how many a share is drawn.
const draw = math.MaxInt32

// lose has a filter drop a share of what comes in by the link, as if the wire had
// lost it: whoever sent it is not told. Not every kernel has netem; all that Pagurus
// runs on have filters.
func lose(link netlink.Link, share float64) error {
	if err := absent(netlink.QdiscDel(hook(link))); err != nil {
		return fmt.Errorf("having it lose nothing: %w", err)
	}
	if share == 0 {
		return nil
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "pg_lose", Type: ebpf.SchedCLS, License: "Apache-2.0", Instructions: asm.Instructions{
		asm.FnGetPrandomU32.Call(),
		asm.RSh.Imm(asm.R0, 1), // to 31 bits, which compare as they are
		asm.JLT.Imm(asm.R0, int32(share*draw), "lost"),
		asm.Mov.Imm(asm.R0, carryOn),
		asm.Return(),
		asm.Mov.Imm(asm.R0, shot).WithSymbol("lost"),
		asm.Return(),
	}})
	if err != nil {
		return fmt.Errorf("load the filter that loses: %w", err)
	}
	defer p.Close() // the link holds it
	err = netlink.QdiscAdd(hook(link))
	if err == nil {
		err = netlink.FilterAdd(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1},
			Fd:          p.FD(), Name: "pg_lose", DirectAction: true,
		})
	}
	if err != nil {
		return fmt.Errorf("hanging a filter on it: %w", err)
	}
	return nil
}

// queued is how many packets wait at most for the time to come: enough for what 10
// Gbit/s send in mostDelay in pieces as large as the kernel makes them.
const queued = 100_000

// delay has what is sent by the link wait.
func delay(link netlink.Link, d time.Duration) error {
	attrs := netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
	if d == 0 {
		if err := absent(netlink.QdiscDel(&netlink.Netem{QdiscAttrs: attrs})); err != nil {
			return fmt.Errorf("having it wait for nothing: %w", err)
		}
		return nil
	}
	err := netlink.QdiscReplace(netlink.NewNetem(attrs, netlink.NetemQdiscAttrs{Latency: uint32(d.Microseconds()), Limit: queued}))
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("the kernel has no netem (CONFIG_NET_SCH_NETEM), which delays need")
	}
	if err != nil {
		return fmt.Errorf("having it wait: %w", err)
	}
	return nil
}
