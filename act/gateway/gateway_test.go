package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"pagurus/act/host"
	"pagurus/act/host/jail"
	"pagurus/fleet"
	"pagurus/internal/note"
	"pagurus/internal/testkit"
)

func TestMain(m *testing.M) {
	shims := maps.Clone(Shims)
	maps.Copy(shims, jail.Shims)
	if run := shims[os.Args[0]]; run != nil {
		if err := run(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

const subnet fleet.Subnet = 7

// The addresses of the test's world. The Internet has them all: also those that nobody on the real one has, to which a
// host with a default route sends packets all the same.
const (
	server   = "203.0.113.80"
	uplink   = "198.51.100.2" // the host's
	provider = "198.51.100.1"
	office   = "192.0.2.5" // in the owner's network, which has public addresses
	printer  = "192.168.7.9"
	metadata = "169.254.169.254"
	hidden   = "10.99.0.1" // nobody's network here, by the default route
)

// world is a host with a job's network, an owner's network beside it, and the Internet.
type world struct {
	t                     *testing.T
	host, internet, owner *testkit.Host
	guests                []*testkit.Host
	gates                 *Gateways
	network               fleet.Network
}

func newWorld(t *testing.T, guests int) *world {
	testkit.Leftovers(t)
	testkit.Root(t, "ip")
	w := &world{t: t, host: testkit.Namespace(t), internet: testkit.Namespace(t), owner: testkit.Namespace(t)}
	h := w.host
	w.join(h, "up0", uplink+"/24", w.internet, provider+"/24")
	w.join(h, "own0", "192.0.2.1/24", w.owner, office+"/24")
	h.Run("ip", "addr", "add", "192.168.7.1/24", "dev", "own0")
	w.owner.Run("ip", "addr", "add", printer+"/24", "dev", "eth0")
	h.Run("ip", "link", "set", "lo", "up")
	h.Run("ip", "route", "add", "default", "via", provider)
	w.internet.Run("ip", "link", "set", "lo", "up")
	for _, a := range []string{server, metadata, hidden} {
		w.internet.Run("ip", "addr", "add", a+"/32", "dev", "lo")
	}
	h.Run("ip", "link", "add", "br0", "type", "bridge")
	h.Run("ip", "link", "set", "br0", "up")
	h.Run("ip", "tuntap", "add", subnet.GatewayName(), "mode", "tap", "vnet_hdr")
	h.Run("ip", "link", "set", subnet.GatewayName(), "master", "br0", "up")
	for i := range guests {
		g := testkit.Namespace(t)
		port := subnet.TapName(i)
		h.Run("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "address", subnet.GuestMAC(i), "netns", g.Namespace)
		h.Run("ip", "link", "set", port, "master", "br0", "up")
		g.Run("ip", "addr", "add", subnet.GuestAddr(i).String()+"/24", "dev", "eth0")
		g.Run("ip", "link", "set", "eth0", "up")
		g.Run("ip", "neigh", "add", subnet.GatewayAddr().String(), "lladdr", subnet.GatewayMAC(), "dev", "eth0")
		g.Run("ip", "route", "add", "default", "via", subnet.GatewayAddr().String())
		w.guests = append(w.guests, g)
	}
	names := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(names, []byte("search lan\nnameserver "+server+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var err error
	w.gates, err = Open(Config{Run: testkit.NoExec(t), Program: testkit.Unnamed(t), UIDs: host.UIDs{First: 2_100_020_000, Last: 2_100_020_099}, Allowed: true, BytesPerSecond: 100 << 20, Resolvers: names})
	if err != nil {
		t.Fatal(err)
	}
	w.network = fleet.Network{Job: "j1", Subnet: subnet, MTU: 1350, Gateway: &fleet.Gateway{Guests: guests}}
	w.apply(w.network)
	t.Cleanup(func() { w.host.Must(w.gates.Remove) })
	return w
}

// join joins two namespaces by a pair of links.
func (w *world) join(h *testkit.Host, link, at string, other *testkit.Host, otherAt string) {
	h.Run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", other.Namespace)
	h.Run("ip", "addr", "add", at, "dev", link)
	h.Run("ip", "link", "set", link, "up")
	other.Run("ip", "addr", "add", otherAt, "dev", "eth0")
	other.Run("ip", "link", "set", "eth0", "up")
}

func (w *world) apply(networks ...fleet.Network) {
	w.t.Helper()
	w.host.Must(func() error { return w.gates.Apply(context.Background(), networks) })
}

// serve serves HTTP at an address; each answer is the address and the caller's.
func (w *world) serve(in *testkit.Host, at string) {
	w.t.Helper()
	in.Must(func() error {
		l, err := net.Listen("tcp4", at)
		if err != nil {
			return err
		}
		s := &http.Server{Handler: http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/big" {
				_, _ = io.CopyN(out, zeros{}, bigBytes)
				return
			}
			who, _, _ := net.SplitHostPort(r.RemoteAddr)
			fmt.Fprintf(out, "%s to %s", at, who)
		})}
		go func() { _ = s.Serve(l) }()
		w.t.Cleanup(func() { _ = s.Close() })
		return nil
	})
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

const bigBytes = 32 << 20

// dial connects from a guest.
func (w *world) dial(guest int, network, to string) (c net.Conn, err error) {
	w.t.Helper()
	failed := w.guests[guest].Do(func() error {
		d := net.Dialer{Timeout: 3 * time.Second}
		c, err = d.Dial(network, to)
		return nil
	})
	if failed != nil {
		w.t.Fatal(failed)
	}
	return c, err
}

// get fetches a page from a guest.
func (w *world) get(guest int, to, path string) (string, error) {
	w.t.Helper()
	c, err := w.dial(guest, "tcp4", to)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(60 * time.Second))
	fmt.Fprintf(c, "GET %s HTTP/1.0\r\n\r\n", path)
	b, err := io.ReadAll(c)
	_, body, _ := strings.Cut(string(b), "\r\n\r\n")
	return body, err
}

// TestInternet: guests reach a server on the Internet, which sees the host's address, and nothing of what is the owner's, whatever
// routes lead there.
func TestInternet(t *testing.T) {
	w := newWorld(t, 2)
	for at, in := range map[string]*testkit.Host{
		server + ":80": w.internet, metadata + ":80": w.internet, hidden + ":80": w.internet, provider + ":80": w.internet, server + ":25": w.internet,
		office + ":80": w.owner, printer + ":80": w.owner, uplink + ":80": w.host, "127.0.0.1:80": w.host, "192.168.7.1:80": w.host,
	} {
		w.serve(in, at)
	}
	for i := range w.guests {
		if body, err := w.get(i, server+":80", "/"); err != nil || body != server+":80 to "+uplink {
			t.Errorf("guest %d got %q and %v", i, body, err)
		}
	}
	began := time.Now()
	if body, err := w.get(0, server+":80", "/big"); err != nil || len(body) != bigBytes {
		t.Errorf("of %d bytes %d came, and %v", bigBytes, len(body), err)
	}
	t.Logf("%d MiB/s", int(bigBytes/time.Since(began).Seconds())>>20)
	if _, err := w.dial(0, "tcp4", server+":81"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a port that nobody has: %v, want the refusal of the other side", err)
	}
	// What a host itself reaches and guests must not.
	for _, at := range []string{metadata, hidden, provider, office, printer, uplink, "192.168.7.1", subnet.GatewayAddr().String(), server + ":25"} {
		if !strings.Contains(at, ":") {
			at += ":80"
		}
		if c, err := w.dial(0, "tcp4", at); err == nil {
			t.Errorf("a guest reaches %s", at)
			_ = c.Close()
		}
	}
}

// TestDatagrams: UDP goes out and comes back, the names of the Internet are answered, and those of the owner's network are not.
func TestDatagrams(t *testing.T) {
	w := newWorld(t, 1)
	echo(t, w.internet, server+":9")
	heard := echo(t, w.owner, printer+":9")
	alsoHeard := echo(t, w.internet, metadata+":9")
	if got := w.say(server+":9", "hello"); got != "hello" {
		t.Errorf("the answer is %q", got)
	}
	for _, at := range []string{printer + ":9", metadata + ":9", office + ":9", "224.0.0.251:9"} {
		if got := w.say(at, "hello"); got != "" {
			t.Errorf("%s answers %q", at, got)
		}
	}
	if heard() != 0 || alsoHeard() != 0 {
		t.Error("a guest's datagrams reach what is private")
	}
	resolver(t, w.internet, server+":53", map[string]string{"www.example.org.": server, "evil.example.org.": printer, "printer.lan.": server})
	for name, want := range map[string]string{"www.example.org.": server, "evil.example.org.": "RCodeNameError", "printer.lan.": "RCodeNameError"} {
		for _, network := range []string{"udp", "tcp"} {
			if got := w.lookUp(network, name); got != want {
				t.Errorf("by %s %s is %s, want %s", network, name, got, want)
			}
		}
	}
}

// say sends a datagram from guest 0 and returns the answer; empty: none came.
func (w *world) say(to, text string) string {
	c, err := w.dial(0, "udp4", to)
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	b := make([]byte, 100)
	_, _ = c.Write([]byte(text))
	_ = c.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
	n, _ := c.Read(b)
	return string(b[:n])
}

// echo answers datagrams; the result says how many came.
func echo(t *testing.T, in *testkit.Host, at string) func() int {
	var heard int
	done := make(chan struct{})
	var l net.PacketConn
	in.Must(func() (err error) {
		l, err = net.ListenPacket("udp4", at)
		return err
	})
	go func() {
		defer close(done)
		b := make([]byte, 2000)
		for {
			n, from, err := l.ReadFrom(b)
			if err != nil {
				return
			}
			heard++
			_, _ = l.WriteTo(b[:n], from)
		}
	}()
	t.Cleanup(func() { _ = l.Close() })
	return func() int { _ = l.Close(); <-done; return heard }
}

// resolver answers questions for addresses.
func resolver(t *testing.T, in *testkit.Host, at string, names map[string]string) {
	answer := func(question []byte) []byte {
		var m dnsmessage.Message
		if m.Unpack(question) != nil {
			return nil
		}
		m.Response = true
		if a, known := names[m.Questions[0].Name.String()]; known {
			m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Class: dnsmessage.ClassINET, TTL: 60},
				Body: &dnsmessage.AResource{A: netip.MustParseAddr(a).As4()}}}
		}
		b, _ := m.Pack()
		return b
	}
	in.Must(func() error {
		l, err := net.ListenPacket("udp4", at)
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			b := make([]byte, 2000)
			for {
				n, from, err := l.ReadFrom(b)
				if err != nil {
					return
				}
				_, _ = l.WriteTo(answer(b[:n]), from)
			}
		}()
		s, err := net.Listen("tcp4", at)
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = s.Close() })
		go func() {
			for {
				c, err := s.Accept()
				if err != nil {
					return
				}
				if q, err := readMessage(c); err == nil {
					_ = writeMessage(c, answer(q))
				}
				_ = c.Close()
			}
		}()
		return nil
	})
}

// lookUp asks the gateway for a name's address.
func (w *world) lookUp(network, name string) string {
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 77, RecursionDesired: true}, Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}}
	b, err := m.Pack()
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := w.dial(0, network+"4", netip.AddrPortFrom(subnet.GatewayAddr(), namesPort).String())
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	var out []byte
	if network == "tcp" {
		if err = writeMessage(c, b); err == nil {
			out, err = readMessage(c)
		}
	} else if _, err = c.Write(b); err == nil {
		out = make([]byte, 2000)
		var n int
		n, err = c.Read(out)
		out = out[:n]
	}
	if err == nil {
		err = m.Unpack(out)
	}
	switch {
	case err != nil:
		return err.Error()
	case m.RCode != 0:
		return m.RCode.GoString()[len("dnsmessage."):]
	case len(m.Answers) != 1:
		return fmt.Sprint(len(m.Answers), " answers")
	}
	return netip.AddrFrom4(m.Answers[0].Body.(*dnsmessage.AResource).A).String()
}

// TestGatewayFull: a guest that opens all the connections it gets is refused more, and takes none from the job's other guests; when it closes
// them they are free.
func TestGatewayFull(t *testing.T) {
	w := newWorld(t, 2)
	w.serve(w.internet, server+":80")
	var held []net.Conn
	for len(held) < eachTCP+1 {
		c, err := w.dial(0, "tcp4", server+":80")
		if errors.Is(err, syscall.ECONNREFUSED) {
			if len(held) < newAtOnce/2 {
				t.Fatalf("%d connections are all that a guest gets", len(held))
			}
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	if len(held) > eachTCP {
		t.Errorf("a guest has %d connections, more than %d", len(held), eachTCP)
	}
	t.Logf("%d connections", len(held))
	testkit.Until(t, 10*time.Second, "another guest reaches the server", func() bool {
		body, err := w.get(1, server+":80", "/")
		return err == nil && body != ""
	})
	for _, c := range held {
		_ = c.Close()
	}
	testkit.Until(t, 10*time.Second, "places are free again", func() bool {
		body, err := w.get(0, server+":80", "/")
		return err == nil && body != ""
	})
}

// TestGatewayLasts: a gateway outlives who started it, is started again when it has died, has nothing of the host that it does not need,
// and ends when it is not wanted.
func TestGatewayLasts(t *testing.T) {
	w := newWorld(t, 1)
	w.serve(w.internet, server+":80")
	c, err := w.dial(0, "tcp4", server+":80")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	first := w.process()
	again, err := Open(w.gates.config) // as the next agent
	if err != nil {
		t.Fatal(err)
	}
	w.gates = again
	w.apply(w.network)
	if w.process() != first {
		t.Error("the next agent started another gateway")
	}
	fmt.Fprintf(c, "GET / HTTP/1.0\r\n\r\n")
	if b, err := io.ReadAll(c); err != nil || !strings.Contains(string(b), uplink) {
		t.Errorf("the connection got %q and %v", b, err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", first.PID))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Uid:\t2100020099\t", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("the gateway's status lacks %q:\n%s", want, status)
		}
	}
	held, err := w.dial(0, "tcp4", server+":80")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := first.End(); err != nil {
		t.Fatal(err)
	}
	w.apply(w.network)
	// Who has a connection of the one before learns that it is over.
	_ = held.SetDeadline(time.Now().Add(10 * time.Second))
	fmt.Fprintf(held, "GET / HTTP/1.0\r\n\r\n")
	if _, err := io.ReadAll(held); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection of the gateway that died: %v, want a reset", err)
	}
	if body, err := w.get(0, server+":80", "/"); err != nil || body == "" {
		t.Errorf("after the gateway died: %q, %v", body, err)
	}
	second := w.process()
	w.apply()
	if !second.Gone() {
		t.Error("a gateway that is not wanted goes on")
	}
	if _, err := w.dial(0, "tcp4", server+":80"); err == nil {
		t.Error("without a gateway the server is reached")
	}
	w.gates.config.Allowed = false
	w.host.Must(func() error {
		if err := w.gates.Apply(context.Background(), []fleet.Network{w.network}); err == nil {
			t.Error("a host that allows nothing leads a job")
		}
		return nil
	})
}

func (w *world) process() (p host.Process) {
	if err := note.Load(filepath.Join(w.gates.folder("j1"), processFile), &p); err != nil {
		w.t.Fatal(err)
	}
	return p
}

// TestOutlet: what a host reports follows from its routes.
func TestOutlet(t *testing.T) {
	w := newWorld(t, 1)
	says := func() (o *fleet.Outlet) {
		w.host.Must(func() error { o = w.gates.Outlet(); return nil })
		return o
	}
	if o := says(); !o.Allowed || o.Trouble != "" || o.Jobs != 1 {
		t.Errorf("with a default route: %+v", o)
	}
	w.host.Run("ip", "route", "del", "default")
	if o := says(); o.Trouble == "" {
		t.Errorf("without: %+v", o)
	}
}
