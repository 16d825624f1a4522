package port

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// An IPv4 header without options: its length and the offsets of its fields.
const (
	ipHeader   = 20
	ipLength   = 2
	ipNumber   = 4
	ipFragment = 6
	ipSum      = 10
	moreToCome = 0x2000
)

// Deliver delivers an IPv4 packet to the container as if it came from the network, ahead
// of the held frames. A packet longer than the link's MTU is delivered in fragments.
func (p Port) Deliver(packet []byte) error {
	if len(packet) < ipHeader || packet[0] != 4<<4|ipHeader/4 {
		return errors.New("the frame to deliver is not a plain IPv4 packet")
	}
	err := p.deliver(packet)
	if err != nil {
		return fmt.Errorf("delivering a packet to guest %d of network %d: %w", p.Index, p.Subnet, err)
	}
	return nil
}

func (p Port) deliver(packet []byte) error {
	link, err := net.InterfaceByName(p.link())
	if err != nil {
		return err
	}
	way, err := openWay(link.Index)
	if err != nil {
		return err
	}
	defer unix.Close(way)
	to, err1 := net.ParseMAC(p.Subnet.GuestMAC(p.Index))
	from, err2 := net.ParseMAC(p.Subnet.ShareMAC())
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	for _, part := range fragments(packet, p.mtu()) {
		frame := make([]byte, headerBytes, headerBytes+14+len(part)) // the kernel has nothing to compute
		frame = append(append(append(frame, to...), from...), unix.ETH_P_IP>>8, unix.ETH_P_IP&0xff)
		if _, err := unix.Write(way, append(frame, part...)); err != nil {
			return err
		}
	}
	return nil
}

// fragments divides an IPv4 packet into fragments that are no longer than most bytes.
func fragments(packet []byte, most int) (parts [][]byte) {
	if len(packet) <= most {
		return [][]byte{packet}
	}
	header, data := packet[:ipHeader], packet[ipHeader:]
	room := (most - ipHeader) &^ 7
	for at := 0; at < len(data); at += room {
		end := min(at+room, len(data))
		part := append(append([]byte{}, header...), data[at:end]...)
		place := uint16(at / 8)
		if end < len(data) {
			place |= moreToCome
		}
		binary.BigEndian.PutUint16(part[ipLength:], uint16(len(part)))
		binary.BigEndian.PutUint16(part[ipNumber:], 1)
		binary.BigEndian.PutUint16(part[ipFragment:], place)
		binary.BigEndian.PutUint16(part[ipSum:], 0)
		sum := uint32(0)
		for i := 0; i < ipHeader; i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
		sum = sum&0xffff + sum>>16
		binary.BigEndian.PutUint16(part[ipSum:], ^uint16(sum+sum>>16))
		parts = append(parts, part)
	}
	return parts
}
