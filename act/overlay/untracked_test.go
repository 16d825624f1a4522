package overlay

import (
	"encoding/binary"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"pagurus/fleet"
)

// followConnections has a host's firewall follow connections, also on bridges, as Docker and firewalld leave it.
func (s *station) followConnections() {
	s.t.Helper()
	s.Must(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		t := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "owners"})
		for name, hook := range map[string]*nftables.ChainHook{"in": nftables.ChainHookPrerouting, "out": nftables.ChainHookOutput} {
			chain := c.AddChain(&nftables.Chain{Name: name, Table: t, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityFilter})
			c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: []expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: 1}}})
		}
		return c.Flush()
	})
	s.Run("sh", "-ec", "echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables")
}

// tracked is how many connections a host's table has.
func (s *station) tracked() int {
	s.t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(s.Run("cat", "/proc/sys/net/netfilter/nf_conntrack_count")))
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

const (
	floodPorts = 3000
	fewTracked = 50
)

// flood sends datagrams from a port each.
func (p *plug) flood(to *plug) {
	p.t.Helper()
	for i := range floodPorts {
		d := udp(p.addr, to.addr, 9999, "x")
		binary.BigEndian.PutUint16(d[20:], uint16(1024+i))
		p.send(to.mac.String(), 0x0800, d)
	}
	time.Sleep(noFrameFor)
}

// TestRogueGuestFillsNoTable: a guest that has a connection from each port takes no place in the host's table of connections, neither for
// frames to a guest beside it nor for the tunnel's packets to another host. Without our rules it would, which shows that the test attacks.
func TestRogueGuestFillsNoTable(t *testing.T) { eachKind(t, rogueGuestFillsNoTable) }

func rogueGuestFillsNoTable(t *testing.T, as func(fleet.Network) fleet.Network) {
	hosts := stations(t, "a", "b")
	at := func(host string) fleet.Network { return as(network("j1", 1, host, "a", "a", "b")) }
	for i, name := range []string{"a", "b"} {
		hosts[i].followConnections()
		hosts[i].apply(at(name))
	}
	rogue, near, far := hosts[0].use(at("a"), 0), hosts[0].use(at("a"), 1), hosts[1].use(at("b"), 2)
	rogue.flood(near)
	if n := hosts[0].tracked(); n > fewTracked {
		t.Errorf("with a flood on one host, it tracks %d connections", n)
	}
	rogue.flood(far)
	for _, s := range hosts {
		if n := s.tracked(); n > fewTracked {
			t.Errorf("with a flood between hosts, %s tracks %d connections", s.Addr, n)
		}
	}
	far.hear(experimental, noFrameFor) // its port's queue is full of the flood
	near.say(far.mac.String(), "still here")
	far.mustHear("still here")
	a := hosts[0]
	a.Must(a.kernel.track)
	rogue.flood(near)
	beside := a.tracked()
	rogue.flood(far)
	t.Logf("without rules: %d connections by a flood on one host, %d with one between hosts", beside, a.tracked())
	if beside < floodPorts/2 || a.tracked() < beside+fewTracked {
		t.Errorf("without rules a flood on one host is %d connections, with one between hosts %d: this test attacks nothing", beside, a.tracked())
	}
	a.apply(at("a")) // as when the firewall's owner has flushed all rules
	before := a.tracked()
	rogue.flood(near)
	if n := a.tracked(); n > before+fewTracked {
		t.Errorf("rules that were flushed are not made again: %d more connections", n-before)
	}
	a.Must(func() error { return a.Clear(t.Context()) })
	a.Must(func() error {
		if found, err := a.kernel.rules.ListTableOfFamily(untrackedTable, nftables.TableFamilyINet); err == nil {
			t.Errorf("after Clear there is still the table %s", found.Name)
		}
		return nil
	})
}

// TestUntracked: where nothing is tracked, no rule is made; making rules again changes nothing.
func TestUntracked(t *testing.T) {
	s := stations(t, "a")[0]
	old := tracking
	t.Cleanup(func() { tracking = old })
	tables := func() int {
		all, err := s.kernel.rules.ListTables()
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	tracking = "/proc/none"
	s.apply(network("j1", 1, "a", "a", "b"))
	if n := tables(); n != 0 {
		t.Errorf("there are %d tables", n)
	}
	tracking = old
	for range 2 {
		s.apply(network("j1", 1, "a", "a", "b"))
		if n := tables(); n != 1 {
			t.Errorf("there are %d tables, want 1", n)
		}
	}
}
