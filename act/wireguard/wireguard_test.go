package wireguard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pagurus/act/host"
	"pagurus/fleet"
	"pagurus/internal/note"
	"pagurus/internal/testkit"
)

func TestMain(m *testing.M) {
	if run := Shims[os.Args[0]]; run != nil {
		if err := run(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// station is a host with its device.
type station struct {
	*testkit.Host
	*Device
	t      *testing.T
	number uint32
	config Config
}

func stations(t *testing.T, n int) []*station { return stationsBy(t, n, true) }

func stationsBy(t *testing.T, n int, goOnly bool) []*station {
	t.Helper()
	testkit.Leftovers(t)
	var all []*station
	for i, h := range testkit.Hosts(t, n) {
		s := &station{Host: h, t: t, number: uint32(i + 1), config: Config{Run: t.TempDir(), State: t.TempDir(), Program: "/proc/self/exe", GoOnly: goOnly}}
		s.open()
		t.Cleanup(func() {
			s.Must(s.Remove)
			s.Close()
		})
		all = append(all, s)
	}
	return all
}

func (s *station) open() {
	s.t.Helper()
	s.Must(func() (err error) {
		s.Device, err = Open(s.config)
		return err
	})
}

// peer is the station as others know it.
func (s *station) peer() fleet.WireGuardPeer {
	at := fmt.Sprintf("%s:%d", s.Addr, s.End().Port)
	return fleet.WireGuardPeer{Host: fleet.HostID(s.Namespace), Key: s.End().Key, Address: fleet.WireGuardAddr(s.number), Endpoint: at}
}

func (s *station) wanted(peers ...fleet.WireGuardPeer) fleet.WireGuard {
	return fleet.WireGuard{Address: fleet.WireGuardAddr(s.number), MTU: fleet.WireGuardMTU, Peers: peers}
}

// apply gives a station its peers. A host may begin one handshake in 20 ms with another, which is more
// often than hosts change and less often than tests do.
func (s *station) apply(peers ...fleet.WireGuardPeer) {
	s.t.Helper()
	time.Sleep(50 * time.Millisecond)
	s.Must(func() error { return s.Apply(context.Background(), s.wanted(peers...)) })
}

// reaches reports whether an answer comes from another station within a second: an echo of ICMPv6 (RFC 4443).
func (s *station) reaches(other *station) bool {
	const request, reply = 128, 129
	err := s.Do(func() error {
		link, err := net.InterfaceByName(s.Name())
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		limit := unix.NsecToTimeval((100 * time.Millisecond).Nanoseconds())
		to := &unix.SockaddrInet6{ZoneId: uint32(link.Index), Addr: fleet.WireGuardAddr(other.number).As16()}
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
			return err
		}
		heard, next := make([]byte, 1500), time.Time{}
		for end := time.Now().Add(time.Second); time.Now().Before(end); {
			if now := time.Now(); now.After(next) { // what waits for keys is lost when a peer is made again
				next = now.Add(100 * time.Millisecond)
				if err := unix.Sendto(fd, []byte{request, 0, 0, 0, 7, 7, 0, 1}, 0, to); err != nil {
					return err
				}
			}
			n, from, err := unix.Recvfrom(fd, heard, 0)
			if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				return err
			}
			if at, is := from.(*unix.SockaddrInet6); is && n == 8 && heard[0] == reply && at.Addr == to.Addr {
				return nil
			}
		}
		return errors.New("no answer")
	})
	return err == nil
}

// eachMeans runs a test with wireguard-go, and with the kernel's WireGuard where it has that.
func eachMeans(t *testing.T, test func(t *testing.T, goOnly bool)) {
	t.Run("go", func(t *testing.T) { test(t, true) })
	has := false
	testkit.Namespace(t).Must(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		has = h.LinkAdd(&netlink.Wireguard{LinkAttrs: netlink.LinkAttrs{Name: "probe"}}) == nil
		return nil
	})
	if has {
		t.Run("kernel", func(t *testing.T) { test(t, false) })
	}
}

// soon waits until another station is reached.
func (s *station) soon(other *station) {
	s.t.Helper()
	testkit.Until(s.t, 4*time.Second, s.Namespace+" reaches "+other.Namespace, func() bool { return s.reaches(other) })
}

func TestOnlyPeersAreReached(t *testing.T) { eachMeans(t, onlyPeersAreReached) }

func onlyPeersAreReached(t *testing.T, goOnly bool) {
	all := stationsBy(t, 3, goOnly)
	a, b, c := all[0], all[1], all[2]
	a.apply(b.peer(), c.peer())
	b.apply(a.peer(), c.peer())
	c.apply(a.peer(), b.peer())
	for _, pair := range [][2]*station{{a, b}, {b, c}, {c, a}} {
		pair[0].soon(pair[1])
	}
	if by := a.Protection(); by != fleet.UserWireGuard && goOnly || by != fleet.KernelWireGuard && !goOnly {
		t.Errorf("it says that %q protects it", by)
	}
	have, err := a.Read()
	if err != nil {
		t.Fatal(err)
	}
	want, err := a.want(a.wanted(b.peer(), c.peer()))
	if err != nil {
		t.Fatal(err)
	}
	if rest := Diff(have, want); len(rest) > 0 {
		t.Errorf("applying again would change %v", rest)
	}
	a.apply(b.peer())
	if a.reaches(c) || c.reaches(a) {
		t.Error("a removed peer is still reached")
	}
	a.soon(b)
	b.soon(c)
	wrong := b.peer()
	wrong.Key = c.End().Key
	a.apply(wrong)
	if a.reaches(b) || b.reaches(a) {
		t.Error("a peer with a wrong key is reached")
	}
	// Who has the key of one host is not believed the address of another.
	posing := c.peer()
	posing.Address = fleet.WireGuardAddr(b.number)
	a.apply(posing)
	if c.reaches(a) {
		t.Error("packets from an address that is not the peer's are taken in")
	}
	a.apply() // else it would wait for the answer to a handshake that went astray
	a.apply(b.peer(), c.peer())
	a.soon(b)
	c.soon(a)
}

// What listens inside is not there for who sends to it by another link, and hears nobody who is
// no peer.
func TestOnlyTheDeviceLeadsInside(t *testing.T) {
	all := stations(t, 2)
	a, b := all[0], all[1]
	a.apply(b.peer())
	b.apply(a.peer())
	a.soon(b)
	inside := b.Local(b.wanted())
	var listener net.Listener
	b.Must(func() (err error) {
		listener, err = net.Listen("tcp", net.JoinHostPort(inside.String(), "0"))
		return err
	})
	defer listener.Close()
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	dial := func(address string) error {
		return a.Do(func() error {
			c, err := net.DialTimeout("tcp", net.JoinHostPort(address, port), time.Second)
			if err == nil {
				c.Close()
			}
			return err
		})
	}
	if err := dial(inside.WithZone(a.Name()).String()); err != nil {
		t.Errorf("a peer does not reach it: %v", err)
	}
	if err := dial(b.Addr.String()); err == nil {
		t.Error("it is reached at the host's address outside")
	}
	// A neighbour that sends frames for the inner address straight to the host's link.
	hardware := ""
	b.Must(func() error {
		link, err := net.InterfaceByName(testkit.UplinkName)
		if err == nil {
			hardware = link.HardwareAddr.String()
		}
		return err
	})
	a.Run("ip", "-6", "neigh", "add", inside.WithZone("").String(), "lladdr", hardware, "dev", testkit.UplinkName)
	if err := dial(inside.WithZone(testkit.UplinkName).String()); err == nil {
		t.Error("it is reached by another link")
	}
}

// Whichever of two hosts hears of the other first, or both at once, they agree on keys soon: WireGuard
// by itself would take five seconds if the first try fails.
func TestPeersAgreeSoon(t *testing.T) { eachMeans(t, peersAgreeSoon) }

func peersAgreeSoon(t *testing.T, goOnly bool) {
	all := stationsBy(t, 2, goOnly)
	for try := range 12 {
		first, second := all[try%2], all[1-try%2]
		first.apply()
		second.apply()
		begun := time.Now()
		switch try / 2 % 3 {
		case 0: // at once
			wait := testkit.Meanwhile(t, func() { first.apply(second.peer()) })
			second.apply(first.peer())
			wait()
		case 1:
			first.apply(second.peer())
			second.apply(first.peer())
		case 2: // and what is sent before is dropped
			first.apply(second.peer())
			first.reaches(second)
			second.apply(first.peer())
			begun = time.Now()
		}
		for !second.reaches(first) {
			if time.Since(begun) > 4*time.Second {
				break
			}
		}
		if took := time.Since(begun); took > 2500*time.Millisecond {
			t.Errorf("try %d: they reach each other after %v", try, took)
		}
	}
}

// The next Open finds the device, and what goes through it is not interrupted.
func TestDeviceOutlivesItsOpener(t *testing.T) {
	all := stations(t, 2)
	a, b := all[0], all[1]
	a.apply(b.peer())
	b.apply(a.peer())
	a.soon(b)
	process := a.process()
	lost := make(chan string, 1)
	go func() { // an answer to each of many packets, 5 ms apart
		out, _ := a.Try("ping", "-6", "-q", "-i0.005", "-c300", "-W1", fmt.Sprintf("%s%%%s", fleet.WireGuardAddr(b.number), a.Name()))
		lost <- out
	}()
	for range 3 {
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		a.open()
		a.apply(b.peer())
	}
	if out := <-lost; !strings.Contains(out, " 0% packet loss") {
		t.Errorf("while its agent restarted:\n%s", out)
	}
	if now := a.process(); now != process {
		t.Errorf("the process was %v and is %v", process, now)
	}
	if err := process.End(); err != nil { // as it might crash
		t.Fatal(err)
	}
	if a.reaches(b) || a.Protection() != "" {
		t.Error("without its process there is a device")
	}
	a.apply(b.peer())
	a.soon(b)
}

func (s *station) process() (p host.Process) {
	s.t.Helper()
	if err := note.Load(filepath.Join(s.config.Run, processFile), &p); err != nil {
		s.t.Fatal(err)
	}
	return p
}

// An old key is replaced when the agent starts, and used once the others have heard of it.
func TestKeyIsReplaced(t *testing.T) { eachMeans(t, keyIsReplaced) }

func keyIsReplaced(t *testing.T, goOnly bool) {
	all := stationsBy(t, 2, goOnly)
	a, b := all[0], all[1]
	a.apply(b.peer())
	b.apply(a.peer())
	was := a.End().Key
	path := filepath.Join(a.config.State, keyFile)
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the key's file has mode %v (%v)", st.Mode(), err)
	}
	old := a.key
	old.Made = old.Made.Add(-keyLife - time.Minute)
	if err := note.Replace(path, old); err != nil {
		t.Fatal(err)
	}
	a.Close()
	a.open()
	if a.End().Key == was {
		t.Fatal("an old key is kept")
	}
	if !a.reaches(b) {
		t.Error("before the others know the new key, the old one is gone")
	}
	a.apply(b.peer())
	b.apply(a.peer())
	a.soon(b)
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(a.config); err == nil || !strings.Contains(err.Error(), "others can read") {
		t.Errorf("a key that others can read: %v", err)
	}
}

// wireguard-go costs nothing while nothing goes through it.
func TestIdleDeviceUsesNoCPU(t *testing.T) {
	all := stations(t, 2)
	a, b := all[0], all[1]
	a.apply(b.peer())
	b.apply(a.peer())
	testkit.Until(t, 20*time.Second, "they reach each other", func() bool { return a.reaches(b) }) // TestPeersAgreeSoon is about how soon
	time.Sleep(time.Second)
	used := func() time.Duration {
		st, err := host.ReadStat(a.process().PID)
		if err != nil {
			t.Fatal(err)
		}
		return st.CPU
	}
	before := used()
	const watched = 5 * time.Second
	time.Sleep(watched)
	if cost := used() - before; cost > watched/200 {
		t.Errorf("it used %v of a CPU in %v", cost, watched)
	}
}

func TestTakenPortIsNamed(t *testing.T) {
	s := stations(t, 1)[0]
	s.Must(func() error {
		c, err := net.ListenUDP("udp", &net.UDPAddr{Port: fleet.WireGuardPort})
		if err != nil {
			return err
		}
		defer c.Close()
		err = s.Apply(context.Background(), s.wanted())
		if err == nil || !strings.Contains(err.Error(), "UDP port 7462 is taken") {
			t.Errorf("it says: %v", err)
		}
		return nil
	})
	s.apply()
}

// After an upgrade the next agent has another program. The device is made again by that when no peer is in use.
func TestDeviceOfAnOldProgramIsReplaced(t *testing.T) {
	all := stations(t, 2)
	a, b := all[0], all[1]
	a.apply(b.peer())
	b.apply(a.peer())
	a.soon(b)
	was := a.process()
	text, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	a.config.Program = filepath.Join(t.TempDir(), "new")
	if err := os.WriteFile(a.config.Program, text, 0o755); err != nil {
		t.Fatal(err)
	}
	a.Close()
	a.open()
	a.apply(b.peer())
	if a.process() != was {
		t.Error("a device that is in use is replaced")
	}
	a.apply()
	if a.process() == was {
		t.Error("an unused device of the old program stays")
	}
	now := a.process()
	a.apply()
	if a.process() != now {
		t.Error("the device of the new program is replaced, too")
	}
	a.apply(b.peer())
	a.soon(b)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", now.PID))
	if err != nil || !strings.Contains(string(status), "CapEff:\t0000000000801400") { // CAP_NET_BIND_SERVICE, CAP_NET_ADMIN and CAP_SYS_NICE
		t.Errorf("it has other capabilities than it needs (%v):\n%s", err, status)
	}
}

// What passes to a peer is measured.
func TestBurst(t *testing.T) {
	all := stations(t, 2)
	a, b := all[0], all[1]
	a.apply(b.peer())
	b.apply(a.peer())
	a.soon(b)
	var sink *Sink
	b.Must(func() (err error) {
		sink, err = b.OpenSink(fleet.WireGuardAddr(b.number))
		return err
	})
	ended := testkit.Meanwhile(t, sink.Serve)
	var rate float64
	begun := time.Now()
	a.Must(func() (err error) {
		rate, err = a.Burst(t.Context(), fleet.WireGuardAddr(b.number))
		return err
	})
	if took := time.Since(begun); rate < 1e5 || rate > 1e11 || took > 4*burstLimit {
		t.Errorf("it measures %g bytes a second, in %v", rate, took)
	}
	sink.Close()
	ended()
}
