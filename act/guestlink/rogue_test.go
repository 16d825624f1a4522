package guestlink

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pagurus/fleet"
)

// rogue is a guest that sends what it likes. says gives its answer to a request, and sends is what it sends without
// being asked, all the time.
func rogue(t *testing.T, says func(request) string, sends []byte) (c *Client, read *atomic.Int64) {
	read = new(atomic.Int64)
	c = New(func(context.Context) (io.ReadWriteCloser, error) {
		near, far := net.Pipe()
		answers, over := make(chan []byte, 1000), make(chan struct{})
		go func() {
			defer close(over)
			var d decoder
			buffer := make([]byte, 64<<10)
			for {
				n, err := far.Read(buffer)
				if err != nil {
					return
				}
				d.feed(buffer[:n], func(payload []byte) {
					var r request
					if json.Unmarshal(payload, &r) != nil {
						return
					}
					if frame, err := encode(json.RawMessage(says(r))); err == nil {
						answers <- frame
					}
				})
			}
		}()
		go floods(far, sends, answers, over, read)
		return near, nil
	})
	t.Cleanup(func() { c.Close() })
	return c, read
}

// floods writes what is asked for first, and otherwise always the same.
func floods(to net.Conn, sends []byte, answers <-chan []byte, over <-chan struct{}, read *atomic.Int64) {
	for {
		next := sends
		select {
		case next = <-answers:
		default:
			if len(sends) == 0 {
				select {
				case next = <-answers:
				case <-over:
					return
				}
			}
		}
		n, err := to.Write(next)
		read.Add(int64(n))
		if err != nil {
			return
		}
	}
}

func answer(r request, more string) string {
	return fmt.Sprintf(`{"v":%d,"s":%d,"id":%d%s}`, r.Protocol, r.Session, r.ID, more)
}

// A guest that sends without end, whatever it sends, is read slowly, and its calls are still answered.
func TestFloodOfAGuest(t *testing.T) {
	long := strings.Repeat("x", maxPayload-100)
	foreign, err := encode(reply{Session: 1, ID: 1, Error: long})
	if err != nil {
		t.Fatal(err)
	}
	for what, sends := range map[string][]byte{
		"noise":                  bytes.Repeat([]byte("noise"), 10000),
		"beginnings of frames":   bytes.Repeat([]byte(magic), 10000),
		"answers nobody awaits":  bytes.Repeat(foreign, 2),
		"frames that are no end": append([]byte(magic+"0000ffff00000000"), bytes.Repeat([]byte("x"), 60000)...),
	} {
		synctest.Test(t, func(t *testing.T) {
			c, read := rogue(t, func(r request) string { return answer(r, `,"body":{}`) }, sends)
			if _, err := c.do(t.Context(), callPing, constant(struct{}{})); err != nil {
				t.Fatal(err)
			}
			began := read.Load()
			time.Sleep(10 * time.Second)
			if rate := (read.Load() - began - unaskedBytes) / 10; rate > 2<<20 {
				t.Errorf("%s: it is read at %d bytes a second", what, rate)
			}
			begun := time.Now()
			if _, err := c.do(t.Context(), callPing, constant(struct{}{})); err != nil || time.Since(begun) > 5*time.Second {
				t.Errorf("%s: a call took %s: %v", what, time.Since(begun), err)
			}
			c.Close()
			synctest.Wait()
		})
	}
}

// A guest that ends each wait at once is not asked again at once.
func TestGuestThatDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		c, _ := rogue(t, func(r request) string { asked.Add(1); return answer(r, `,"again":true`) }, nil)
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
		defer stop()
		if _, err := c.Wait(ctx, "p"); err == nil {
			t.Error("it ended")
		}
		if most := int64(10*time.Second/leastPoll) + 2; asked.Load() > most {
			t.Errorf("it was asked %d times in ten seconds", asked.Load())
		}
		c.Close()
		synctest.Wait()
	})
}

// What a guest says of its ranks and of what it sees is told to the controller, and must not be too long for that
// however short it is on the link; otherwise one guest could cut its host off.
func TestGuestThatSaysMuch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := rogue(t, func(r request) string {
			switch r.Call {
			case callTrace:
				return answer(r, `,"body":{"next":9,"traces":[`+strings.TrimSuffix(strings.Repeat("{},", 20000), ",")+`]}`)
			case callTopology:
				return answer(r, `,"body":{"topology":{"nodes":[`+strings.TrimSuffix(strings.Repeat("{},", 20000), ",")+`]}}`)
			case callWait:
				return answer(r, `,"body":{"exit":{"code":1,"signal":"`+strings.Repeat("S", 60000)+`"}}`)
			}
			return answer(r, `,"error":"`+strings.Repeat("e", 60000)+`"`)
		}, nil)
		traces, err := c.Trace(t.Context(), fleet.TraceQuery{})
		if b, _ := json.Marshal(traces); err != nil || len(b) > allTraceBytes+allTraceBytes/8 || len(traces) == 0 {
			t.Errorf("%d traces of %d bytes, %v", len(traces), len(b), err)
		}
		if top, err := c.Topology(t.Context()); err == nil {
			t.Errorf("%d nodes", len(top.Nodes))
		}
		if exit, err := c.Wait(t.Context(), "p"); err != nil || len(exit.Signal) > signalBytes {
			t.Errorf("%d bytes, %v", len(exit.Signal), err)
		}
		if err := c.Launch(t.Context(), fleet.Program{ID: "p"}); err == nil || len(err.Error()) > errorBytes {
			t.Errorf("%d bytes", len(err.Error()))
		}
		c.Close()
		synctest.Wait()
	})
}
