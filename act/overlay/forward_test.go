package overlay

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// Guest 0 moves from a to b while guests on a, b and c send to it continuously. It gets
// every frame once and each sender's in order: first at a, after the switch at b.
func TestNoFrameIsLostInAMove(t *testing.T) { eachKind(t, noFrameIsLostInAMove) }

func noFrameIsLostInAMove(t *testing.T, as func(fleet.Network) fleet.Network) {
	names := []string{"a", "b", "c"}
	hosts := stations(t, names...)
	apply := func(at, next string, ports ...int) (networks []fleet.Network) {
		for i, self := range names {
			n := network("j1", 1, self, at, "a", "b", "c")
			if next != "" {
				n.Endpoints[0].Next = hosts[1].Addr.String()
			}
			for _, other := range ports {
				if other == i {
					n.Ports = append([]fleet.Port{{Guest: "j1g0", Index: 0}}, n.Ports...)
				}
			}
			n = as(n)
			hosts[i].apply(n)
			networks = append(networks, n)
		}
		return networks
	}
	n := apply("a", "b", 1)
	old, young := hosts[0].use(n[0], 0), hosts[1].use(n[1], 0)
	senders := []*plug{hosts[0].use(n[0], 1), hosts[1].use(n[1], 2), hosts[2].use(n[2], 3)}

	stop := make(chan struct{})
	sent, taken := make([]int, len(senders)), make([]atomic.Int64, len(senders))
	var talk sync.WaitGroup
	for i, p := range senders {
		talk.Go(func() {
			pin(t)
			for {
				select {
				case <-stop:
					return
				case <-time.After(3 * time.Millisecond):
				}
				if sent[i]-int(taken[i].Load()) < 300 { // a port queues 1000 frames, and a slow machine may take long until it is read again
					p.say(n[0].Endpoints[0].MAC, fmt.Sprintf("%d %d", i, sent[i]))
					sent[i]++
				}
			}
		})
	}
	var heard []string
	listen := func(p *plug, most time.Duration) {
		for end := time.Now().Add(most); time.Now().Before(end); {
			if text := p.hear(experimental, noFrameFor); text != "" {
				heard = append(heard, strings.TrimRight(text, "\x00"))
				var who int
				if _, err := fmt.Sscan(text, &who); err == nil && who < len(taken) {
					taken[who].Add(1)
				}
			} else {
				return
			}
		}
	}
	listen(old, 100*time.Millisecond)
	hosts[0].Must(func() error { return hosts[0].Forward(n[0].Subnet, 0) })
	hosts[0].Must(func() error { return hosts[0].Forward(n[0].Subnet, 0) })
	apply("a", "b", 1)  // applying keeps the forwarding
	listen(old, surely) // until no more arrive
	apply("b", "", 0)   // at the same time in reality, in sequence here
	count := len(heard) // from here on the guest runs at b
	least := func() int64 { return min(taken[0].Load(), taken[1].Load(), taken[2].Load()) }
	for end := time.Now().Add(6 * surely); least() < 100 && time.Now().Before(end); {
		listen(young, surely/20)
	}
	close(stop)
	talk.Wait()
	listen(young, surely)
	next := make([]int, len(senders))
	for _, text := range heard {
		var who, number int
		if k, _ := fmt.Sscan(text, &who, &number); k != 2 || who >= len(next) || number != next[who] {
			t.Fatalf("heard %q when frame %d was due", text, next[who])
		}
		next[who]++
	}
	for i := range sent {
		if next[i] != sent[i] || sent[i] < 100 {
			t.Errorf("of sender %d's %d frames %d were heard", i, sent[i], next[i])
		}
	}
	t.Logf("%d frames, %d of them at the target", len(heard), len(heard)-count)
	if rest := hosts[1].state(); strings.Contains(rest, "arrival") {
		t.Errorf("the filter is still there:\n%s", rest)
	}
}

// pin keeps a sender on one CPU: frames sent from two may overtake each other, with or
// without a move. The thread ends with the goroutine.
func pin(t *testing.T) {
	runtime.LockOSThread()
	var may, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		t.Error(err)
		return
	}
	for cpu := range 1024 {
		if may.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Error(err)
	}
}

// After a failed switch frames go to the guest again.
func TestDeliverEndsForward(t *testing.T) { eachKind(t, deliverEndsForward) }

func deliverEndsForward(t *testing.T, as func(fleet.Network) fleet.Network) {
	hosts := stations(t, "a", "b")
	var n [2]fleet.Network
	for i, self := range []string{"a", "b"} {
		n[i] = network("j1", 1, self, "a", "b")
		n[i].Endpoints[0].Next = hosts[1].Addr.String()
	}
	n[1].Ports = append([]fleet.Port{{Guest: "j1g0", Index: 0}}, n[1].Ports...)
	n[0], n[1] = as(n[0]), as(n[1])
	hosts[0].apply(n[0])
	hosts[1].apply(n[1])
	old, young, peer := hosts[0].use(n[0], 0), hosts[1].use(n[1], 0), hosts[1].use(n[1], 1)
	mac := n[0].Endpoints[0].MAC
	peer.say(mac, "before")
	old.mustHear("before")
	hosts[0].Must(func() error { return hosts[0].Forward(1, 0) })
	peer.say(mac, "forwarded")
	young.mustHear("forwarded")
	for range 2 {
		hosts[0].Must(func() error { return hosts[0].Deliver(1, 0) })
		peer.say(mac, "delivered")
		old.mustHear("delivered")
	}
	young.mustNotHear(experimental)
	hosts[0].Must(func() error { return hosts[0].Deliver(1, 7) }) // without a port
	if err := hosts[0].Do(func() error { return hosts[0].Forward(1, 7) }); err == nil {
		t.Error("frames for a guest that is not there are forwarded")
	}
}
