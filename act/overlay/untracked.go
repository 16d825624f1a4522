package overlay

import (
	"errors"
	"fmt"
	"os"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// A host's table of connections is one for all: when it is full the owner's new connections fail. Guests could fill it where the
// firewall sees frames on bridges (br_netfilter), by connections within their job, and between hosts by flows, since a tunnel's
// packets have another source port for each. So both are not tracked. It takes a table of nftables of our own, which only adds that and decides nothing. An
// owner who flushes it has the old state until the next change of a network.

// untrackedTable has all our rules.
const untrackedTable = "pagurus-untracked"

// bridgePrefix begins the names of jobs' bridges, which the firewall takes frames to come from.
const bridgePrefix = "pgb"

const (
	udpTarget = 2 // where UDP's header has the target port
	portBytes = 2
)

// tracking are files that are there while this kernel can track connections.
var tracking = "/proc/sys/net/netfilter/nf_conntrack_max"

// untrack has jobs' frames not tracked, unless that is so, or nothing is tracked here.
func (k *kernel) untrack(port uint16) error {
	if _, err := os.Stat(tracking); err != nil {
		return nil
	}
	if t, err := k.rules.ListTableOfFamily(untrackedTable, nftables.TableFamilyINet); err == nil && t != nil {
		return nil
	}
	t := k.rules.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: untrackedTable})
	tunnels := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_UDP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: udpTarget, Len: portBytes},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
		&expr.Notrack{},
	}
	arrives := k.rules.AddChain(&nftables.Chain{Name: "arrives", Table: t, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw})
	k.rules.AddRule(&nftables.Rule{Table: t, Chain: arrives, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte(bridgePrefix)}, &expr.Notrack{},
	}})
	k.rules.AddRule(&nftables.Rule{Table: t, Chain: arrives, Exprs: tunnels})
	leaves := k.rules.AddChain(&nftables.Chain{Name: "leaves", Table: t, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityRaw})
	k.rules.AddRule(&nftables.Rule{Table: t, Chain: leaves, Exprs: tunnels})
	err := k.rules.Flush()
	if lacks(err) { // doctor says what guests can do here then
		return nil
	}
	if err != nil {
		return fmt.Errorf("keeping jobs' frames out of the table of connections: %w", err)
	}
	return nil
}

// track undoes untrack.
func (k *kernel) track() error {
	if t, err := k.rules.ListTableOfFamily(untrackedTable, nftables.TableFamilyINet); err != nil || t == nil {
		return nil // there is none, or no nftables
	}
	k.rules.DelTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: untrackedTable})
	if err := k.rules.Flush(); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing the rules about the table of connections: %w", err)
	}
	return nil
}

// lacks reports whether a kernel has no nftables, or not these parts of it.
func lacks(err error) bool {
	for _, e := range []error{unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.ENOENT, unix.EAFNOSUPPORT} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
