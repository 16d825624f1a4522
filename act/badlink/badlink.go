// Package badlink impairs a network link, to test how programs handle it: it drops some
// incoming packets, and delays outgoing ones or passes fewer of them.
//
// It must not know whose link it is. Its tests use links between their own namespaces.
package badlink

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strings"
	"time"

	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Impairment is loss and delay of a link, and what it carries.
type Impairment struct {
	// Loss is the share of incoming packets to drop. A packet is what the kernel passes
	// at once, up to 64 KiB of a stream.
	Loss float64 `json:"loss,omitempty"`
	// Delay is added to all outgoing packets.
	Delay time.Duration `json:"delay_ns,omitempty"`
	// BytesPerSecond is the most that goes out; 0: no limit.
	BytesPerSecond int64 `json:"bytes_per_second,omitempty"`
}

// Upper limits; beyond them nothing would work.
const (
	mostLoss  = 0.5
	mostDelay = 2 * time.Second
	leastRate = 10_000 // bytes a second
)

// Check says what is wrong with an impairment.
func (t Impairment) Check() error {
	if !(t.Loss >= 0 && t.Loss <= mostLoss) {
		return fmt.Errorf("a loss has to be between 0 and %g %%", 100*mostLoss)
	}
	if t.Delay < 0 || t.Delay > mostDelay {
		return fmt.Errorf("a delay has to be between 0 and %s", mostDelay)
	}
	if t.BytesPerSecond != 0 && t.BytesPerSecond < leastRate {
		return fmt.Errorf("a link has to pass %d bytes a second or more", leastRate)
	}
	return nil
}

// String describes it for people.
func (t Impairment) String() string {
	var said []string
	switch {
	case t.Loss > 0 && t.Delay > 0:
		said = append(said, fmt.Sprintf("%g %% loss, %s delay", 100*t.Loss, t.Delay))
	case t.Loss > 0:
		said = append(said, fmt.Sprintf("%g %% lost", 100*t.Loss))
	case t.Delay > 0:
		said = append(said, fmt.Sprintf("%s delay", t.Delay))
	}
	if t.BytesPerSecond > 0 {
		said = append(said, fmt.Sprintf("at most %g MB/s", float64(t.BytesPerSecond)/1e6))
	}
	if len(said) == 0 {
		return "nothing lost"
	}
	return strings.Join(said, ", ")
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
	return with(name, "wait", func(link netlink.Link) error { return queue(link, t) })
}

// Lose sets only the loss, as Set does, and keeps the delay.
func Lose(name string, share float64) error {
	if err := (Impairment{Loss: share}).Check(); err != nil {
		return err
	}
	return with(name, "lose", func(link netlink.Link) error { return lose(link, share) })
}

// with runs do on a named link.
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

// hook is the place for the dropping filter on a link.
func hook(link netlink.Link) *netlink.Clsact {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
}

// absent ignores the kernel's errors for missing objects.
func absent(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

// A filter's results: drop, or continue with other filters.
const (
	shot    = 2
	carryOn = -1
)

// draw is the range of the random numbers.
const draw = math.MaxInt32

// lose makes a filter drop a share of incoming packets, as if the wire had lost them: the
// sender is not told. Not every kernel has netem; all kernels that Pagurus supports have
// filters.
func lose(link netlink.Link, share float64) error {
	if err := absent(netlink.QdiscDel(hook(link))); err != nil {
		return fmt.Errorf("having it lose nothing: %w", err)
	}
	if share == 0 {
		return nil
	}
	return filter(link, "pg_lose", asm.Instructions{
		asm.FnGetPrandomU32.Call(),
		asm.RSh.Imm(asm.R0, 1), // 31 bits compare correctly as signed
		asm.JLT.Imm(asm.R0, int32(share*draw), "lost"),
		asm.Mov.Imm(asm.R0, carryOn),
		asm.Return(),
		asm.Mov.Imm(asm.R0, shot).WithSymbol("lost"),
		asm.Return(),
	})
}

// queued limits the delayed packets: enough for what 10 Gbit/s send in mostDelay, in the
// kernel's largest packets.
const queued = 100_000

// queue delays outgoing packets, and lets no more pass than the link carries.
func queue(link netlink.Link, t Impairment) error {
	attrs := netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
	if err := absent(netlink.QdiscDel(&netlink.GenericQdisc{QdiscAttrs: attrs})); err != nil {
		return fmt.Errorf("having it wait for nothing: %w", err)
	}
	var q netlink.Qdisc
	switch {
	case t.Delay > 0:
		q = netlink.NewNetem(attrs, netlink.NetemQdiscAttrs{Latency: uint32(t.Delay.Microseconds()), Limit: queued, Rate64: uint64(t.BytesPerSecond)})
	case t.BytesPerSecond > 0:
		rate := uint64(t.BytesPerSecond)
		burst := uint32(max(rate/100, mostAtOnce))
		q = &netlink.Tbf{QdiscAttrs: attrs, Rate: rate, Buffer: netlink.Xmittime(rate, burst), Limit: burst + uint32(rate/20)} // 50 ms of it may wait
	default:
		return nil
	}
	err := netlink.QdiscAdd(q)
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("the kernel has no netem (CONFIG_NET_SCH_NETEM), which delays need")
	}
	if err != nil {
		return fmt.Errorf("having it wait: %w", err)
	}
	return nil
}

// mostAtOnce is the largest packet that the kernel passes at once.
const mostAtOnce = 64 << 10
