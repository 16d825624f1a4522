package wireguard

import (
	"os"
	"testing"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/tun"
)

// pipe is a link whose packets are bytes of a pipe, each of which is cut up into some parts.
type pipe struct {
	tun.Device
	r     *os.File
	parts int
	reads int
}

func (p *pipe) File() *os.File { return p.r }

func (p *pipe) Read(packets [][]byte, sizes []int, offset int) (int, error) {
	p.reads++
	var one [1]byte
	if _, err := p.r.Read(one[:]); err != nil {
		return 0, err
	}
	for i := range p.parts {
		if i == len(packets) {
			return i, tun.ErrTooManySegments
		}
		packets[i][offset], packets[i][offset+1], sizes[i] = one[0], byte(i), 2
	}
	return p.parts, nil
}

// One call reads what waits, in its order, and does not wait for more; it leaves what might not fit. Parts that did not fit come by the
// next calls, and none is lost.
func TestWhatWaitsIsReadTogether(t *testing.T) {
	const room = conn.IdealBatchSize
	for _, c := range []struct {
		parts, waiting int
		calls          []int // parts that each gives
	}{
		{1, 1, []int{1}},
		{1, 5, []int{5}},
		{1, 100, []int{room - mostParts + 1, 100 - (room - mostParts + 1)}},
		{mostParts, 5, []int{2 * mostParts, 2 * mostParts, mostParts}},
		{48, 3, []int{96, 48}},
		{mostParts + 1, 2, []int{mostParts + 1, mostParts + 1}},
		{mostParts - 1, 2, []int{2*mostParts - 2}},
		{mostParts * 3 / 2, 2, []int{mostParts * 3 / 2, mostParts * 3 / 2}},
		{60, 3, []int{120, 60}},
		{room, 2, []int{room, room}},
		{room + 30, 3, []int{room, room, room, 90}},
		{2 * room, 1, []int{room, room}},
	} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		defer w.Close()
		under := &pipe{r: r, parts: c.parts}
		l, err := readTogether(under)
		if err != nil {
			t.Fatal(err)
		}
		for i := range c.waiting {
			if _, err := w.Write([]byte{byte(i)}); err != nil {
				t.Fatal(err)
			}
		}
		packets, sizes := make([][]byte, room), make([]int, room)
		for i := range packets {
			packets[i] = make([]byte, 3)
		}
		seen := 0
		for call, want := range c.calls {
			clear(sizes)
			n, err := l.Read(packets, sizes, 1)
			if err != nil || n != want {
				t.Errorf("%d packets of %d parts: call %d gives %d parts, want %d, %v", c.waiting, c.parts, call, n, want, err)
				break
			}
			for i := range n {
				if int(packets[i][1]) != seen/c.parts || packets[i][2] != byte(seen%c.parts) || sizes[i] != 2 {
					t.Errorf("%d packets of %d parts: part %d is part %d of packet %d", c.waiting, c.parts, seen, packets[i][2], packets[i][1])
					break
				}
				seen++
			}
		}
		if seen != c.parts*c.waiting {
			t.Errorf("%d packets of %d parts: %d parts came", c.waiting, c.parts, seen)
		}
	}
}
