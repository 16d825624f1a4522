package transfer

import (
	"bytes"
	"encoding/binary"
	"net"
	"testing"

	"pagurus/act/container/framing"
	"pagurus/act/container/memory"
)

// FuzzMeet: whatever comes first on a connection is a hello, or an error.
func FuzzMeet(f *testing.F) {
	f.Add([]byte(`{"version":4,"protocol":1,"guest":"j1g0","migration":"m1.j1g0","gen":3,"word":"ABC"}`))
	f.Add([]byte(`{"gen":-1}`))
	f.Add([]byte(`{`))
	f.Fuzz(func(t *testing.T, text []byte) {
		near, far := net.Pipe()
		go func() { _, _ = far.Write(frame(sayHello, text...)); far.Close() }()
		c := framing.New(near)
		defer c.Close()
		if h, err := Meet(c); err == nil && !bytes.Contains(text, []byte("{")) && h != (Hello{}) {
			t.Errorf("%q is %+v", text, h)
		}
	})
}

// FuzzPiece: the description of a piece of memory that is read is the same when it is written, and names of images are
// no paths.
func FuzzPiece(f *testing.F) {
	f.Add(append(pieceHead(memory.Piece{Process: 1, What: memory.Filled, Address: 4096, Bytes: 4096}), 1, 2, 3), "pages-1.img")
	f.Add([]byte{1}, "../x")
	f.Fuzz(func(t *testing.T, m []byte, name string) {
		if p, content, err := parsePiece(m); err == nil && !bytes.Equal(append(pieceHead(p), content...), m) {
			t.Errorf("%x is %+v", m, p)
		}
		if imageName(name) == nil && (bytes.ContainsAny([]byte(name), "/\x00\n ") || name[0] == '.') {
			t.Errorf("%q is the name of an image", name)
		}
		r := reader{rest: m}
		if w := r.name(); r.err == nil && int(binary.BigEndian.Uint16(m)) != len(w) {
			t.Errorf("%x begins with the name %q", m, w)
		}
	})
}
