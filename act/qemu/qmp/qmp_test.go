package qmp

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const hello = `{"QMP": {"version": {}, "capabilities": []}}` + "\r\n"

// over returns a client at the other end of a pipe once it has read said, or an error.
func over(t testing.TB, said string) (*Client, net.Conn, error) {
	t.Helper()
	near, far := net.Pipe()
	t.Cleanup(func() { far.Close() })
	go io.WriteString(far, hello)
	go func() {
		buffer := make([]byte, 4096)
		if _, err := far.Read(buffer); err == nil {
			io.WriteString(far, `{"return": {}, "id": 1}`+"\n"+said)
		}
		io.Copy(io.Discard, far)
	}()
	c, err := converse(t.Context(), near, 0)
	return c, far, err
}

func TestNotQEMU(t *testing.T) {
	for name, said := range map[string]string{
		"nothing":        "",
		"noise":          "\x00\xff\n",
		"web":            "HTTP/1.1 400 Bad Request\r\n",
		"no greeting":    `{"return": {}}` + "\n",
		"not an object":  "[1]\n",
		"cut":            `{"QMP": {`,
		"error greeting": `{"error": {"class": "X", "desc": "y"}}` + "\n",
		"endless":        strings.Repeat("x", lineLimit+1),
	} {
		near, far := net.Pipe()
		go func() {
			io.WriteString(far, said)
			far.Close()
		}()
		if _, err := converse(t.Context(), near, 0); err == nil {
			t.Errorf("%s was taken for QEMU", name)
		}
	}
}

// What was meant for the client before comes ahead of the greeting.
func TestLateWords(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	go func() {
		io.WriteString(far, `{"event": "STOP", "data": {}, "timestamp": {"seconds": 1, "microseconds": 2}}`+"\n"+`{"return": {}, "id": 7}`+"\n"+hello)
		if _, err := far.Read(make([]byte, 4096)); err == nil {
			io.WriteString(far, `{"return": {}, "id": 1}`+"\n")
		}
		io.Copy(io.Discard, far)
	}()
	c, err := converse(t.Context(), near, 0)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// Invalid messages end the connection and commands in progress.
func TestSpoiled(t *testing.T) {
	for name, said := range map[string]string{
		"noise":        "}{\n",
		"neither":      `{"what": 1}` + "\n",
		"no id":        `{"return": {}}` + "\n",
		"bad id":       `{"return": {}, "id": "one"}` + "\n",
		"negative id":  `{"return": {}, "id": -1}` + "\n",
		"error, no id": `{"error": {"class": "GenericError", "desc": "JSON parse error"}}` + "\n",
	} {
		c, _, err := over(t, said)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if err := c.Do(ctx, "x", nil, nil); err == nil || ctx.Err() != nil {
			t.Errorf("%s: a command after it ended with %v", name, err)
		}
		cancel()
		<-c.Done()
	}
}

// Unexpected answers and unsubscribed events are ignored.
func TestUnasked(t *testing.T) {
	c, far, err := over(t, `{"return": {}, "id": 77}`+"\n\r\n"+`{"event": "A", "data": 3}`+"\n")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	events, stop := c.Subscribe()
	done := make(chan error, 1)
	go func() {
		var n int
		err := c.Do(t.Context(), "count", nil, &n)
		if err == nil && n != 5 {
			err = errors.New("another answer")
		}
		done <- err
	}()
	if _, err := io.WriteString(far, `{"event": "B", "timestamp": {"seconds": 7, "microseconds": 8000}}`+"\n"); err != nil {
		t.Fatal(err)
	}
	for e := range events {
		if e.Name == "B" {
			if !e.At.Equal(time.Unix(7, 8000000)) {
				t.Errorf("the event is of %v", e.At)
			}
			break
		}
	}
	stop()
	stop()
	if _, ok := <-events; ok {
		t.Error("an event came after stop")
	}
	for asked := false; !asked; time.Sleep(time.Millisecond) {
		c.mu.Lock()
		asked = len(c.waiting) > 0
		c.mu.Unlock()
	}
	if _, err := io.WriteString(far, `{"return": 5, "id": 2}`+"\n"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A slow listener loses the oldest events and blocks no others.
func TestSlowListener(t *testing.T) {
	c, far, err := over(t, "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	events, _ := c.Subscribe()
	for range eventBacklog + 10 {
		if _, err := io.WriteString(far, `{"event": "E"}`+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.WriteString(far, `{"event": "LAST"}`+"\n"); err != nil {
		t.Fatal(err)
	}
	far.Close()
	<-c.Done()
	last, n := "", 0
	for e := range events {
		last, n = e.Name, n+1
	}
	if last != "LAST" || n != eventBacklog {
		t.Errorf("%d events were kept, the last is %s", n, last)
	}
}

func FuzzPeer(f *testing.F) {
	f.Add(`{"event": "STOP", "timestamp": {"seconds": 1, "microseconds": 2}}`)
	f.Add(`{"return": null, "id": 2}`)
	f.Add(`{"error": null, "id": 2}`)
	f.Add("{")
	f.Fuzz(func(t *testing.T, said string) {
		near, far := net.Pipe()
		go func() {
			far.SetDeadline(time.Now().Add(time.Second))
			io.WriteString(far, hello)
			io.ReadAtLeast(far, make([]byte, 512), 1)
			io.WriteString(far, `{"return": {}, "id": 1}`+"\n"+said+"\n")
			far.Close()
		}()
		c, err := converse(t.Context(), near, 0)
		if err != nil {
			return
		}
		var out any
		c.Do(t.Context(), "x", nil, &out)
		c.Close()
		<-c.Done()
	})
}

// start runs a QEMU without a guest.
func start(t *testing.T) (path string) {
	t.Helper()
	if testing.Short() {
		t.Skip("contract ring: make test")
	}
	dir, err := os.MkdirTemp("/tmp", "pagurus-qmp-")
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "qmp.sock")
	cmd := exec.Command("qemu-system-x86_64", "-machine", "none", "-nodefaults", "-display", "none", "-S", "-qmp", "unix:"+path+",server=on,wait=off")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		os.RemoveAll(dir)
	})
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if conn, err := net.Dial("unix", path); err == nil {
			conn.Close()
			return path
		} else if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

func TestQEMU(t *testing.T) {
	path := start(t)
	c, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	var status struct{ Status string }
	if err := c.Do(t.Context(), "query-status", nil, &status); err != nil || status.Status != "prelaunch" {
		t.Errorf("the status is %q: %v", status.Status, err)
	}
	refused := (*Error)(nil)
	if err := c.Do(t.Context(), "no-such-command", map[string]any{"a": 1}, nil); !errors.As(err, &refused) || refused.Class != "CommandNotFound" {
		t.Errorf("an unknown command: %v", err)
	}
	if err := c.Do(t.Context(), "query-status", map[string]any{"a": 1}, nil); !errors.As(err, &refused) {
		t.Errorf("an unknown argument: %v", err)
	}
	if err := c.Do(t.Context(), "query-status", make(chan int), nil); err == nil {
		t.Error("what cannot be encoded was sent")
	}
	over, end := context.WithTimeout(t.Context(), 0)
	defer end()
	if err := c.Do(over, "query-status", nil, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a caller whose time is over: %v", err)
	}
	var wait sync.WaitGroup // others use the same connection
	for range 50 {
		wait.Go(func() {
			if err := c.Do(t.Context(), "query-status", nil, &struct{ Status string }{}); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	// QEMU sends no greeting while it has another client.
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := Open(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second client: %v", err)
	}
	c.Close()
	if err := c.Do(t.Context(), "query-status", nil, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("a command after Close: %v", err)
	}
	if c, err = Open(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	events, _ := c.Subscribe()
	if err := c.Do(t.Context(), "quit", nil, nil); err != nil {
		t.Error(err)
	}
	said := ""
	for e := range events {
		said += e.Name
		if time.Since(e.At) > time.Minute {
			t.Errorf("%s is of %v", e.Name, e.At)
		}
	}
	if said != "SHUTDOWN" {
		t.Errorf("QEMU said %q", said)
	}
	<-c.Done()
	if _, err := Open(t.Context(), path); err == nil {
		t.Error("a QEMU that ended answers")
	}
}

// TestGive: QEMU has a file that it is given, whatever else it is asked meanwhile, until it closes it or is given another
// by the same name.
func TestGive(t *testing.T) {
	c, err := Open(t.Context(), start(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ended := func(r *os.File, within time.Duration) bool {
		if err := r.SetReadDeadline(time.Now().Add(within)); err != nil {
			t.Fatal(err)
		}
		_, err := r.Read(make([]byte, 1))
		return errors.Is(err, io.EOF)
	}
	give := func(name string) *os.File {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		if err := c.Give(t.Context(), name, w); err != nil {
			t.Error(err)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		return r
	}
	var wait sync.WaitGroup
	for range 20 {
		wait.Go(func() {
			for range 20 {
				if err := c.Do(t.Context(), "query-status", nil, nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	first := give("in")
	if ended(first, 50*time.Millisecond) {
		t.Error("QEMU has not got it")
	}
	second := give("in")
	if !ended(first, 20*time.Second) || ended(second, 50*time.Millisecond) {
		t.Error("QEMU keeps the one before, or not the next")
	}
	wait.Wait()
	if err := c.Do(t.Context(), "closefd", map[string]any{"fdname": "in"}, nil); err != nil || !ended(second, 20*time.Second) {
		t.Errorf("QEMU does not close it: %v", err)
	}
	refused := (*Error)(nil)
	if err := c.Do(t.Context(), "getfd", map[string]any{"fdname": "none"}, nil); !errors.As(err, &refused) {
		t.Errorf("QEMU was given nothing and says %v", err)
	}
	gone, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	w.Close()
	if err := c.Give(t.Context(), "gone", w); err == nil {
		t.Error("a closed file was given")
	}
	if over, _, err := over(t, ""); err != nil {
		t.Error(err)
	} else if err := over.Give(t.Context(), "in", second); err == nil {
		t.Error("a file went over what is no socket")
	}
}
