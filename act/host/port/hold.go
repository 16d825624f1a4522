package port

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A container that moves has no sockets on the target until it is restored there. The
// kernel would answer an earlier frame with a reset, and the connection and the job would
// be lost. A dropped frame is sent again after TCP's time-out at the earliest, and the
// sender waits for up to as long again as the move took. So frames wait.
//
// They wait in a TAP link. A filter on the port redirects them into it, and they are not
// read until Release. The kernel queues them in order, with a note of what it has not
// computed yet (checksums, segmentation). To reach the container past the filter, they
// are sent out of the port through a packet socket that bypasses filters.
//
// To release without a frame overtaking another, there must be a moment at which all
// queued frames have been delivered and no more are queued. The filter itself finds it.
// It counts the frames that it queues, and Release writes how many of them it has
// delivered. When the two numbers are equal, the filter lets a frame pass. So a sender's
// next frame passes only after all its earlier frames have been delivered.

// queueFrames is the largest number of waiting frames. More are lost, as on any full
// port. A frame of a TCP connection may have 64 KiB. A connection never has more in
// transit than its receiver's window, by default 6 MiB.
const queueFrames = 16384

// FrameQueue holds the frames for a container until Release. It may be used from any
// thread, in any namespace.
type FrameQueue struct {
	mu        sync.Mutex
	port      Port
	kernel    *netlink.Handle
	tap       int
	way       int           // the packet socket that bypasses the filters
	link      netlink.Link  // the port
	program   *ebpf.Program // of the filter; nil: the filter has it, or there is none
	filter    *netlink.BpfFilter
	queued    *ebpf.Map // number of frames that the filter has queued
	delivered *ebpf.Map // number of them that no longer wait; never while no frame may pass
	buffer    []byte
	chase     time.Duration // chaseLimit
	pending   []byte        // a frame read from the queue and not yet delivered
	count     Count
	unsent    uint64 // those of the lost frames that could not be sent
	closed    bool
}

// Count says what became of the held frames.
type Count struct {
	Delivered uint64
	Lost      uint64 // came when the queue was full, or could not be sent
}

// never is a value that no count reaches.
const never = math.MaxUint64

// QueueFrames makes frames for the container wait until Release. The port need not be
// attached. A hold whose process has died is replaced, and its frames are lost. A second
// hold is refused while the process of the first lives. After an error frames go to the
// container as before.
func (p Port) QueueFrames() (*FrameQueue, error) {
	h, err := p.PrepareQueue()
	if err == nil {
		err = h.HoldFrames()
	}
	if err != nil {
		return nil, err
	}
	return h, nil
}

// PrepareQueue makes all that QueueFrames needs, which takes ten times as long as HoldFrames. Frames
// go to the container until HoldFrames.
func (p Port) PrepareQueue() (*FrameQueue, error) {
	h := &FrameQueue{port: p, tap: -1, way: -1, buffer: make([]byte, frameBytes), chase: chaseLimit}
	if err := h.open(); err != nil {
		h.letGo()
		return nil, h.wrap(err)
	}
	return h, nil
}

// HoldFrames makes frames wait from now on, in the network namespace of PrepareQueue. After an error
// frames go to the container as before, and the queue is closed.
func (h *FrameQueue) HoldFrames() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := filter(h.link, frameQueueProgram)
	f.Fd, f.Name = h.program.FD(), "hold"
	if err := h.kernel.FilterReplace(f); err != nil {
		h.letGo()
		return h.wrap(fmt.Errorf("hanging a filter on %s (apply the job's network again): %w", h.port.link(), err))
	}
	h.filter = f
	h.dropProgram()
	return nil
}

func (h *FrameQueue) wrap(err error) error {
	return fmt.Errorf("holding frames for guest %d of network %d: %w", h.port.Index, h.port.Subnet, err)
}

// dropProgram closes the program, which a filter keeps.
func (h *FrameQueue) dropProgram() {
	if h.program != nil {
		h.program.Close()
	}
	h.program = nil
}

func (h *FrameQueue) open() (err error) {
	if h.kernel, err = openKernel(); err != nil {
		return err
	}
	if h.link, err = h.kernel.LinkByName(h.port.link()); err != nil {
		return fmt.Errorf("looking for the port %s: %w", h.port.link(), err)
	}
	queue, err := h.openQueue()
	if err != nil {
		return err
	}
	if h.way, err = openWay(h.link.Attrs().Index); err != nil {
		return err
	}
	if h.queued, err = number(0); err != nil {
		return err
	}
	if h.delivered, err = number(never); err != nil {
		return err
	}
	h.program, err = load("pg_hold", redirect(h.queued, h.delivered, queue))
	return err
}

// number makes a number that programs in the kernel share with this process.
func number(first uint64) (*ebpf.Map, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "pg_hold", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err == nil {
		if err = m.Put(uint32(0), first); err != nil {
			m.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("making a counter in the kernel: %w", err)
	}
	return m, nil
}

// redirect queues frames and counts them, unless all counted frames have been delivered.
// It reads the delivered count first, which never exceeds the queued count of that
// moment.
func redirect(queued, delivered *ebpf.Map, queue int) asm.Instructions {
	return asm.Instructions{
		asm.LoadMapValue(asm.R6, queued.FD(), 0),
		asm.LoadMapValue(asm.R7, delivered.FD(), 0),
		asm.LoadMem(asm.R1, asm.R7, 0, asm.DWord),
		asm.LoadMem(asm.R2, asm.R6, 0, asm.DWord),
		asm.JEq.Reg(asm.R1, asm.R2, "pass"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R6, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R1, int32(queue)),
		asm.Mov.Imm(asm.R2, 0),
		asm.FnRedirect.Call(),
		asm.Return(),
		asm.Mov.Imm(asm.R0, carryOn).WithSymbol("pass"),
		asm.Return(),
	}
}

// Before each frame the kernel writes what it has not computed yet (struct
// virtio_net_hdr). Reading from a TAP and writing to a packet socket use the same format.
const (
	headerBytes = 10
	frameBytes  = headerBytes + 1<<17 // no frame is larger, in bytes
)

// startLimit is how long a process may take from its fork to its program.
const startLimit = 500 * time.Millisecond

// openQueue makes the TAP link, which exists as long as the process has it open, and
// returns its index.
func (h *FrameQueue) openQueue() (index int, err error) {
	name := h.port.Subnet.PortQueueName(h.port.Index)
	if h.tap, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err != nil {
		return 0, fmt.Errorf("opening /dev/net/tun (modprobe tun): %w", err)
	}
	r, err := unix.NewIfreq(name)
	if err != nil {
		return 0, err
	}
	r.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	// A process that was being started when an earlier queue was closed has it open until it runs its program.
	err = unix.IoctlIfreq(h.tap, unix.TUNSETIFF, r)
	for end := time.Now().Add(startLimit); errors.Is(err, unix.EBUSY) && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
		err = unix.IoctlIfreq(h.tap, unix.TUNSETIFF, r)
	}
	if errors.Is(err, unix.EBUSY) {
		return 0, fmt.Errorf("it is held already: release it first")
	} else if err != nil {
		return 0, fmt.Errorf("making the queue %s: %w", name, err)
	}
	const tcp, udp = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6 | unix.TUN_F_TSO_ECN, unix.TUN_F_USO4 | unix.TUN_F_USO6
	if unix.IoctlSetInt(h.tap, unix.TUNSETOFFLOAD, tcp|udp) != nil { // Linux before 6.2 does not support it for UDP
		if err := unix.IoctlSetInt(h.tap, unix.TUNSETOFFLOAD, tcp); err != nil {
			return 0, fmt.Errorf("setting up the queue %s: %w", name, err)
		}
	}
	link, err := h.kernel.LinkByName(name)
	if err != nil {
		return 0, fmt.Errorf("looking for the queue %s: %w", name, err)
	}
	index = link.Attrs().Index
	// The link's own announcements would wait in it, too.
	if err := h.kernel.LinkSetIP6AddrGenMode(link, nl.IN6_ADDR_GEN_MODE_NONE); err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
		return 0, fmt.Errorf("switching off the own IPv6 of %s: %w", name, err)
	}
	if err := errors.Join(h.kernel.LinkSetTxQLen(link, queueFrames), h.kernel.LinkSetUp(link)); err != nil {
		return 0, fmt.Errorf("setting up the queue %s: %w", name, err)
	}
	// The TAP has a queue of its own. A queue before it would be emptied later, so it would be
	// unknown when the last frame is in the TAP.
	direct := &netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Parent: netlink.HANDLE_ROOT}, QdiscType: "noqueue"}
	if err := h.kernel.QdiscReplace(direct); err != nil {
		return 0, fmt.Errorf("setting up the queue %s: %w", name, err)
	}
	return index, nil
}

// openWay opens a socket whose frames leave through a link and bypass its filters. It
// receives nothing.
func openWay(link int) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1),
			unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: link}))
		if err != nil {
			unix.Close(fd)
		}
	}
	if err != nil {
		return -1, fmt.Errorf("opening a packet socket: %w", err)
	}
	return fd, nil
}

// Release delivers the waiting frames to the container and lets later frames pass. The
// port must be attached. The container may run already, which is better: the first frame
// arrives at once, but Release returns only when the kernel has removed the queue, after
// about 10 ms. No frames are lost except those in Count, and none is delivered twice.
// Frames keep the order in which they came to the port, with two exceptions, in which
// later frames may overtake waiting ones. Either frames came faster than they can be
// delivered for all of chaseLimit. Or the busy kernel left delivered frames to the
// processor that Release ran on, and processed later frames on another. (Release could
// stay on one processor, but would wait while that is busy, and time matters more than
// order.) Releasing again changes nothing. After an error the frames that were not
// delivered still wait: call Release again, or Close.
func (h *FrameQueue) Release() error {
	if err := h.Deliver(); err != nil {
		return err
	}
	return h.Close()
}

// Deliver does what Release does, but leaves the empty queue in place until Close: the kernel
// takes some tens of milliseconds to remove it.
func (h *FrameQueue) Deliver() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil
	}
	if err := h.release(); err != nil {
		return fmt.Errorf("releasing the frames for guest %d of network %d: %w", h.port.Index, h.port.Subnet, err)
	}
	return nil
}

// chaseLimit is how long new frames are queued behind those that are being delivered.
// Only a sender that does not wait for answers reaches it.
const chaseLimit = time.Second

func (h *FrameQueue) release() error {
	for end := time.Now().Add(h.chase); time.Now().Before(end); {
		if err := h.drain(); err != nil {
			return err
		}
		if level, err := h.level(); err != nil || level {
			break
		}
	}
	if err := h.unhold(); err != nil {
		return err
	}
	// Every processor that was about to queue a frame has done so after this.
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0); errno != 0 {
		time.Sleep(graceLimit)
	}
	return h.drain()
}

const (
	membarrierGlobal = 1 // MEMBARRIER_CMD_GLOBAL: every processor has left what it did in the kernel's network code
	// graceLimit is how long to wait instead if the kernel has no membarrier.
	graceLimit = 100 * time.Millisecond
)

// level tells the filter, if no frame waits, that all counted frames have been delivered.
// It reports whether that was still true.
func (h *FrameQueue) level() (bool, error) {
	queued, err := read(h.queued)
	if err != nil {
		return false, err
	}
	if h.passed() < queued { // some are on their way into the queue, or were lost because it was full
		if err := h.countLost(); err != nil {
			return false, err
		}
		if h.passed() < queued {
			runtime.Gosched()
			return false, nil
		}
	}
	if err := h.delivered.Put(uint32(0), queued); err != nil {
		return false, fmt.Errorf("setting a counter in the kernel: %w", err)
	}
	now, err := read(h.queued)
	return now == queued, err
}

func (h *FrameQueue) passed() uint64 { return h.count.Delivered + h.count.Lost }

func read(m *ebpf.Map) (n uint64, err error) {
	if err = m.Lookup(uint32(0), &n); err != nil {
		return 0, fmt.Errorf("reading a counter in the kernel: %w", err)
	}
	return n, nil
}

// countLost reads how many frames were lost because the queue was full.
func (h *FrameQueue) countLost() error {
	link, err := h.kernel.LinkByName(h.port.Subnet.PortQueueName(h.port.Index))
	if err != nil {
		return fmt.Errorf("checking the queue: %w", err)
	}
	if s := link.Attrs().Statistics; s != nil {
		h.count.Lost = h.unsent + s.TxDropped
	}
	return nil
}

// drain delivers waiting frames until none waits.
func (h *FrameQueue) drain() error {
	for {
		if h.pending == nil {
			n, err := unix.Read(h.tap, h.buffer)
			switch {
			case errors.Is(err, unix.EINTR):
				continue
			case errors.Is(err, unix.EAGAIN):
				return nil
			case errors.Is(err, unix.EINVAL): // its form cannot be expressed in the header
				h.unsent++
				h.count.Lost++
				continue
			case err != nil:
				return fmt.Errorf("reading the waiting frames (the job's network may have been removed): %w", err)
			}
			h.pending = h.buffer[:n]
		}
		if err := h.deliver(h.pending); err != nil {
			return err
		}
		h.pending = nil
	}
}

// deliverLimit is how long the kernel may refuse a frame because it has too many to
// process.
const deliverLimit = time.Second

func (h *FrameQueue) deliver(frame []byte) error {
	for pause, end := time.Microsecond, time.Now().Add(deliverLimit); ; pause = min(2*pause, time.Millisecond) {
		_, err := unix.Write(h.way, frame)
		switch {
		case err == nil:
			h.count.Delivered++
			return nil
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EMSGSIZE): // other frames must not wait for one that cannot be sent
			h.unsent++
			h.count.Lost++
			return nil
		case errors.Is(err, unix.ENOBUFS) && time.Now().Before(end): // dropped: the container's side has too many frames to process
			time.Sleep(pause)
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ENOBUFS):
			return fmt.Errorf("the container takes no frames (is it attached?): %w", err)
		default:
			return fmt.Errorf("delivering a frame: %w", err)
		}
	}
}

// Close ends a hold; the waiting frames are lost. Later frames go to the container as if
// there had been no hold. Closing after Release, or twice, changes nothing.
func (h *FrameQueue) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil
	}
	if err := h.letGo(); err != nil {
		return fmt.Errorf("dropping the frames for guest %d of network %d: %w", h.port.Index, h.port.Subnet, err)
	}
	return nil
}

// Count returns what became of the frames so far. It is complete after Release.
func (h *FrameQueue) Count() Count {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.count
}

// unhold removes the filter.
func (h *FrameQueue) unhold() error {
	if h.filter == nil {
		return nil
	}
	err := h.kernel.FilterDel(h.filter)
	if err != nil && !gone(err) {
		return fmt.Errorf("removing the filter from %s: %w", h.port.link(), err)
	}
	h.filter = nil
	return nil
}

// letGo releases everything, in any state.
func (h *FrameQueue) letGo() error {
	err := h.unhold()
	h.closed = true
	h.dropProgram()
	for _, fd := range []int{h.tap, h.way} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	for _, m := range []*ebpf.Map{h.queued, h.delivered} {
		if m != nil {
			m.Close()
		}
	}
	if h.kernel != nil {
		h.kernel.Close()
	}
	return err
}
