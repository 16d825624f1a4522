package kernelstate

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// CRIU restores a half-closed connection with packets that it makes up. Their window is cut to
// 16 bits and is often 0. Data written then would wait for seconds until the peer is asked
// again.

// halfClosed lists these states: FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK, CLOSING.
var halfClosed = map[byte]bool{4: true, 5: true, 8: true, 9: true, 11: true}

// windowBytes is the length of struct tcp_repair_window.
const windowBytes = 20

// silentRepairEnd ends a repair without a packet to the peer (TCP_REPAIR_OFF_NO_WP).
const silentRepairEnd = -1

// window returns the window of a half-closed connection, or nil for any other socket.
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

// repair calls do while the connection is in repair mode. The kernel forgets SO_REUSEADDR
// meanwhile.
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

// measure makes the kernel determine the segment size again. A restored connection learnt its
// peer's limit only after that, and would send segments of 536 bytes for ever. Setting empty IP
// options has this effect.
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
