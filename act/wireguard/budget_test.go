package wireguard

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/internal/testkit"
)

// A stream takes the priority away when it has spent the budget, once; what is slower never does; and time brings it back.
func TestBudget(t *testing.T) {
	var said []int
	now := time.Unix(1, 0)
	b := &budget{left: mostAtOnce, at: now, nice: func(v int) { said = append(said, v) }}
	pass := func(bytes int, every time.Duration, times int) {
		for range times {
			now = now.Add(every)
			b.countBytes(bytes, now)
		}
	}
	says := func(after string, want ...int) {
		t.Helper()
		if fmt.Sprint(said) != fmt.Sprint(want) {
			t.Errorf("after %s it said %v, not %v", after, said, want)
		}
		said = nil
	}
	pass(mostRate/100, 10*time.Millisecond, 1000)
	says("as much as may pass, for 10 s")
	pass(mostAtOnce/2, time.Second, 5)
	says("pieces that are small enough")
	pass(64<<10, 100*time.Microsecond, 10_000)
	says("a stream", beside)
	pass(0, time.Millisecond, 149)
	says("149 ms of rest")
	pass(0, time.Millisecond, 10)
	says("a little more", before)
	pass(mostAtOnce+mostRate, time.Hour, 1)
	says("a large piece after an hour", beside)
	now = now.Add(-time.Hour)
	b.countBytes(0, now)
	says("a clock that went back")
	pass(0, time.Hour, 1)
	says("another hour", before)
}

// Only TCP between hosts counts, both ways: what is in UDP is guests', and what is too short is nothing.
func TestOnlyStreamsOfHostsCount(t *testing.T) {
	const offset, size = 16, 1420
	packet := func(version, next byte) []byte {
		p := make([]byte, offset+size)
		p[offset], p[offset+nextAt] = version<<4, next
		return p
	}
	all := [][]byte{packet(6, unix.IPPROTO_TCP), packet(6, unix.IPPROTO_UDP), packet(6, unix.IPPROTO_ICMPV6), packet(4, unix.IPPROTO_TCP), make([]byte, offset+nextAt)}
	b := withBudget(&calls{})
	b.at = time.Now().Add(time.Hour) // time gives nothing back
	if _, err := b.Write(all, offset); err != nil || b.left != mostAtOnce-size {
		t.Errorf("of a budget of %d bytes %d are left, %v", mostAtOnce, b.left, err)
	}
}

// While a stream of hosts passes all threads of both processes have the guests' priority, and theirs again when packets come after it.
func TestStreamsHaveNoPriority(t *testing.T) {
	all := stations(t, 2)
	a, b := all[0], all[1]
	a.apply(b.peer())
	b.apply(a.peer())
	a.soon(b)
	nice := func(want int) bool {
		for _, s := range all {
			p, err := s.Device.process()
			if err != nil {
				t.Fatal(err)
			}
			threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.PID))
			if err != nil {
				t.Fatal(err)
			}
			for _, each := range threads {
				tid, _ := strconv.Atoi(each.Name())
				at, err := unix.SchedGetAttr(tid, 0)
				if err == nil && (int(at.Nice) != want || at.Runtime != 0 && at.Runtime != prompt.Runtime) {
					return false
				}
			}
		}
		return true
	}
	if !nice(before) {
		t.Error("it begins without its priority, or with long slices")
	}
	ctx, stop := context.WithCancel(t.Context())
	streamed := make(chan error, 1)
	go func() {
		var err error
		for err == nil && ctx.Err() == nil {
			_, err = a.streams(b, make([]byte, 8<<20))
		}
		streamed <- err
	}()
	testkit.Until(t, 10*time.Second, "streams of hosts have the priority of guests", func() bool { return nice(beside) })
	stop()
	if err := <-streamed; err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, 10*time.Second, "messages have their priority again", func() bool { return a.reaches(b) && nice(before) })
}
