package badlink

import (
	"math"
	"net"
	"strings"
	"testing"
	"time"

	"pagurus/internal/testkit"
)

// arrive counts how many of n datagrams arrive at another host.
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
	b := make([]byte, 10)
	for range n {
		if _, err := out.WriteTo(b[:1], in.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		// Datagrams that are not lost arrive almost at once.
		if err := in.SetReadDeadline(time.Now().Add(2 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := in.ReadFrom(b); err == nil {
			came++
		}
	}
	if err := in.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	for {
		if _, _, err := in.ReadFrom(b); err != nil {
			return came
		}
		came++
	}
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

// A blocked port is silent in both directions of a connection, and others are not.
func TestALinkBlocksAPort(t *testing.T) {
	hosts := testkit.Hosts(t, 2)
	reaches := func(port string) error {
		return hosts[0].Do(func() error {
			c, err := net.DialTimeout("tcp4", net.JoinHostPort(hosts[1].Addr.String(), port), 500*time.Millisecond)
			if err == nil {
				err = c.Close()
			}
			return err
		})
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
		h.Must(func() error { return Block(testkit.UplinkName, 7461) })
		if err := reaches("7461"); err == nil {
			t.Error("the blocked port answers")
		}
		if err := reaches("7462"); err != nil {
			t.Errorf("another port: %v", err)
		}
		h.Must(func() error { return Block(testkit.UplinkName, 0) })
		if err := reaches("7461"); err != nil {
			t.Errorf("a port that is not blocked any more: %v", err)
		}
	}
}
