package overlay

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// All jobs' frames share one link to other hosts, and the kernel's VXLAN takes a frame for any network from whoever
// sends one. The gate is two filters on that link. WireGuard vouches for the source address of
// each packet, so the one for what comes in passes VXLAN only from the hosts of the network that the packet names.
// The one for what goes out passes VXLAN only if one of this host's tunnels has made it: a process with a UDP socket
// cannot send frames in this host's name.
//
// Both pass TCP, ICMPv6 and other UDP, and nothing else: an extension header could hide a UDP header from them, and
// the tunnels' MTU needs no fragments. What is in the gate's table is replaced as a whole, so no frame meets half of it.
//
// Several packets may come as one (generic receive offload), and the kernel cuts it up only for VXLAN's socket. The kernel's
// own WireGuard joins VXLAN's packets only if they name one network and have frames of one TCP stream. wireguard-go
// joins what one sender sends from one port to another, so by a TUN link the gate looks into each piece.

// Gate is what the filter for incoming frames lets in: the UDP port of tunnels, and for each host the
// networks that it may send to.
type Gate struct {
	Port uint16
	From map[netip.Addr][]int // VNIs
}

// String is the gate's form in a State.
func (g Gate) String() string {
	words := []string{strconv.Itoa(int(g.Port))}
	hosts := make([]netip.Addr, 0, len(g.From))
	for host := range g.From {
		hosts = append(hosts, host)
	}
	slices.SortFunc(hosts, netip.Addr.Compare)
	for _, host := range hosts {
		numbers := slices.Clone(g.From[host])
		slices.Sort(numbers)
		var all []string
		for _, vni := range slices.Compact(numbers) {
			all = append(all, strconv.FormatInt(int64(vni), 16))
		}
		words = append(words, host.String()+"/"+strings.Join(all, ","))
	}
	return strings.Join(words, " ")
}

// parseGate reads the text of String.
func parseGate(text string) (g Gate, err error) {
	words := strings.Fields(text)
	if len(words) == 0 {
		return g, errors.New("a gate without a port")
	}
	port, err := strconv.ParseUint(words[0], 10, 16)
	if err != nil {
		return g, err
	}
	g = Gate{Port: uint16(port), From: map[netip.Addr][]int{}}
	for _, word := range words[1:] {
		host, numbers, _ := strings.Cut(word, "/")
		at, err := netip.ParseAddr(host)
		if err != nil {
			return g, err
		}
		for _, number := range strings.Split(numbers, ",") {
			vni, err := strconv.ParseInt(number, 16, 32)
			if err != nil {
				return g, err
			}
			g.From[at] = append(g.From[at], int(vni))
		}
	}
	return g, nil
}

// wantGate is the gate of these networks. Without a link of their own, frames come by any, and from whatever address
// their sender gives: there is none.
func (s State) wantGate(c Config, networks []fleet.Network) {
	lower := c.Address.Zone()
	if lower == "" {
		return
	}
	g := Gate{Port: c.Port, From: map[netip.Addr][]int{}}
	for _, n := range networks {
		if n.VLAN != 0 {
			continue
		}
		hosts := slices.Clone(n.Peers)
		for _, e := range n.Endpoints { // an older controller says no more
			hosts = append(hosts, e.VTEP, e.Next)
		}
		for _, host := range hosts {
			if at, ok := c.reached(host); ok && at != c.Address.WithZone("") {
				g.From[at] = append(g.From[at], n.Subnet.VNI())
			}
		}
	}
	s.GateIn[Key{Link: lower}] = g.String()
	s.GateOut[Key{Link: lower}] = strconv.Itoa(int(c.Port))
}

// What a gate reads of a packet: an IPv6 header, and the UDP and VXLAN headers behind it.
const (
	ipv6Version = 6
	nextAt      = 6 // which protocol follows
	sourceAt    = 8
	portAt      = 42 // UDP's destination
	readBytes   = 44
	vniAt       = 52
	vniBytes    = 3
	headBytes   = 48 // up to UDP's payload
	// fromNetwork is BPF_HDR_START_NET: offsets count from the network header, with or without an Ethernet header before it.
	fromNetwork = 1
)

// tagAt is where a program finds tc_index, which only filters of the kernel write, no process, and which no firewall reads.
const (
	tagAt = 44
	tag   = 0x7067 // of frames from this host's tunnels
)

const (
	passes = "passes"
	drops  = "drops"
	// onStack is where the packet's bytes are, from the top of the stack.
	onStack = -48
)

// portInOrder is a UDP port as a program sees it that loads two bytes of a packet.
func portInOrder(port uint16) int32 {
	return int32(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, port)))
}

// loadBytes copies some of the packet's bytes to the stack, and drops a packet that is too short.
func loadBytes(at, to, count int32) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, at), asm.Mov.Reg(asm.R3, asm.R10), asm.Add.Imm(asm.R3, to),
		asm.Mov.Imm(asm.R4, count), asm.Mov.Imm(asm.R5, fromNetwork), asm.FnSkbLoadBytesRelative.Call(), asm.JNE.Imm(asm.R0, 0, drops),
	}
}

// tunnelled goes on for UDP to a port. What cannot be that passes, and what may hide it is dropped.
func tunnelled(port uint16) asm.Instructions {
	code := append(asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}, loadBytes(0, onStack, readBytes)...)
	return append(code,
		asm.LoadMem(asm.R0, asm.R10, onStack, asm.Byte), asm.RSh.Imm(asm.R0, 4), asm.JNE.Imm(asm.R0, ipv6Version, drops),
		asm.LoadMem(asm.R0, asm.R10, onStack+nextAt, asm.Byte),
		asm.JEq.Imm(asm.R0, unix.IPPROTO_TCP, passes), asm.JEq.Imm(asm.R0, unix.IPPROTO_ICMPV6, passes), asm.JNE.Imm(asm.R0, unix.IPPROTO_UDP, drops),
		asm.LoadMem(asm.R0, asm.R10, onStack+portAt, asm.Half), asm.JNE.Imm(asm.R0, portInOrder(port), passes),
	)
}

// verdicts end a gate's program.
func verdicts() asm.Instructions {
	return asm.Instructions{
		asm.Mov.Imm(asm.R0, carryOn).WithSymbol(passes), asm.Return(),
		asm.Mov.Imm(asm.R0, shot).WithSymbol(drops), asm.Return(),
	}
}

// keyBytes is the size of the table's key: a source's address, and the three bytes of a VNI with the one after them, which is 0.
const keyBytes = 20

// Where a program finds, in what the kernel shows it of a packet (struct __sk_buff), the packet's length and, if it is
// several in one, that of the pieces.
const (
	lengthAt = 0
	pieceAt  = 176
	// mostPieces is how many packets wireguard-go writes at once.
	mostPieces = 128
)

// letIn passes frames whose source and network are in a table.
func letIn(port uint16, table *ebpf.Map, joined bool) asm.Instructions {
	const key, number = onStack + sourceAt, onStack + sourceAt + 16 // the VNI replaces the packet's own address
	look := asm.Instructions{
		asm.StoreImm(asm.R10, number+vniBytes, 0, asm.Byte),
		asm.LoadMapPtr(asm.R1, table.FD()), asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, key), asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, drops),
	}
	if !joined {
		return slices.Concat(tunnelled(port), loadBytes(vniAt, number, vniBytes), look, asm.Instructions{asm.Ja.Label(passes)}, verdicts())
	}
	// R7: where the VNI of a piece is, R8: how long a piece is, R9: how many more there may be. Behind a TUN link there
	// is no header before the network's, and the packet's bytes may be in several parts.
	const piece = "piece"
	return slices.Concat(tunnelled(port), asm.Instructions{
		asm.Mov.Imm(asm.R7, vniAt), asm.LoadMem(asm.R8, asm.R6, pieceAt, asm.Word), asm.Mov.Imm(asm.R9, mostPieces),
		asm.Mov.Reg(asm.R1, asm.R6).WithSymbol(piece), asm.Mov.Reg(asm.R2, asm.R7), asm.Mov.Reg(asm.R3, asm.R10), asm.Add.Imm(asm.R3, number),
		asm.Mov.Imm(asm.R4, vniBytes), asm.FnSkbLoadBytes.Call(), asm.JNE.Imm(asm.R0, 0, drops),
	}, look, asm.Instructions{
		asm.JEq.Imm(asm.R8, 0, passes), asm.Add.Reg(asm.R7, asm.R8),
		// Of the last piece there is more than the VNI. What is behind it is none.
		asm.LoadMem(asm.R0, asm.R6, lengthAt, asm.Word), asm.Add.Imm(asm.R0, vniAt-headBytes), asm.JGE.Reg(asm.R7, asm.R0, passes),
		asm.Sub.Imm(asm.R9, 1), asm.JNE.Imm(asm.R9, 0, piece), asm.Ja.Label(drops),
	}, verdicts())
}

// letOut passes frames that a tunnel has tagged.
func letOut(port uint16) asm.Instructions {
	code := append(tunnelled(port), asm.LoadMem(asm.R0, asm.R6, tagAt, asm.Word), asm.JNE.Imm(asm.R0, tag, drops), asm.Ja.Label(passes))
	return append(code, verdicts()...)
}

// tagAll tags each frame that a tunnel gets. The tag stays on it while VXLAN packs it.
func tagAll() asm.Instructions {
	return asm.Instructions{
		asm.Mov.Imm(asm.R2, tag), asm.StoreMem(asm.R1, tagAt, asm.R2, asm.Word), asm.Mov.Imm(asm.R0, carryOn), asm.Return(),
	}
}

// tagger is the filter by which a tunnel tags its frames.
func tagger(tunnel string) filter {
	return filter{link: tunnel, parent: netlink.HANDLE_MIN_EGRESS, handle: 1, name: "tag", code: tagAll()}
}

// The names of the gate's filters, before the port.
const (
	inName  = "let in"
	outName = "let out"
)

// gateHook makes a place for the gate's filters. The link is another package's, which knows nothing of it.
func (k *kernel) gateHook(lower string) error {
	if err := k.findIndex(lower); err != nil {
		return err
	}
	return k.setHook(lower, true)
}

func (k *kernel) setGateIn(c Change) error {
	g, err := parseGate(c.Value)
	if err != nil {
		return err
	}
	if err := k.gateHook(c.Key.Link); err != nil {
		return err
	}
	entries := 0
	for _, numbers := range g.From {
		entries += len(numbers)
	}
	table, err := ebpf.NewMap(&ebpf.MapSpec{Name: "pg_gate", Type: ebpf.Hash, KeySize: keyBytes, ValueSize: 1, MaxEntries: uint32(max(entries, 1))})
	if err != nil {
		return fmt.Errorf("making a table in the kernel (the agent needs to be root): %w", err)
	}
	defer table.Close() // the program keeps it
	for host, numbers := range g.From {
		for _, vni := range numbers {
			if err := table.Put(gateKey(host, vni), []byte{1}); err != nil {
				return fmt.Errorf("filling a table in the kernel: %w", err)
			}
		}
	}
	return k.addFilter(filter{
		link: c.Key.Link, parent: netlink.HANDLE_MIN_INGRESS, handle: 1, name: fmt.Sprintf("%s %d", inName, g.Port), code: letIn(g.Port, table, k.joins(c.Key.Link)),
	})
}

// joins reports whether what comes by a link may be packets of several networks in one. A link of another kind with the same
// name is another link, which has no gate yet.
func (k *kernel) joins(link string) bool {
	l, err := k.traffic.LinkByIndex(k.index[link])
	return err != nil || l.Type() == "tun" || l.Type() == "tuntap"
}

func gateKey(host netip.Addr, vni int) []byte {
	at := host.As16()
	return binary.BigEndian.AppendUint32(at[:], uint32(vni)<<8)
}

func (k *kernel) setGateOut(c Change) error {
	port, err := strconv.ParseUint(c.Value, 10, 16)
	if err != nil {
		return err
	}
	if err := k.gateHook(c.Key.Link); err != nil {
		return err
	}
	return k.addFilter(filter{
		link: c.Key.Link, parent: netlink.HANDLE_MIN_EGRESS, handle: 1, name: outName + " " + c.Value, code: letOut(uint16(port)),
	})
}

// readGate reads the gate of a link.
func (k *kernel) readGate(s State, lower string) error {
	in, err := k.programs(lower, netlink.HANDLE_MIN_INGRESS)
	if err != nil {
		return err
	}
	for _, f := range in {
		if port, ours := strings.CutPrefix(f.Name, inName+" "); ours {
			if s.GateIn[Key{Link: lower}], err = readTable(f.Id, port); err != nil {
				return err
			}
		}
	}
	out, err := k.programs(lower, netlink.HANDLE_MIN_EGRESS)
	for _, f := range out {
		if port, ours := strings.CutPrefix(f.Name, outName+" "); ours {
			s.GateOut[Key{Link: lower}] = port
		}
	}
	return err
}

// programs are the programs on one side of a link; none if the link is gone.
func (k *kernel) programs(link string, side uint32) (all []*netlink.BpfFilter, err error) {
	at := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: k.index[link]}}
	filters, err := whole(func() ([]netlink.Filter, error) { return k.traffic.FilterList(at, side) })
	for _, f := range filters {
		if b, ok := f.(*netlink.BpfFilter); ok {
			all = append(all, b)
		}
	}
	return all, ignoring(err, unix.ENODEV)
}

// readTable reads what a gate's program lets in.
func readTable(program int, port string) (string, error) {
	p, err := ebpf.NewProgramFromID(ebpf.ProgramID(program))
	if err != nil {
		return "", err
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return "", err
	}
	ids, _ := info.MapIDs()
	if len(ids) != 1 {
		return "", nil // another's, which has its name
	}
	table, err := ebpf.NewMapFromID(ids[0])
	if err != nil {
		return "", err
	}
	defer table.Close()
	number, err := strconv.ParseUint(port, 10, 16)
	g := Gate{Port: uint16(number), From: map[netip.Addr][]int{}}
	var key [keyBytes]byte
	var value [1]byte
	entries := table.Iterate()
	for entries.Next(&key, &value) {
		at := netip.AddrFrom16([16]byte(key[:16]))
		g.From[at] = append(g.From[at], int(binary.BigEndian.Uint32(key[16:])>>8))
	}
	return g.String(), cmp.Or(err, entries.Err())
}
