package port

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"pagurus/act/guestnet"
	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// An attached container reaches the others of its job by address, without broadcasts. Attaching
// twice has no further effect. Another container can have the port after the first has given it
// back.
func TestTakeAndGive(t *testing.T) {
	testkit.Leftovers(t)
	hosts := stations(t, 2)
	l := layout{at: []int{0, 0, 1}}
	l.apply(hosts)
	first := hosts[0].attachContainer(0)
	before, _ := hosts[0].Read()
	text := describeNetwork(first)
	t.Log(text)
	for _, must := range []string{mac(0), "mtu 1450", leastTimeout, "10.128.7.1/24", "10.128.7.0/24 dev eth0", "10.128.7.254 dev eth0 lladdr " + subnet.ShareMAC(),
		"10.128.7.4 dev eth0 lladdr " + mac(3), "127.0.0.1/8"} {
		if !strings.Contains(text, must) {
			t.Errorf("the container's network is\n%s\nwithout %s", text, must)
		}
	}
	if strings.Contains(text, "fe80:") || strings.Contains(text, "10.128.7.1 dev") {
		t.Errorf("the container's network is\n%s", text)
	}
	back := func() (is bool) {
		hosts[0].Must(func() (err error) { is, err = port(0).Back(); return err })
		return is
	}
	if back() {
		t.Error("what is in a container is at the host")
	}
	hosts[0].Must(func() error { return port(0).Attach(first.File()) })
	if again := describeNetwork(first); again != text {
		t.Errorf("taken twice it is\n%s\ninstead of\n%s", again, text)
	}
	l.apply(hosts)
	if after, _ := hosts[0].Read(); after.String() != before.String() {
		t.Errorf("the host's network was\n%s\nand is\n%s", before, after)
	}
	others := []*testkit.Host{hosts[0].attachContainer(1), hosts[1].attachContainer(2)}
	for i, other := range others {
		mustTalk(t, first, other, i+1)
	}

	second := testkit.Namespace(t)
	if err := hosts[0].Do(func() error { return port(0).Attach(second.File()) }); err == nil || !strings.Contains(err.Error(), "pgc700007.0") {
		t.Errorf("the port was taken from another container: %v", err)
	}
	for range 2 {
		hosts[0].Must(func() error { return port(0).Give(first.File()) })
	}
	if !back() {
		t.Error("what was given back is not at the host")
	}
	if left := first.Run("ip", "-br", "link"); strings.Contains(left, inside) {
		t.Errorf("the container still has\n%s", left)
	}
	hosts[0].Must(func() error { return port(0).Attach(second.File()) })
	if now := describeNetwork(second); now != text {
		t.Errorf("the next container's network is\n%s\ninstead of\n%s", now, text)
	}
	for i, other := range others {
		mustTalk(t, second, other, i+1)
	}
	if after, _ := hosts[0].Read(); strings.Contains(after.String(), "pgc700007.0") {
		t.Errorf("the host still has the container's end:\n%s", after)
	}
}

// describeNetwork describes a container's network.
func describeNetwork(in *testkit.Host) string {
	return in.Run("sh", "-ec", `cat /proc/sys/net/ipv4/tcp_rto_min_us /proc/sys/net/ipv6/conf/eth0/disable_ipv6
		ip -br link show eth0; ip -o link show eth0 | grep -o 'mtu [0-9]*'
		ip -br addr show; ip neigh show nud permanent | sort; ip route show`)
}

// A container's network is the same as the network that the guest agent makes in a virtual
// machine. A guest agent that does so in a container changes nothing.
func TestTakeIsJoining(t *testing.T) {
	testkit.Leftovers(t)
	s := stations(t, 1)[0]
	layout{at: []int{0}}.apply([]*station{s})
	in := s.attachContainer(0)
	taken := describeNetwork(in)
	join := func() {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		// With the /sys of the container.
		if out := s.Run("ip", "netns", "exec", in.Namespace, "env", actor+"=join", self); !strings.Contains(out, "done") {
			t.Fatal(out)
		}
	}
	join()
	if joined := describeNetwork(in); joined != taken {
		t.Errorf("joined it is\n%s\ninstead of\n%s", joined, taken)
	}
	s.Must(func() error { return port(0).Give(in.File()) })
	s.Run("ip", "link", "set", subnet.PortPeerName(0), "netns", in.Namespace, "name", inside)
	in.Run("ip", "link", "set", inside, "mtu", "1400")
	in.Run("sh", "-c", "echo 200000 > /proc/sys/net/ipv4/tcp_rto_min_us")
	join()
	if joined := describeNetwork(in); joined != taken {
		t.Errorf("only joined it is\n%s\ninstead of\n%s", joined, taken)
	}
}

// Another eth0 in a container is not touched.
func TestAttachLeavesOthersLinks(t *testing.T) {
	testkit.Leftovers(t)
	s := stations(t, 1)[0]
	layout{at: []int{0}}.apply([]*station{s})
	in := testkit.Namespace(t)
	in.Run("ip", "link", "add", inside, "type", "veth", "peer", "name", "x")
	before := in.Run("ip", "-o", "link")
	for what, do := range map[string]func(*os.File) error{"take": port(0).Attach, "give": port(0).Give} {
		if err := s.Do(func() error { return do(in.File()) }); err == nil || !strings.Contains(err.Error(), "another eth0") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if after := in.Run("ip", "-o", "link"); after != before {
		t.Errorf("the container's links were\n%s\nand are\n%s", before, after)
	}
	if err := s.Do(func() error { return port(3).Attach(testkit.Namespace(t).File()) }); err == nil {
		t.Error("a port that is not there was taken")
	}
}

// mustTalk makes a container call another by TCP, and get an answer.
func mustTalk(t *testing.T, from, to *testkit.Host, index int) {
	t.Helper()
	addr := net.JoinHostPort(subnet.GuestAddr(index).String(), "7777")
	var listener net.Listener
	to.Must(func() (err error) {
		listener, err = net.Listen("tcp4", addr)
		return err
	})
	defer listener.Close()
	go func() {
		if c, err := listener.Accept(); err == nil {
			fmt.Fprintln(c, "hello")
			c.Close()
		}
	}()
	from.Must(func() error {
		began := time.Now()
		c, err := net.DialTimeout("tcp4", addr, surely)
		if err != nil {
			return err
		}
		defer c.Close()
		t.Logf("connected to %s after %v", addr, time.Since(began))
		var word string
		if _, err := fmt.Fscan(c, &word); err != nil || word != "hello" {
			return fmt.Errorf("heard %q: %v", word, err)
		}
		return nil
	})
}

// While cut, a container receives and cannot send, to its host or another. That also holds after
// the process that cut it has ended.
func TestCutAndMend(t *testing.T) {
	testkit.Leftovers(t)
	hosts := stations(t, 2)
	layout{at: []int{0, 0, 1}}.apply(hosts)
	cards := []*card{newCard(t, hosts[0].attachContainer(0)), newCard(t, hosts[0].attachContainer(1)), newCard(t, hosts[1].attachContainer(2))}
	heard := func(stage string, yes bool) {
		t.Helper()
		for i := 1; i < 3; i++ {
			if cards[0].say(mac(i), stage); yes {
				cards[i].mustHear(stage, stage)
			} else {
				cards[i].mustNotHear(stage)
			}
			cards[i].say(mac(0), stage)
			cards[0].mustHear(stage, stage)
		}
	}
	heard("before", true)
	for range 2 {
		hosts[0].cut(0)
		heard("cut", false)
	}
	layout{at: []int{0, 0, 1}}.apply(hosts)
	heard("applied", false)
	for range 2 {
		hosts[0].mend(0)
		heard("mended", true)
	}
	byAnother(t, hosts[0], "cut", "done")
	heard("cut by another process", false)
	hosts[0].mend(0)
	heard("mended again", true)

	for what, do := range map[string]func() error{"mend": port(3).Mend, "free": port(3).Free} {
		if err := hosts[0].Do(do); err != nil {
			t.Errorf("%s, where there is no port: %v", what, err)
		}
	}
	if err := hosts[0].Do(port(3).Cut); err == nil {
		t.Error("a port that is not there was cut")
	}
}

// actor is set in the environment of this program when it is to do one thing and
// then to wait to be killed.
const actor = "ATTACH_TEST_ACTOR"

func TestMain(m *testing.M) {
	var err error
	switch os.Getenv(actor) {
	case "cut":
		err = port(0).Cut()
	case "hold":
		_, err = port(0).QueueFrames()
	case "join":
		setup := fleet.Setup{Addr: subnet.GuestAddr(0), Prefix: fleet.SubnetPrefixBits, MAC: mac(0), MTU: fleet.NetworkMTU, Share: subnet.ShareAddr()}
		for i := range port(0).Guests {
			setup.Peers = append(setup.Peers, fleet.Peer{Addr: subnet.GuestAddr(i), MAC: mac(i)})
		}
		if err = guestnet.Join(setup); err == nil {
			fmt.Println("done")
			os.Exit(0)
		}
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("done")
	time.Sleep(time.Hour)
}

// byAnother makes another process, which is then killed, do something to port 0.
func byAnother(t *testing.T, s *station, what, says string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := s.Command(context.Background(), self)
	c.Env = append(os.Environ(), actor+"="+what)
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 1000)
	n, _ := out.Read(line)
	if !strings.Contains(string(line[:n]), says) {
		t.Errorf("%s by another process: %q", what, line[:n])
	}
	c.Process.Kill()
	c.Wait()
}
