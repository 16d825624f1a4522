package port

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/overlay"
	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// surely is how long to wait for expected frames, quiet for unexpected ones. A slow machine only
// makes the test more lenient.
const (
	surely     = 10 * time.Second
	noFrameFor = 300 * time.Millisecond
)

// station is a host with its part of the jobs' networks.
type station struct {
	*testkit.Host
	*overlay.Overlay
	t    testing.TB
	name fleet.HostID
}

func stations(t testing.TB, n int) (all []*station) {
	t.Helper()
	for i, h := range testkit.Hosts(t, n) {
		s := &station{Host: h, t: t, name: fleet.HostID(rune('a' + i))}
		h.Must(func() (err error) {
			s.Overlay, err = overlay.Open(overlay.Config{Host: s.name, Address: h.Addr})
			return err
		})
		t.Cleanup(func() { s.Overlay.Close() })
		all = append(all, s)
	}
	return all
}

const subnet = fleet.Subnet(7)

func port(i int) Port { return Port{Subnet: subnet, Index: i, Guests: 4} }

func mac(i int) string { return subnet.GuestMAC(i) }

// layout says on which host each guest is, by number, and where else guest 0 has a port.
type layout struct {
	at   []int
	to   int  // the host that guest 0 moves to, 0 for none
	left bool // host 0, where it was before
}

func (l layout) apply(all []*station) {
	for i, s := range all {
		n := fleet.Network{Job: "j1", Subnet: subnet}
		for g, host := range l.at {
			e := fleet.Endpoint{Addr: subnet.GuestAddr(g), MAC: mac(g), Host: all[host].name, VTEP: all[host].Addr.String(),
				Guest: fleet.GuestID(fmt.Sprintf("j1g%d", g))}
			moves := g == 0 && l.to != 0
			if moves {
				e.Next = all[l.to].Addr.String()
			}
			n.Endpoints = append(n.Endpoints, e)
			if host == i || moves && l.to == i || g == 0 && l.left && i == 0 {
				n.Ports = append(n.Ports, fleet.Port{Guest: e.Guest, Index: g, MAC: e.MAC, Kind: fleet.Container})
			}
		}
		s.Must(func() error { return s.Apply(context.Background(), []fleet.Network{n}) })
	}
}

// attachContainer attaches to a port a container that has only a network.
func (s *station) attachContainer(i int) *testkit.Host {
	s.t.Helper()
	in := testkit.Namespace(s.t)
	s.Must(func() error { return port(i).Attach(in.File()) })
	return in
}

func (s *station) cut(i int)  { s.t.Helper(); s.Must(port(i).Cut) }
func (s *station) mend(i int) { s.t.Helper(); s.Must(port(i).Mend) }

func (s *station) queueFrames(i int) (h *FrameQueue) {
	s.t.Helper()
	s.Must(func() (err error) {
		h, err = port(i).QueueFrames()
		return err
	})
	s.t.Cleanup(func() { h.Close() })
	return h
}

// card sends and receives frames in a container, by its own link.
type card struct {
	t    testing.TB
	file *os.File
	own  net.HardwareAddr
}

// experimental is an EtherType for local experiments (IEEE 802).
const experimental = 0x88b5

func newCard(t testing.TB, in *testkit.Host) *card {
	t.Helper()
	c := &card{t: t}
	in.Must(func() error {
		link, err := net.InterfaceByName(inside)
		if err != nil {
			return err
		}
		c.own = link.HardwareAddr
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		c.file = os.NewFile(uintptr(fd), inside)
		const kind = experimental>>8 | experimental&0xff<<8 // in network byte order
		return errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 256<<20),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: kind, Ifindex: link.Index}))
	})
	t.Cleanup(func() { c.file.Close() })
	return c
}

func (c *card) say(to, text string) {
	c.t.Helper()
	hardware, err := net.ParseMAC(to)
	if err != nil {
		c.t.Fatal(err)
	}
	frame := append(append([]byte{}, hardware...), c.own...)
	frame = binary.BigEndian.AppendUint16(frame, experimental)
	for frame = append(frame, text...); ; time.Sleep(time.Millisecond) {
		_, err := c.file.Write(frame)
		if err == nil {
			return
		}
		if !errors.Is(err, unix.ENOBUFS) { // the kernel has too many frames and refused this one
			c.t.Errorf("sending: %v", err)
			return
		}
	}
}

// hear returns the next frame, or "" if none arrives within wait.
func (c *card) hear(wait time.Duration) string {
	c.file.SetReadDeadline(time.Now().Add(wait))
	buffer := make([]byte, 2048)
	n, err := c.file.Read(buffer)
	if err != nil || n < 14 {
		return ""
	}
	return strings.TrimRight(string(buffer[14:n]), "\x00")
}

func (c *card) mustHear(stage, text string) {
	c.t.Helper()
	if got := c.hear(surely); got != text {
		c.t.Errorf("%s: heard %q instead of %q", stage, got, text)
	}
}

func (c *card) mustNotHear(stage string) {
	c.t.Helper()
	if got := c.hear(noFrameFor); got != "" {
		c.t.Errorf("%s: heard %q", stage, got)
	}
}

// pinned keeps a goroutine on one processor: frames sent from two may overtake each other, held
// or not. The thread ends with the goroutine.
func pinned(t testing.TB, nth int) {
	runtime.LockOSThread()
	var may, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		t.Error(err)
		return
	}
	nth %= may.Count()
	for cpu := range len(may) * 64 {
		if may.IsSet(cpu) {
			if nth == 0 {
				one.Set(cpu)
				break
			}
			nth--
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Error(err)
	}
}
