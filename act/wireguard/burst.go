package wireguard

import (
	"bytes"
	"errors"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"
)

// byNetwork is a TUN link that gives the kernel packets of two VXLAN networks apart. wireguard-go joins packets that a
// sender sends from one port to another into one, and a filter on the link might look at its first part alone (package
// overlay's looks at all). Packets of one network are still joined: for each one alone there would be a call of the kernel.
type byNetwork struct{ tun.Device }

// Where an IPv6 packet says that UDP follows, and where VXLAN says behind that of which network a frame is.
const (
	nextAt   = 6
	vniAt    = 52
	vniBytes = 3
)

// network is where a packet names its network, if it has UDP in it. Whether it is VXLAN does not matter here:
// other packets are few.
func network(packet []byte) []byte {
	if len(packet) < vniAt+vniBytes || packet[0]>>4 != 6 || packet[nextAt] != unix.IPPROTO_UDP {
		return nil
	}
	return packet[vniAt : vniAt+vniBytes]
}

// Write writes packets in their order.
func (l byNetwork) Write(packets [][]byte, offset int) (total int, err error) {
	for len(packets) > 0 {
		n := 1
		for n < len(packets) && bytes.Equal(network(packets[0][offset:]), network(packets[n][offset:])) {
			n++
		}
		wrote, err2 := l.Device.Write(packets[:n], offset)
		total, err = total+wrote, errors.Join(err, err2)
		packets = packets[n:]
	}
	return total, err
}
