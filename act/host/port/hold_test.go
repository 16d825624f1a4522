package port

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pagurus/internal/testkit"
)

func TestNames(t *testing.T) {
	if p := port(3); p.link() != "pgt700007.3" || p.Subnet.PortQueueName(3) != "pgh700007.3" {
		t.Errorf("%s %s", p.link(), p.Subnet.PortQueueName(3))
	}
}

// choir is several senders that number their frames for container 0, and one receiver.
type choir struct {
	t     *testing.T
	stop  chan struct{}
	talk  sync.WaitGroup
	sent  []atomic.Int64
	heard []string
	ears  *card
}

// sing starts the senders: all on one processor, or each on its own.
func sing(t *testing.T, ears *card, pause time.Duration, together bool, voices ...*card) *choir {
	c := &choir{t: t, ears: ears, stop: make(chan struct{}), sent: make([]atomic.Int64, len(voices))}
	for i, v := range voices {
		c.talk.Go(func() {
			nth := i
			if together {
				nth = 0
			}
			pinned(t, nth)
			for ; ; c.sent[i].Add(1) {
				select {
				case <-c.stop:
					return
				default:
				}
				if pause > 0 {
					time.Sleep(pause)
				}
				v.say(mac(0), fmt.Sprintf("%d %d", i, c.sent[i].Load()))
			}
		})
	}
	return c
}

// said returns how many frames each sender has sent. One more may be in transit.
func (c *choir) said() (frames []int) {
	for i := range c.sent {
		frames = append(frames, int(c.sent[i].Load()))
	}
	return frames
}

// more waits until each sender has sent so many more frames.
func (c *choir) more(frames int) {
	c.t.Helper()
	for i, n := range c.said() {
		testkit.Until(c.t, time.Minute, "the others send", func() bool { return int(c.sent[i].Load()) > n+frames })
	}
}

// listen receives frames until none arrives for a while, or for at most most.
func (c *choir) listen(most time.Duration) (heard int) {
	for end := time.Now().Add(most); time.Now().Before(end); heard++ {
		text := c.ears.hear(noFrameFor)
		if text == "" {
			return heard
		}
		c.heard = append(c.heard, text)
	}
	return heard
}

func (c *choir) parse(text string) (who, number int) {
	c.t.Helper()
	if k, _ := fmt.Sscan(text, &who, &number); k != 2 || who >= len(c.sent) {
		c.t.Fatalf("heard %q, which nobody sent", text)
	}
	return who, number
}

// deaf receives the frames in transit, all of which must have been sent before.
func (c *choir) deaf(before []int) {
	c.t.Helper()
	heard := len(c.heard)
	c.listen(surely)
	for _, text := range c.heard[heard:] {
		if who, number := c.parse(text); number > before[who] {
			c.t.Errorf("%q was heard while held", text)
		}
	}
}

// end stops the senders. It returns how many frames arrived after a later frame of the same
// sender. All frames except lost must have arrived, each once.
func (c *choir) end(lost uint64) (overtaken int) {
	c.t.Helper()
	close(c.stop)
	c.talk.Wait()
	c.listen(time.Minute)
	seen, last, sent := map[string]bool{}, make([]int, len(c.sent)), c.said()
	for _, text := range c.heard {
		who, number := c.parse(text)
		if number >= sent[who] {
			c.t.Fatalf("heard %q, which nobody sent", text)
		}
		if seen[text] {
			c.t.Fatalf("heard %q twice", text)
		}
		seen[text] = true
		if number < last[who] {
			overtaken++
		}
		last[who] = max(last[who], number)
	}
	total := 0
	for _, n := range sent {
		total += n
	}
	if len(c.heard)+int(lost) != total {
		c.t.Errorf("of %d frames %d were heard and %d are said to be lost", total, len(c.heard), lost)
	}
	c.t.Logf("%d frames, %d lost, %d overtaken", total, lost, overtaken)
	return overtaken
}

// Frames from containers on this host and another wait while a container is held. Afterwards
// each arrives once and in order, while more are sent without pause.
func TestHoldKeepsEveryFrame(t *testing.T) {
	testkit.Leftovers(t)
	for _, c := range []struct {
		name     string
		pause    time.Duration
		frames   int // the least number that each sends meanwhile
		together bool
	}{
		{"a little", time.Millisecond, 50, true},
		{"much", 30 * time.Microsecond, 500, true},
		{"from several processors", 30 * time.Microsecond, 500, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			hosts := stations(t, 2)
			layout{at: []int{0, 0, 1, 1}}.apply(hosts)
			ears := newCard(t, hosts[0].attachContainer(0))
			voices := []*card{newCard(t, hosts[0].attachContainer(1)), newCard(t, hosts[1].attachContainer(2)), newCard(t, hosts[1].attachContainer(3))}
			choir := sing(t, ears, c.pause, c.together, voices...)
			var lost uint64
			for range 2 {
				choir.more(20)
				held := hosts[0].queueFrames(0)
				before := choir.said()
				choir.more(c.frames)
				choir.deaf(before)
				began := time.Now()
				done := make(chan error)
				go func() {
					if c.together {
						pinned(t, 0)
					}
					done <- held.Release()
				}()
				choir.listen(50 * time.Millisecond)
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				count := held.Count()
				lost += count.Lost
				t.Logf("released %d frames in %v", count.Delivered, time.Since(began))
				if int(count.Delivered) < c.frames {
					t.Error("too few were held")
				}
				mustBeFree(t, hosts[0])
			}
			if overtaken := choir.end(lost); overtaken > 0 && c.together {
				t.Errorf("%d frames were overtaken", overtaken)
			}
			if lost > 0 {
				t.Errorf("%d frames were lost in a queue that was not full", lost)
			}
		})
	}
}

// Container 0 moves from a to b while others on a, b and c send to it without pause. Every frame
// arrives once, and each sender's in order: those before the suspension at a, all others at b.
func TestNoFrameIsLostInAMove(t *testing.T) {
	testkit.Leftovers(t)
	hosts := stations(t, 3)
	layout{at: []int{0, 0, 1, 2}, to: 1}.apply(hosts)
	held := hosts[1].queueFrames(0)
	old, young := newCard(t, hosts[0].attachContainer(0)), newCard(t, hosts[1].attachContainer(0))
	choir := sing(t, old, time.Millisecond, true, newCard(t, hosts[0].attachContainer(1)), newCard(t, hosts[1].attachContainer(2)), newCard(t, hosts[2].attachContainer(3)))
	choir.more(50)
	hosts[0].Must(func() error { return hosts[0].Forward(subnet, 0) })
	hosts[0].cut(0)
	choir.deaf(choir.said())
	before := len(choir.heard)
	choir.ears = young
	choir.more(50)
	layout{at: []int{1, 0, 1, 2}, left: true}.apply(hosts)
	choir.more(50)
	young.mustNotHear("held")
	done := make(chan error)
	go func() {
		pinned(t, 0)
		done <- held.Release()
	}()
	choir.listen(100 * time.Millisecond)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	choir.more(50)
	if c := held.Count(); before == 0 || c.Delivered == 0 || c.Lost != 0 {
		t.Errorf("%d before, %+v", before, c)
	}
	if overtaken := choir.end(0); overtaken > 0 {
		t.Errorf("%d frames were overtaken", overtaken)
	}
	t.Logf("%d frames before the move, %d held", before, held.Count().Delivered)
}

// Frames that come faster than they can be delivered are released, too. They may overtake
// waiting frames, but none is lost and none arrives twice.
func TestReleaseDoesNotChaseForEver(t *testing.T) {
	testkit.Leftovers(t)
	hosts := stations(t, 2)
	layout{at: []int{0, 0, 1}}.apply(hosts)
	ears := newCard(t, hosts[0].attachContainer(0))
	choir := sing(t, ears, 20*time.Microsecond, false, newCard(t, hosts[0].attachContainer(1)), newCard(t, hosts[1].attachContainer(2)))
	for range 5 {
		held := hosts[0].queueFrames(0)
		held.chase = 0
		choir.more(50)
		if err := held.Release(); err != nil {
			t.Fatal(err)
		}
		if c := held.Count(); c.Delivered == 0 || c.Lost != 0 {
			t.Errorf("%+v", c)
		}
	}
	choir.end(0)
}

// mustBeFree fails if anything of a hold of port 0 is left.
func mustBeFree(t *testing.T, s *station) {
	t.Helper()
	if left := s.Run("sh", "-c", "tc filter show dev pgt700007.0 egress; tc filter show dev pgt700007.0 ingress; ip -br link | grep pgh || true"); left != "" {
		t.Errorf("left are\n%s", left)
	}
}

// The queue has a limit. The number of frames lost there is known, and the others arrive.
func TestHoldIsBounded(t *testing.T) {
	testkit.Leftovers(t)
	s := stations(t, 1)[0]
	layout{at: []int{0, 0}}.apply([]*station{s})
	ears, voice := newCard(t, s.attachContainer(0)), newCard(t, s.attachContainer(1))
	held := s.queueFrames(0)
	const more = 100
	for i := range queueFrames + more {
		voice.say(mac(0), fmt.Sprint(i))
	}
	if err := held.Release(); err != nil {
		t.Fatal(err)
	}
	if c := held.Count(); c != (Count{Delivered: queueFrames, Lost: more}) {
		t.Errorf("%+v", c)
	}
	for i := range queueFrames {
		if text := ears.hear(surely); text != fmt.Sprint(i) {
			t.Fatalf("heard %q instead of %d", text, i)
		}
	}
	ears.mustNotHear("after all")
	voice.say(mac(0), "later")
	ears.mustHear("later", "later")
	mustBeFree(t, s)
}

// Closing drops waiting frames. A second hold is refused while the first one's process lives,
// and allowed after its death. Free also ends a hold whose process died.
func TestHoldEnds(t *testing.T) {
	testkit.Leftovers(t)
	s := stations(t, 1)[0]
	layout{at: []int{0, 0}}.apply([]*station{s})
	ears, voice := newCard(t, s.attachContainer(0)), newCard(t, s.attachContainer(1))

	held := s.queueFrames(0)
	voice.say(mac(0), "dropped")
	if err := s.Do(func() error { _, err := port(0).QueueFrames(); return err }); err == nil || !strings.Contains(err.Error(), "held already") {
		t.Errorf("held twice: %v", err)
	}
	byAnother(t, s, "hold", "held already")
	ears.mustNotHear("held")
	for range 2 {
		if err := held.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := held.Release(); err != nil {
		t.Errorf("released after it was closed: %v", err)
	}
	mustBeFree(t, s)
	voice.say(mac(0), "closed")
	ears.mustHear("closed", "closed")

	byAnother(t, s, "hold", "done")
	voice.say(mac(0), "lost with its holder")
	ears.mustNotHear("with a dead holder")
	held = s.queueFrames(0)
	voice.say(mac(0), "kept")
	ears.mustNotHear("held again")
	if err := held.Release(); err != nil {
		t.Fatal(err)
	}
	ears.mustHear("released", "kept")
	mustBeFree(t, s)

	byAnother(t, s, "hold", "done")
	for range 2 {
		s.Must(port(0).Free)
		voice.say(mac(0), "free")
		ears.mustHear("free", "free")
	}
	mustBeFree(t, s)
	if err := s.Do(func() error { _, err := port(3).QueueFrames(); return err }); err == nil {
		t.Error("a port that is not there was held")
	}
	mustBeFree(t, s)
}

// A container that is not attached yet gets its frames when it is. If it never is, Release
// returns an error, and the container may be attached afterwards.
func TestHoldBeforeTake(t *testing.T) {
	testkit.Leftovers(t)
	s := stations(t, 1)[0]
	layout{at: []int{0, 0}}.apply([]*station{s})
	voice := newCard(t, s.attachContainer(1))
	held := s.queueFrames(0)
	// The port's other end is still down, so the bridge sends it nothing. Frames from the tunnel
	// do not pass the bridge.
	s.Run("ip", "link", "set", subnet.PortPeerName(0), "up")
	testkit.Until(t, surely, "the port forwards", func() bool {
		return strings.Contains(s.Run("bridge", "link", "show", "dev", port(0).link()), "state forwarding")
	})
	voice.say(mac(0), "early")
	s.Run("ip", "link", "set", subnet.PortPeerName(0), "down")
	if err := held.Release(); err == nil || !strings.Contains(err.Error(), "is it attached") {
		t.Errorf("released to nobody: %v", err)
	}
	ears := newCard(t, s.attachContainer(0))
	ears.mustNotHear("still held")
	if err := held.Release(); err != nil {
		t.Fatal(err)
	}
	ears.mustHear("released", "early")
}

// Changes to the network leave a hold alone until the port is removed. A filter that directs
// frames to another host comes first.
func TestHoldBesideTheOverlay(t *testing.T) {
	testkit.Leftovers(t)
	hosts := stations(t, 2)
	l := layout{at: []int{0, 0, 1}, to: 1}
	l.apply(hosts)
	old, young := newCard(t, hosts[0].attachContainer(0)), newCard(t, hosts[1].attachContainer(0))
	local, remote := newCard(t, hosts[0].attachContainer(1)), newCard(t, hosts[1].attachContainer(2))

	target := hosts[1].queueFrames(0)
	both := func(stage string) {
		local.say(mac(0), stage+" from a")
		remote.say(mac(0), stage+" from b")
	}
	both("before")
	old.mustHear("before", "before from a")
	old.mustHear("before", "before from b")
	source := hosts[0].queueFrames(0)
	hosts[0].Must(func() error { return hosts[0].Forward(subnet, 0) })
	l.apply(hosts)
	both("forwarded")
	old.mustNotHear("forwarded")
	young.mustNotHear("forwarded to who is held")
	if err := target.Release(); err != nil {
		t.Fatal(err)
	}
	young.mustHear("released", "forwarded from a")
	young.mustHear("released", "forwarded from b")
	hosts[0].Must(func() error { return hosts[0].Deliver(subnet, 0) })
	both("delivered")
	old.mustNotHear("delivered to who is held")
	if err := source.Release(); err != nil {
		t.Fatal(err)
	}
	old.mustHear("released", "delivered from a")
	old.mustHear("released", "delivered from b")

	target = hosts[1].queueFrames(0)
	layout{at: []int{0, 0, 1}}.apply(hosts)
	if left := hosts[1].Run("ip", "-br", "link"); strings.Contains(left, "pgh") || strings.Contains(left, "pgt700007.0") {
		t.Errorf("the port is not wanted, but there is\n%s", left)
	}
	if err := target.Release(); err == nil {
		t.Error("a port that is gone was released")
	}
	if err := target.Close(); err != nil {
		t.Error(err)
	}
	source = hosts[0].queueFrames(0)
	for _, s := range hosts {
		s.Must(func() error { return s.Clear(context.Background()) })
	}
	if left := hosts[0].Run("ip", "-br", "link"); strings.Contains(left, "pg") {
		t.Errorf("after Clear there is\n%s", left)
	}
	if err := source.Close(); err != nil {
		t.Error(err)
	}
}
