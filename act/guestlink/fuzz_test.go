package guestlink

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"testing"
	"testing/synctest"

	"pagurus/fleet"
)

// FuzzAnswer: whatever a guest answers, a call has a result or an error, and what it has is short enough to be
// told on.
func FuzzAnswer(f *testing.F) {
	for _, text := range []string{
		`{"next":1,"traces":[{},{"rank":1}]}`, `{"topology":{"nodes":[{"cores":[{"cpus":[0]}]}]}}`, `{"exit":{"code":1,"signal":"SIGKILL"}}`,
		`{"data":"AAAA","next":-1,"cache":{"clean_bytes":-1}}`, `{"traces":[null]}`, `[]`, `{"said":{"version":2,"wishes":[{"id":1,"verb":"move"}],"marks":{"not_for_ns":-1},"remark":{"text":"\u2028"}}}`, `{"next":9223372036854775807,"traces":[{}]}`,
	} {
		f.Add([]byte(text), "")
	}
	f.Add([]byte(nil), "failed")
	f.Fuzz(func(t *testing.T, said []byte, failed string) {
		synctest.Test(t, func(t *testing.T) {
			c := New(func(context.Context) (io.ReadWriteCloser, error) {
				near, far := net.Pipe()
				go answers(far, said, failed)
				return near, nil
			})
			ctx, stop := context.WithTimeout(t.Context(), 20*leastPoll)
			traces, _ := c.Trace(ctx, fleet.TraceQuery{})
			top, _ := c.Topology(ctx)
			if said, err := c.Said(ctx, 1); err == nil && (len(said.Wishes) > fleet.MostWishes || said.Marks.NotFor > fleet.MostNotNow || said.Remark != nil && len(said.Remark.Text) > fleet.RemarkBytes) {
				t.Errorf("said %+v", said)
			}
			if b, err := json.Marshal(traces); err == nil && len(b) > allTraceBytes+len(traces)+2 {
				t.Errorf("traces of %d bytes", len(b))
			}
			if b, err := json.Marshal(top); err == nil && len(b) > topologyBytes {
				t.Errorf("a topology of %d bytes", len(b))
			}
			if exit, err := c.Wait(ctx, "p"); len(exit.Signal) > signalBytes || err != nil && len(err.Error()) > errorBytes+1000 {
				t.Errorf("%d bytes of a signal, %v", len(exit.Signal), err)
			}
			data := []byte("input")
			if next, err := c.Write(ctx, "p", 7, data, true); err == nil && next == 7+int64(len(data)) {
				_, _, _ = c.Read(ctx, "p", fleet.Stdout, 0)
			}
			stop()
			c.Close()
			synctest.Wait()
		})
	})
}

// answers is a guest that says the same to everything.
func answers(far net.Conn, said []byte, failed string) {
	defer far.Close()
	var d decoder
	buffer := make([]byte, 4<<10)
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
			back, err := json.Marshal(reply{Protocol: r.Protocol, Session: r.Session, ID: r.ID, Error: failed})
			if err != nil {
				return
			}
			if len(said) > 0 && json.Valid(said) {
				back = append(append(back[:len(back)-1], `,"body":`...), append(bytes.ReplaceAll(said, []byte("\n"), nil), '}')...)
			}
			if frame, err := encode(json.RawMessage(back)); err == nil {
				_, _ = far.Write(frame)
			}
		})
	}
}

// FuzzRequests: whatever a host sends, the guest's side goes on.
func FuzzRequests(f *testing.F) {
	for _, text := range []string{
		`{"v":1,"s":1,"id":1,"call":"ping"}`, `{"v":1,"s":1,"id":1,"call":"read","body":{"program":"p","offset":-1}}`, `{"v":-1,"s":0,"id":0,"call":"write","body":{"offset":9223372036854775807,"data":"AA=="}}`,
		`{"call":"setup","body":{"addr":"x"}}`, `{"call":"trace","body":{"first":-1}}`, `{"call":"said","body":{"known":-1}}`, `{"call":"answer","body":{"answers":[{"id":1,"rows":["a\nb"]}]}}`, `null`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		if !json.Valid(payload) {
			return
		}
		frame, err := encode(json.RawMessage(payload))
		if err != nil {
			return
		}
		near, far := net.Pipe()
		ctx, stop := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() { over <- Serve(ctx, far, newProgram()) }()
		go func() { _, _ = io.Copy(io.Discard, near) }()
		_, _ = near.Write(frame)
		stop()
		near.Close()
		far.Close()
		<-over
	})
}
