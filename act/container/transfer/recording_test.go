package transfer

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pagurus/act/container/memory"
)

// recorded makes a recording of a page and an image, a part of which waits in memory.
func recorded(t *testing.T) (text []byte, size int64, sum uint32) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "state")
	file, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(err)
	r, err := NewRecording(file)
	must(err)
	o := &Sender{conn: r.Conn()}
	must(o.piece(memory.Piece{Process: 7, What: memory.Filled, Address: 0x1000, Bytes: memory.PageBytes}, bytes.Repeat([]byte("x"), memory.PageBytes)))
	must(o.Sync())
	images := t.TempDir()
	must(os.WriteFile(filepath.Join(images, "core-1.img"), []byte("an image"), 0o600))
	must(r.HoldInMemory())
	before, err := os.ReadFile(name)
	must(err)
	must(o.Images(images))
	if now, err := os.ReadFile(name); err != nil || len(now) != len(before) || len(now) == 0 {
		t.Errorf("the file has %d bytes while memory is written to, and had %d: %v", len(now), len(before), err)
	}
	if _, _, err := r.Sync(); err == nil {
		t.Error("a recording of which a part is in memory is said to be on its disk")
	}
	must(r.Pour())
	must(o.Finish())
	size, sum, err = r.Sync()
	must(err)
	must(r.Close())
	if _, err := r.Write([]byte("x")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a closed recording is written to: %v", err)
	}
	text, err = os.ReadFile(name)
	must(err)
	return text, size, sum
}

// TestRecording: what a Sender has recorded is what a Receiver gets. What is damaged is an error.
func TestRecording(t *testing.T) {
	text, size, sum := recorded(t)
	if size != int64(len(text)) {
		t.Errorf("it has %d bytes, and says %d", len(text), size)
	}
	replay := func(text []byte) (*Receiver, error) {
		in, err := NewReceiver(t.TempDir(), t.TempDir(), func() error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(in.Close)
		return in, Replay(in, bytes.NewReader(text), size, sum)
	}
	in, err := replay(text)
	if err != nil {
		t.Fatal(err)
	}
	image, err := os.ReadFile(filepath.Join(in.images, "core-1.img"))
	if err != nil || string(image) != "an image" || in.Memory.HeldBytes() != memory.PageBytes {
		t.Errorf("received are %d bytes and the image %q: %v", in.Memory.HeldBytes(), image, err)
	}
	for at := range text {
		if at > 100 && at < len(text)-100 && at%97 != 0 {
			continue
		}
		damaged := bytes.Clone(text)
		damaged[at] ^= 4
		if _, err := replay(damaged); err == nil || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("byte %d is wrong: %v", at, err)
		}
		if _, err := replay(text[:at]); err == nil || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("it ends at byte %d: %v", at, err)
		}
	}
	if _, err := replay(append(bytes.Clone(text), 'x')); err == nil {
		t.Error("what is too long is not an error")
	}
}
