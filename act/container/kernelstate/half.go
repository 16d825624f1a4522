package kernelstate

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// A connection of which half is closed is restored by CRIU with packets that it makes up,
// and that say a window cut to 16 bits, often 0: what is written would wait for the peer
// to be asked again, which takes seconds.

// halfClosed are the states of such connections: FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK, CLOSING.
var halfClosed = map[byte]bool{4: true, 5: true, 8: true, 9: true, 11: true}

// windowBytes is the length of struct tcp_repair_window.
const windowBytes = 20

// silentRepairEnd ends a repair without a packet to the peer (TCP_REPAIR_OFF_NO_WP).
const silentRepairEnd = -1

// window is that of a connection of which half is closed; nil: it is not so.
func (s socket) window() (window []byte, err error) {
	if !halfClosed[s.state] {
		return nil, nil
	}
	window = make([]byte, windowBytes)
	err = s.repair(func() error {
		_, err := getsockopt(s.fd, TCPLevel, unix.TCP_REPAIR_WINDOW, window)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the window of a connection: %w", err)
	}
	return window, nil
}

func (s socket) giveWindow(window []byte) error {
	if len(window) != windowBytes || !halfClosed[s.state] {
		return nil
	}
	err := s.repair(func() error { return setsockopt(s.fd, TCPLevel, unix.TCP_REPAIR_WINDOW, window) })
	if err != nil {
		return fmt.Errorf("set the window of a connection: %w", err)
	}
	return nil
}

// repair does something that is only possible while a connection is being repaired. The
// kernel forgets SO_REUSEADDR over that.
func (s socket) repair(do func() error) error {
	reuse := getInt(s.fd, unix.SOL_SOCKET, unix.SO_REUSEADDR)
	if err := setInt(s.fd, TCPLevel, unix.TCP_REPAIR, 1); err != nil {
		return err
	}
	err := do()
	if wrong := setInt(s.fd, TCPLevel, unix.TCP_REPAIR, silentRepairEnd); err == nil {
		err = wrong
	}
	if wrong := setInt(s.fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, reuse); err == nil {
		err = wrong
	}
	return err
}

// measure has the kernel find again how much a segment may carry. A restored connection was
// told what its peer takes only after that was found, and would send segments of 536 bytes
// for as long as it lasts. To set no IP options is what does it.
func (s socket) measure() error {
	if !s.tcp() || s.state == tcpClosed || s.state == tcpListening {
		return nil
	}
	level, number := IPLevel, unix.IP_OPTIONS
	if here, _ := s.names(); here.Addr().Is6() {
		level, number = IPv6Level, unix.IPV6_RTHDR
	}
	if err := setsockopt(s.fd, level, number, nil); err != nil {
		return fmt.Errorf("have a connection's segments measured: %w", err)
	}
	return nil
}
