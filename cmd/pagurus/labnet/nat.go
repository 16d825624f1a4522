package labnet

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Linux gives a host that it masquerades the port that it has, as long as no other host has it towards the same
// address. So two hosts with the same port have one or two ports outside, by whom they call. Most routers of homes give a host
// one port (RFC 4787); so here each host's WireGuard port has one of its own outside.

// coneFirst is the port outside of a site's first host.
const coneFirst = 20000

// natTable has all rules of a router.
const natTable = "pagurus"

// The places in packets' headers that rules compare.
const (
	sourceAddress = 12 // of IPv4
	addressBytes  = 4
	portBytes     = 2 // UDP's source port is first
)

// translate has this namespace translate a site's addresses, and turn away what nobody inside has called.
func translate(s Site, wireGuardPort uint16, most int) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("translating addresses: %w", err)
	}
	t := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: natTable}
	c.AddTable(t)
	c.FlushTable(t)
	post := c.AddChain(&nftables.Chain{Name: "leaves", Table: t, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	for i := 1; i <= most && s.NAT() == Cone; i++ {
		c.AddRule(&nftables.Rule{Table: t, Chain: post, Exprs: onePort(s, i, wireGuardPort)})
	}
	random := s.NAT() == Symmetric
	c.AddRule(&nftables.Rule{Table: t, Chain: post, Exprs: append(by(expr.MetaKeyOIFNAME, uplink), &expr.Masq{FullyRandom: random, Random: random})})
	for name, hook := range map[string]*nftables.ChainHook{"arrives": nftables.ChainHookInput, "enters": nftables.ChainHookForward} {
		chain := c.AddChain(&nftables.Chain{Name: name, Table: t, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityFilter})
		c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: uncalled()})
	}
	err = c.Flush()
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("this kernel cannot translate addresses (CONFIG_NFT_MASQ): use --nat %s (%w)", Routed, err)
	}
	if err != nil {
		return fmt.Errorf("translating addresses: %w", err)
	}
	return nil
}

// by matches packets of a link.
func by(key expr.MetaKey, link string) []expr.Any {
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, link)
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: name}}
}

// onePort has the WireGuard port of a site's host i leave by one port, whoever is called.
func onePort(s Site, i int, wireGuardPort uint16) []expr.Any {
	port := binaryutil.BigEndian.PutUint16(uint16(coneFirst + i))
	return append(by(expr.MetaKeyOIFNAME, uplink),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: sourceAddress, Len: addressBytes},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: s.Addr(i).AsSlice()},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_UDP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: portBytes},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(wireGuardPort)},
		&expr.Immediate{Register: 1, Data: s.Outside().AsSlice()},
		&expr.Immediate{Register: 2, Data: port},
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2, Specified: true})
}

// uncalled drops what comes from outside and belongs to nothing that was begun inside. Dropped, it leaves no state that
// would take a port from a host that calls.
func uncalled() []expr.Any {
	return append(by(expr.MetaKeyIIFNAME, uplink),
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitNEW | expr.CtStateBitINVALID), Xor: binaryutil.NativeEndian.PutUint32(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(0)},
		&expr.Verdict{Kind: expr.VerdictDrop})
}
