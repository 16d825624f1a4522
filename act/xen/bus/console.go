package bus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Console is dom0's end of a console of a guest, beside its first one that xenconsoled has. A guest's kernel makes a
// terminal of each. What is written there goes through a page of the guest's memory (xen/io/console.h), and an event
// channel tells either side to look.
type Console struct {
	store  *Store
	domain int
	ring   *ring
	grants *os.File
	events *os.File
	port   uint32
	over   chan struct{}
	once   sync.Once
	wrote  chan struct{} // has one when the guest may have written
	read   chan struct{} // has one when the guest may have read
	mu     sync.Mutex    // held by Write
}

// number is the console's; the guest's first one is 0.
const number = 1

func frontend(domain int) string {
	return fmt.Sprintf("/local/domain/%d/device/console/%d", domain, number)
}
func backend(domain int) string {
	return fmt.Sprintf("/local/domain/0/backend/console/%d/%d", domain, number)
}

// The states of either end (xen/io/xenbus.h).
const (
	initialising = "1"
	initWait     = "2"
	initialised  = "3"
	connected    = "4"
)

// OfferConsole gives a guest a console. The guest's kernel takes it when it comes to it. It may be called again.
func OfferConsole(s *Store, domain int) error {
	back, front := backend(domain), frontend(domain)
	if _, err := s.Read(front + "/state"); err == nil {
		return nil
	}
	id := strconv.Itoa(domain)
	type node struct{ path, value string }
	for _, n := range []node{
		{back, ""}, {back + "/frontend", front}, {back + "/frontend-id", id}, {back + "/online", "1"}, {back + "/state", initWait},
	} {
		if err := errors.Join(s.Write(n.path, n.value), s.Permit(n.path, 0, domain)); err != nil {
			return err
		}
	}
	// The state comes last: it is what the guest's kernel waits for.
	for _, n := range []node{
		{front, ""}, {front + "/backend", back}, {front + "/backend-id", "0"}, {front + "/type", "pagurus"}, {front + "/state", initialising},
	} {
		if err := errors.Join(s.Write(n.path, n.value), s.Permit(n.path, domain, 0)); err != nil {
			return err
		}
	}
	return nil
}

const lookEvery = 100 * time.Millisecond

// TakeConsole waits until the guest's kernel has taken the console, and connects to it.
func TakeConsole(ctx context.Context, s *Store, domain int) (*Console, error) {
	front := frontend(domain)
	for {
		state, err := s.Read(front + "/state")
		if err != nil {
			return nil, err
		}
		if state == initialised || state == connected {
			break
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(lookEvery):
		}
	}
	reference, err := s.number(front + "/ring-ref")
	if err != nil {
		return nil, err
	}
	port, err := s.number(front + "/port")
	if err != nil {
		return nil, err
	}
	c := &Console{store: s, domain: domain, over: make(chan struct{}), wrote: make(chan struct{}, 1), read: make(chan struct{}, 1)}
	if err = c.connect(reference, port); err == nil {
		err = s.Write(backend(domain)+"/state", connected)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("take the console of domain %d: %w", domain, err), c.Close())
	}
	go c.listen()
	return c, nil
}

func (s *Store) number(path string) (uint32, error) {
	text, err := s.Read(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(text, 10, 32)
	return uint32(n), err
}

// The kernel's calls (xen/gntdev.h, xen/evtchn.h).
const (
	mapGrant = 0x184700
	bindPort = 0x84501
	notify   = 0x44504
)

type grantMap struct {
	count, _ uint32
	index    uint64
	domain   uint32
	ref      uint32
}

// connect maps the guest's page and binds its event channel.
func (c *Console) connect(reference, port uint32) (err error) {
	if c.grants, err = os.OpenFile("/dev/xen/gntdev", os.O_RDWR, 0); err != nil {
		return fmt.Errorf("%w: load the module xen-gntdev", err)
	}
	m := grantMap{count: 1, domain: uint32(c.domain), ref: reference}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, c.grants.Fd(), mapGrant, uintptr(unsafe.Pointer(&m))); errno != 0 {
		return fmt.Errorf("map its page: %w", errno)
	}
	page, err := unix.Mmap(int(c.grants.Fd()), int64(m.index), os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map its page: %w", err)
	}
	c.ring = &ring{page: page}
	fd, err := unix.Open("/dev/xen/evtchn", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev/xen/evtchn: %w: load the module xen-evtchn", err)
	}
	c.events = os.NewFile(uintptr(fd), "evtchn") // not blocking: Go waits for it, and Close ends that
	bind := [2]uint32{uint32(c.domain), port}
	local, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), bindPort, uintptr(unsafe.Pointer(&bind)))
	if errno != 0 {
		return fmt.Errorf("bind its event channel: %w", errno)
	}
	c.port = uint32(local)
	return nil
}

// listen wakes Read and Write when the guest has done something.
func (c *Console) listen() {
	var b [4]byte
	for {
		if _, err := io.ReadFull(c.events, b[:]); err != nil {
			c.once.Do(func() { close(c.over) })
			return
		}
		_, _ = c.events.Write(b[:]) // unmasks it
		c.wake()
	}
}

func (c *Console) wake() {
	for _, w := range []chan struct{}{c.wrote, c.read} {
		select {
		case w <- struct{}{}:
		default:
		}
	}
}

// tell has the guest look.
func (c *Console) tell() {
	raw, err := c.events.SyscallConn()
	if err != nil {
		return // closed
	}
	_ = raw.Control(func(fd uintptr) {
		port := c.port
		_, _, _ = unix.Syscall(unix.SYS_IOCTL, fd, notify, uintptr(unsafe.Pointer(&port)))
	})
}

// await waits until the guest may have done something. It returns an error when the console is closed.
func (c *Console) await(done <-chan struct{}) error {
	select {
	case <-c.over:
		return io.EOF
	case <-done:
		return nil
	}
}

// Read reads what the guest has written.
func (c *Console) Read(b []byte) (int, error) {
	for {
		select {
		case <-c.over:
			return 0, io.EOF
		default:
		}
		n, err := c.ring.read(b)
		if n > 0 || err != nil {
			c.tell()
			return n, err
		}
		if err := c.await(c.wrote); err != nil {
			return 0, err
		}
	}
}

// Write writes all of b for the guest to read, or fails.
func (c *Console) Write(b []byte) (total int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for total < len(b) {
		select {
		case <-c.over:
			return total, io.ErrClosedPipe
		default:
		}
		n, err := c.ring.write(b[total:])
		if err != nil {
			return total, err
		}
		if total += n; n > 0 {
			c.tell()
		} else if err := c.await(c.read); err != nil {
			return total, io.ErrClosedPipe
		}
	}
	return total, nil
}

// Close gives the guest's page back. The page is unmapped when nothing reads or writes it any more, with this process at the latest.
func (c *Console) Close() error {
	c.once.Do(func() { close(c.over) })
	var errs []error
	if c.events != nil {
		errs = append(errs, c.events.Close())
	}
	if c.grants != nil {
		errs = append(errs, c.grants.Close())
	}
	return errors.Join(errs...)
}

// ring is the page (struct xencons_interface). The guest may write anything into it at any time.
type ring struct{ page []byte }

// The page's parts. Each position is counted up and used modulo the length of its part.
const (
	inBytes  = 1024 // to the guest, at 0
	outBytes = 2048 // from the guest
	outAt    = inBytes
	inCons   = inBytes + outBytes
	inProd   = inCons + 4
	outCons  = inCons + 8
	outProd  = inCons + 12
)

// errRing says that a guest wrote senseless positions.
var errRing = errors.New("the guest's console has senseless positions")

func (r *ring) at(offset int) *uint32 { return (*uint32)(unsafe.Pointer(&r.page[offset])) }

// read takes what the guest has written.
func (r *ring) read(b []byte) (int, error) {
	cons, prod := atomic.LoadUint32(r.at(outCons)), atomic.LoadUint32(r.at(outProd))
	have := prod - cons
	if have > outBytes {
		return 0, errRing
	}
	n := min(int(have), len(b))
	for i := range n {
		b[i] = r.page[outAt+int((cons+uint32(i))%outBytes)]
	}
	atomic.StoreUint32(r.at(outCons), cons+uint32(n))
	return n, nil
}

// write gives the guest as much as it has room for.
func (r *ring) write(b []byte) (int, error) {
	cons, prod := atomic.LoadUint32(r.at(inCons)), atomic.LoadUint32(r.at(inProd))
	used := prod - cons
	if used > inBytes {
		return 0, errRing
	}
	n := min(inBytes-int(used), len(b))
	for i := range n {
		r.page[int((prod+uint32(i))%inBytes)] = b[i]
	}
	atomic.StoreUint32(r.at(inProd), prod+uint32(n))
	return n, nil
}

// SweepConsoles removes the consoles of domains that are gone.
func SweepConsoles(s *Store) error {
	const all = "/local/domain/0/backend/console"
	numbers, err := s.List(all)
	if err != nil {
		return err
	}
	for _, n := range numbers {
		if there, err := s.List("/local/domain/" + n); err == nil && len(there) == 0 {
			if err := s.Remove(all + "/" + n); err != nil {
				return err
			}
		}
	}
	return nil
}
