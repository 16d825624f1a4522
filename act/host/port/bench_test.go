package port

import (
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"pagurus/internal/testkit"
)

// BenchmarkPort measures what filters on ports cost. Containers on two hosts are connected by
// bridges and a tunnel. Their ports can have no filters, have none, or were cut and held.
func BenchmarkPort(b *testing.B) {
	for _, way := range []string{"no hooks", "hooks", "after cut and hold"} {
		hosts := stations(b, 2)
		layout{at: []int{0, 1}}.apply(hosts)
		from, to := hosts[0].attachContainer(0), hosts[1].attachContainer(1)
		switch way {
		case "no hooks":
			hosts[0].Run("tc", "qdisc", "del", "dev", port(0).link(), "clsact")
			hosts[1].Run("tc", "qdisc", "del", "dev", port(1).link(), "clsact")
		case "after cut and hold":
			for i, s := range hosts {
				s.cut(i)
				held := s.queueFrames(i)
				s.mend(i)
				if err := held.Release(); err != nil {
					b.Fatal(err)
				}
			}
		}
		b.Run("ping-pong/"+way, func(b *testing.B) {
			c := echo(b, from, to, func(c net.Conn) { io.Copy(c, c) })
			var one [1]byte
			for b.Loop() {
				if _, err := c.Write(one[:]); err != nil {
					b.Fatal(err)
				}
				if _, err := c.Read(one[:]); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("stream/"+way, func(b *testing.B) {
			c := echo(b, from, to, func(c net.Conn) { io.Copy(io.Discard, c) })
			block := make([]byte, 1<<20)
			b.SetBytes(int64(len(block)))
			for b.Loop() {
				if _, err := c.Write(block); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRelease measures how long a container's first frame waits after the release has
// begun, and how long the release of many frames takes.
func BenchmarkRelease(b *testing.B) {
	hosts := stations(b, 1)
	layout{at: []int{0, 0}}.apply(hosts)
	ears, voice := newCard(b, hosts[0].attachContainer(0)), newCard(b, hosts[0].attachContainer(1))
	for _, frames := range []int{1, 1000} {
		b.Run(fmt.Sprint(frames), func(b *testing.B) {
			var first, all time.Duration
			for b.Loop() {
				held := hosts[0].queueFrames(0)
				for i := range frames {
					voice.say(mac(0), fmt.Sprint(i))
				}
				began := time.Now()
				done := make(chan error)
				go func() { done <- held.Release() }()
				for i := range frames {
					ears.mustHear("released", fmt.Sprint(i))
					if i == 0 {
						first += time.Since(began)
					}
				}
				all += time.Since(began)
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(first.Microseconds())/float64(b.N), "µs-to-first")
			b.ReportMetric(float64(all.Microseconds())/float64(b.N), "µs-to-last")
		})
	}
}

// echo connects two containers; the far one runs serve.
func echo(b *testing.B, from, to *testkit.Host, serve func(net.Conn)) (c net.Conn) {
	b.Helper()
	addr := net.JoinHostPort(subnet.GuestAddr(1).String(), "7777")
	var l net.Listener
	to.Must(func() (err error) {
		l, err = net.Listen("tcp4", addr)
		return err
	})
	go func() {
		s, err := l.Accept()
		l.Close()
		if err == nil {
			serve(s)
			s.Close()
		}
	}()
	from.Must(func() (err error) {
		c, err = net.DialTimeout("tcp4", addr, surely)
		return err
	})
	b.Cleanup(func() { c.Close() })
	return c
}
