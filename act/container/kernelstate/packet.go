package kernelstate

import "encoding/binary"

// Lengths of headers without options.
const (
	ip4Header = 20
	ip6Header = 40
	udpHeader = 8
	udpNumber = 17 // in IP headers
)

// packet returns the message as the packet in which it came.
func (m message) packet() []byte {
	udp := binary.BigEndian.AppendUint16(nil, m.From.Port())
	udp = binary.BigEndian.AppendUint16(udp, m.To.Port())
	udp = binary.BigEndian.AppendUint16(udp, uint16(udpHeader+len(m.Data)))
	udp = append(append(udp, 0, 0), m.Data...)
	from, to := m.From.Addr().AsSlice(), m.To.Addr().AsSlice()
	sum := checksum(udp, checksum(append(from, to...), uint32(udpNumber+len(udp))))
	if sum = ^fold(sum) & 0xffff; sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(udp[6:], uint16(sum))
	if m.To.Addr().Is4() {
		return append(m.header4(len(udp)), udp...)
	}
	h := make([]byte, 8, ip6Header+len(udp))
	binary.BigEndian.PutUint32(h, 6<<28|uint32(m.TOS)<<20)
	binary.BigEndian.PutUint16(h[4:], uint16(len(udp)))
	h[6], h[7] = udpNumber, byte(m.Hops)
	return append(append(append(h, m.From.Addr().AsSlice()...), to...), udp...)
}

func (m message) header4(length int) []byte {
	h := make([]byte, 12, ip4Header+length)
	h[0], h[1] = 4<<4|ip4Header/4, byte(m.TOS)
	binary.BigEndian.PutUint16(h[2:], uint16(ip4Header+length))
	h[8], h[9] = byte(m.Hops), udpNumber
	h = append(append(h, m.From.Addr().AsSlice()...), m.To.Addr().AsSlice()...)
	binary.BigEndian.PutUint16(h[10:], uint16(^fold(checksum(h, 0))))
	return h
}

// checksum adds bytes to an Internet checksum.
func checksum(b []byte, sum uint32) uint32 {
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	return sum
}

func fold(sum uint32) uint32 {
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return sum
}
