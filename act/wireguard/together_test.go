package wireguard

import (
	"errors"
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
	if p.parts > len(packets) {
		return 0, errors.New("there is no room for all parts of a packet")
	}
	for i := range p.parts {
		packets[i][offset], sizes[i] = one[0], 1
	}
	return p.parts, nil
}

// One call reads what waits, in its order, and does not wait for more; it leaves what might not fit.
func TestWhatWaitsIsReadTogether(t *testing.T) {
	for _, c := range []struct{ parts, waiting, together int }{
		{1, 1, 1}, {1, 5, 5}, {1, 100, conn.IdealBatchSize - mostParts + 1}, {mostParts, 5, 2}, {48, 5, 2}, {mostParts + 1, 5, 1},
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
		packets, sizes := make([][]byte, conn.IdealBatchSize), make([]int, conn.IdealBatchSize)
		for i := range packets {
			packets[i] = make([]byte, 2)
		}
		n, err := l.Read(packets, sizes, 1)
		if err != nil || n != c.together*c.parts || under.reads != c.together {
			t.Errorf("%d packets of %d parts: %d parts came by %d reads, %v", c.waiting, c.parts, n, under.reads, err)
		}
		for i := range n {
			if packets[i][1] != byte(i/c.parts) || sizes[i] != 1 {
				t.Errorf("%d packets of %d parts: part %d is of packet %d", c.waiting, c.parts, i, packets[i][1])
				break
			}
		}
	}
}
