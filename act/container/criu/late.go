package criu

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"path/filepath"

	skinet "github.com/checkpoint-restore/go-criu/v8/crit/images/sk-inet"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// fileInternet is the field of an entry of files.img with a socket of IPv4 or IPv6.
const fileInternet = 4

// connected is the state of such a socket, of UDP also (TCP_ESTABLISHED).
const connected = 1

// NameLate changes a dump's images so that a socket of IPv6 that has got its address by
// connecting, or from a listener for all addresses, gets it by connecting again. CRIU would
// bind it to the address, whereby the kernel sets IPV6_V6ONLY, which nobody can take from
// a bound socket. Containers have one address of IPv6, that of the loopback link.
func NameLate(images string) error {
	if err := rewrite(filepath.Join(images, "files.img"), namedLate); err != nil {
		return fmt.Errorf("change the addresses of sockets of IPv6 in the images: %w", err)
	}
	return nil
}

// namedLate returns an entry of files.img, without the address of such a socket.
func namedLate(entry []byte) (out []byte, err error) {
	err = fields(entry, func(number protowire.Number, whole, content []byte) error {
		var s skinet.InetSkEntry
		if number != fileInternet {
			out = append(out, whole...)
			return nil
		}
		if err := proto.Unmarshal(content, &s); err != nil {
			return err
		}
		if s.GetFamily() == unix.AF_INET6 && s.GetState() == connected && !s.GetV6Only() && isLoopback(s.GetSrcAddr()) {
			s.SrcAddr = make([]uint32, len(s.SrcAddr))
			if content, err = proto.Marshal(&s); err != nil {
				return err
			}
		}
		out = protowire.AppendBytes(protowire.AppendTag(out, number, protowire.BytesType), content)
		return nil
	})
	return out, err
}

// isLoopback reports whether an image's four words are the address ::1.
func isLoopback(words []uint32) bool {
	var text []byte
	for _, w := range words {
		text = binary.NativeEndian.AppendUint32(text, w)
	}
	at, ok := netip.AddrFromSlice(text)
	return ok && at == netip.IPv6Loopback()
}
