// Package frames is what a test and its guest agree on about numbered frames: the test sends them to the guest's port while the guest
// moves, and the guest says which have come. It knows nothing of either.
package frames

import (
	"encoding/binary"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Type is the frames' protocol, which IEEE 802 leaves to experiments (RFC 9542, section 3).
const Type = 0x88b5

// Order is a number in the order of the network.
func Order(n uint16) uint16 { return n<<8 | n>>8 }

// Count is what came of numbered frames.
type Count struct {
	Came  int    // all of them
	Wrong int    // of these, those that came twice, or after a later one
	Last  uint64 // the highest number
}

// Add counts one.
func (c *Count) Add(number uint64) {
	c.Came++
	if number <= c.Last {
		c.Wrong++
	}
	c.Last = max(c.Last, number)
}

// String is how the guest says it.
func (c Count) String() string { return fmt.Sprintf("%d %d %d", c.Came, c.Wrong, c.Last) }

// Parse reads what String has written.
func Parse(text string) (c Count, err error) {
	_, err = fmt.Sscan(text, &c.Came, &c.Wrong, &c.Last)
	return c, err
}

// Send sends a frame with the next number, from 1 on, out of a link each time that this time has passed, until over. It returns the last number.
func Send(link string, to net.HardwareAddr, every time.Duration, over <-chan struct{}) (last uint64, err error) {
	l, err := net.InterfaceByName(link)
	if err != nil {
		return 0, err
	}
	s, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(s)
	at := &unix.SockaddrLinklayer{Protocol: Order(Type), Ifindex: l.Index, Halen: uint8(len(to))}
	copy(at.Addr[:], to)
	content := make([]byte, 46) // the least that Ethernet carries
	for tick := time.NewTicker(every); ; {
		select {
		case <-over:
			return last, nil
		case <-tick.C:
		}
		binary.BigEndian.PutUint64(content, last+1)
		if err := unix.Sendto(s, content, 0, at); err != nil {
			return last, err
		}
		last++
	}
}
