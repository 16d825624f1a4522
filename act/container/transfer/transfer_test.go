package transfer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/container/framing"
	"pagurus/act/container/memory"
	"pagurus/act/container/shim"
	"pagurus/fleet"
)

func TestMain(m *testing.M) {
	shim.Become(memory.Shims)
	os.Exit(m.Run())
}

// frame is a message as it is on the wire.
func frame(kind byte, content ...byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(content))), content...)
}

// connPair returns a connection of which each direction can be closed separately.
func connPair(t testing.TB) (ours, theirs *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, to := range []**net.UnixConn{&ours, &theirs} {
		f := os.NewFile(uintptr(fds[i]), "pair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		*to = c.(*net.UnixConn)
	}
	return ours, theirs
}

// feed sends bytes to a Receiver as a source would, and returns how that ended.
func feed(t testing.TB, b []byte) (in *Receiver, images string, err error) {
	files := t.TempDir()
	images = t.TempDir()
	if in, err = NewReceiver(files, images, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	ours, theirs := connPair(t)
	defer ours.Close()
	go func() { // reads the answers
		ours.Write(b)
		ours.CloseWrite()
		io.Copy(io.Discard, ours)
	}()
	err = in.Receive(framing.New(theirs))
	theirs.Close()
	return in, images, err
}

func TestIn(t *testing.T) {
	content := bytes.Repeat([]byte{7}, memory.PageBytes)
	head := pieceHead(memory.Piece{Process: 5, What: memory.Filled, Address: 0x1000, Bytes: memory.PageBytes})
	in, images, err := feed(t, bytes.Join([][]byte{
		frame(sayPiece, append(head, content...)...), frame(sayImage, []byte("core-1.img")...), frame(sayContent, 1, 2),
		frame(sayContent, 3), frame(saySync), frame(sayImage, []byte("mm-1.img")...), frame(sayRestore),
	}, nil))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	for name, want := range map[string]string{"core-1.img": "\x01\x02\x03", "mm-1.img": ""} {
		if got, err := os.ReadFile(filepath.Join(images, name)); err != nil || string(got) != want {
			t.Errorf("%s holds %q: %v", name, got, err)
		}
	}
	if n := in.Memory.HeldBytes(); n != memory.PageBytes {
		t.Errorf("%d bytes of memory came", n)
	}
}

// TestTrackAgain: no pages of a useless last pass stay lazy.
func TestTrackAgain(t *testing.T) {
	program := exec.Command("sleep", "60")
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	defer program.Wait()
	defer program.Process.Kill()
	in, err := NewReceiver(t.TempDir(), t.TempDir(), func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	ours, theirs := connPair(t)
	taken := make(chan error, 1)
	go func() { taken <- in.Receive(framing.New(theirs)) }()
	o := &Sender{conn: framing.New(ours), first: program.Process.Pid}
	defer o.Free()
	err = o.piece(memory.Piece{Process: 7, What: memory.Lazy, Address: memory.PageBytes, Bytes: 3 * memory.PageBytes}, nil)
	if err := errors.Join(err, o.Sync()); err != nil || in.Memory.LazyBytes() == 0 {
		t.Fatalf("%d bytes are lazy, %v", in.Memory.LazyBytes(), err)
	}
	if err := errors.Join(o.Track(t.Context()), o.Sync()); err != nil || in.Memory.LazyBytes() != 0 {
		t.Errorf("%d bytes are lazy, %v", in.Memory.LazyBytes(), err)
	}
	o.Close()
	<-taken // it ends with the connection
}

// part stands for a received guest agent.
type part struct {
	bytes.Buffer
	closed int
}

func (p *part) Close() error { p.closed++; return nil }

// TestAgent: a guest agent arrives in parts, and is closed in any case.
func TestAgent(t *testing.T) {
	for what, messages := range map[string][]byte{
		"whole":              bytes.Join([][]byte{frame(sayAgent, 1, 2), frame(sayAgent, 3), frame(sayAgent), frame(sayRestore)}, nil),
		"cut off":            bytes.Join([][]byte{frame(sayAgent, 1, 2), frame(sayAgent, 3)}, nil),
		"with other between": bytes.Join([][]byte{frame(sayAgent, 1, 2, 3), frame(sayRestore)}, nil),
	} {
		in, err := NewReceiver(t.TempDir(), t.TempDir(), func() error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		var p part
		in.Agent = &p
		ours, theirs := connPair(t)
		go func() {
			ours.Write(messages)
			ours.Close()
		}()
		err = in.Receive(framing.New(theirs))
		theirs.Close()
		if whole := what == "whole"; whole != (err == nil) || whole != (p.closed == 1) {
			t.Errorf("%s: closed %d times, %v", what, p.closed, err)
		}
		in.Close()
		if p.closed != 1 || !bytes.Equal(p.Bytes(), []byte{1, 2, 3}) {
			t.Errorf("%s: %v came, closed %d times", what, p.Bytes(), p.closed)
		}
	}
}

// TestRefused: malformed input ends Receive.
func TestRefused(t *testing.T) {
	for what, b := range map[string][]byte{
		"unknown":              frame('?'),
		"a hello":              frame(sayHello, []byte("{}")...),
		"content of nothing":   frame(sayContent, 1),
		"an image upwards":     frame(sayImage, []byte("../x")...),
		"an image in a folder": frame(sayImage, []byte("a/x")...),
		"a hidden image":       frame(sayImage, []byte(".x")...),
		"an image of no name":  frame(sayImage),
		"an image twice":       append(frame(sayImage, 'x'), frame(sayImage, 'x')...),
		"a short piece":        frame(sayPiece, 1, 2, 3),
		"a piece of nobody":    frame(sayPiece, pieceHead(memory.Piece{What: memory.Gone, Bytes: memory.PageBytes})...),
		"a short file":         frame(sayTree, 'f'),
		"an agent unasked for": frame(sayAgent, 1),
		"nothing":              nil,
		"half a message":       frame(sayImage, 'x')[:3],
	} {
		in, _, err := feed(t, b)
		in.Close()
		if err == nil {
			t.Errorf("%s was taken", what)
		}
	}
}

// FuzzIn: any input ends in an error, or in a guest to restore.
func FuzzIn(f *testing.F) {
	f.Add(frame(sayRestore))
	f.Add(append(frame(sayImage, 'x'), frame(sayContent, 1, 2, 3)...))
	f.Add(frame(sayPiece, append(pieceHead(memory.Piece{Process: 1, What: memory.Filled, Address: 4096, Bytes: 4}), 1, 2, 3, 4)...))
	f.Add(frame(sayPiece, pieceHead(memory.Piece{Process: 1, What: memory.Zero, Address: 4096, Bytes: 1 << 20})...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if bytes.ContainsRune(b, sayTree) {
			return // files have a test of their own
		}
		in, _, _ := feed(t, b)
		in.Close()
	})
}

// During a pass the remaining bytes decrease, and the speed is reported as soon as it is
// meaningful. Memory that is sent with the images remains until then.
func TestWithinAPass(t *testing.T) {
	begun := fleet.Progress{Rounds: 1, RemainingBytes: 100 << 20, SentBytes: 5, Elapsed: time.Second, BytesPerSecond: 7}
	for _, c := range []struct {
		sent   int64
		memory bool
		left   int64
		rate   float64
	}{
		{telling - 1, true, 100<<20 - telling + 1, 7},
		{40 << 20, true, 60 << 20, 20 << 20},
		{400 << 20, true, 0, 200 << 20},
		{40 << 20, false, 100 << 20, 20 << 20},
	} {
		want := fleet.Progress{Rounds: 1, RemainingBytes: c.left, SentBytes: 5 + c.sent, Elapsed: 3 * time.Second, BytesPerSecond: c.rate}
		if got := withinPass(begun, c.sent, 2*time.Second, c.memory); got != want {
			t.Errorf("%d bytes sent, memory %t: %+v, want %+v", c.sent, c.memory, got, want)
		}
	}
}
