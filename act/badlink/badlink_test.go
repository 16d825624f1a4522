package badlink

import (
	"errors"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/internal/testkit"
)

// arrive counts how many of n datagrams arrive at another host. After some of them it sends marks, which no datagram overtakes, until
// one arrives: what has not come before that is lost, however busy the machine is.
func arrive(t *testing.T, from, to *testkit.Host, n int) (came int) {
	t.Helper()
	var in, out net.PacketConn
	to.Must(func() (err error) {
		in, err = net.ListenPacket("udp4", net.JoinHostPort(to.Addr.String(), "7"))
		return
	})
	from.Must(func() (err error) { out, err = net.ListenPacket("udp4", ":0"); return })
	defer in.Close()
	defer out.Close()
	send := func(b ...byte) {
		if _, err := out.WriteTo(b, in.LocalAddr()); err != nil {
			t.Fatal(err)
		}
	}
	b := make([]byte, 10)
	const some = 50 // fit into the socket
	for i := range n {
		send(0)
		if last := i == n-1; !last && i%some != some-1 {
			continue
		}
		mark := byte(1 + i/some) // an earlier one may come late
		testkit.Until(t, 20*time.Second, "a mark arrives", func() bool {
			send(mark)
			if err := in.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			for {
				if _, _, err := in.ReadFrom(b); err != nil {
					return false
				}
				switch b[0] {
				case 0:
					came++
				case mark:
					return true
				}
			}
		})
	}
	return came
}

func TestALinkLosesItsShare(t *testing.T) {
	hosts := testkit.Hosts(t, 2)
	lossy, other := hosts[0], hosts[1]
	arrive(t, other, lossy, 1) // they learn each other's addresses
	const n = 1000
	for range 2 { // a repeated call has no further effect
		lossy.Must(func() error { return Set(testkit.UplinkName, Impairment{Loss: 0.25}) })
	}
	// Expected 750, standard deviation 14.
	if came := arrive(t, other, lossy, n); came < 680 || came > 820 {
		t.Errorf("%d of %d came over a link that loses a quarter", came, n)
	}
	if came := arrive(t, lossy, other, n); came != n {
		t.Errorf("%d of %d came in the other direction", came, n)
	}
	for range 2 {
		lossy.Must(func() error { return Set(testkit.UplinkName, Impairment{}) })
	}
	if came := arrive(t, other, lossy, n); came != n {
		t.Errorf("%d of %d came over a link that loses nothing any more", came, n)
	}
	if left := lossy.Run("tc", "qdisc", "show", "dev", testkit.UplinkName); strings.Contains(left, "clsact") {
		t.Errorf("left is %s", left)
	}
}

// The delay works if the kernel supports it; otherwise there is an error and nothing
// changes.
func TestALinkHasDelay(t *testing.T) {
	hosts := testkit.Hosts(t, 2)
	var l net.Listener
	hosts[1].Must(func() (err error) { l, err = net.Listen("tcp4", ":9"); return })
	defer l.Close()
	const late = 50 * time.Millisecond
	err := hosts[0].Do(func() error { return Set(testkit.UplinkName, Impairment{Delay: late}) })
	if err != nil && !strings.Contains(err.Error(), "CONFIG_NET_SCH_NETEM") {
		t.Fatal(err)
	}
	begun := time.Now()
	hosts[0].Must(func() error {
		c, err := net.Dial("tcp4", net.JoinHostPort(hosts[1].Addr.String(), "9"))
		if err == nil {
			err = c.Close()
		}
		return err
	})
	if took := time.Since(begun); err == nil && took < late {
		t.Errorf("there and back took %s", took)
	}
	hosts[0].Must(func() error { return Set(testkit.UplinkName, Impairment{}) })
}

func TestALinkThatIsNotThere(t *testing.T) {
	if err := Set("nosuch", Impairment{}); err == nil || !strings.Contains(err.Error(), "link nosuch") {
		t.Errorf("%v", err)
	}
	for _, bad := range []Impairment{{Loss: -0.1}, {Loss: 0.6}, {Loss: math.NaN()}, {Delay: -1}, {Delay: time.Hour}} {
		if err := Set("lo", bad); err == nil {
			t.Errorf("%+v was given", bad)
		}
	}
}

func TestImpairmentInWords(t *testing.T) {
	if got := (Impairment{Loss: 0.01, Delay: time.Millisecond}).String(); got != "1 % loss, 1ms delay" {
		t.Errorf("it says %q", got)
	}
}

// A blocked port is silent in both directions of a connection, and others are not. No time says so: what is sent to a port before
// another one is reached has been answered by then, or never is.
func TestALinkBlocksAPort(t *testing.T) {
	hosts := testkit.Hosts(t, 2)
	reaches := func(port string) error {
		return hosts[0].Do(func() error {
			c, err := net.DialTimeout("tcp4", net.JoinHostPort(hosts[1].Addr.String(), port), 20*time.Second)
			if err == nil {
				err = c.Close()
			}
			return err
		})
	}
	knock := func(port int) (fd int) {
		hosts[0].Must(func() (err error) {
			if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
				return err
			}
			if err = unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: hosts[1].Addr.As4()}); errors.Is(err, unix.EINPROGRESS) {
				err = nil
			}
			return err
		})
		return fd
	}
	for _, port := range []string{"7461", "7462"} {
		var l net.Listener
		hosts[1].Must(func() (err error) { l, err = net.Listen("tcp4", ":"+port); return })
		defer l.Close()
		if err := reaches(port); err != nil {
			t.Fatal(err)
		}
	}
	for _, h := range hosts[:2] { // what is for the port, or what comes from it
		for _, blocked := range []uint16{7461, 0} {
			h.Must(func() error { return Block(testkit.UplinkName, blocked) })
			fd := knock(7461)
			if err := reaches("7462"); err != nil {
				t.Errorf("another port: %v", err)
			}
			if _, err := unix.Getpeername(fd); blocked != 0 && !errors.Is(err, unix.ENOTCONN) {
				t.Errorf("the blocked port answers: %v", err)
			}
			if err := unix.Close(fd); err != nil {
				t.Error(err)
			}
		}
		if err := reaches("7461"); err != nil {
			t.Errorf("a port that is not blocked any more: %v", err)
		}
	}
}
