package guestlink

import (
	"bytes"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func frames(t interface{ Fatal(...any) }, payloads ...string) [][]byte {
	var all [][]byte
	for _, p := range payloads {
		f, err := encode(p)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, f)
	}
	return all
}

func decodeAll(d *decoder, pieces ...[]byte) (got []string) {
	for _, p := range pieces {
		d.feed(p, func(payload []byte) { got = append(got, string(payload)) })
	}
	return got
}

// A truncated frame does not affect later ones.
func TestCutFrameCostsNothingElse(t *testing.T) {
	f := frames(t, strings.Repeat("long ", 5000), "short")
	for _, cut := range []int{1, 3, headerBytes - 1, headerBytes, headerBytes + 1, len(f[0]) - 1} {
		var d decoder
		got := decodeAll(&d, []byte("rubbish"), f[0][:cut], f[1], f[1])
		if len(got) != 2 || got[0] != `"short"` || got[1] != `"short"` {
			t.Errorf("cut at %d: %d frames", cut, len(got))
		}
	}
}

func TestDamagedFrameIsDropped(t *testing.T) {
	f := frames(t, "first", "second")
	for i := range f[0] {
		bad := bytes.Clone(f[0])
		bad[i] ^= 1
		var d decoder
		if got := decodeAll(&d, bad, f[1]); len(got) != 1 || got[0] != `"second"` {
			t.Errorf("bit flipped in byte %d: %q", i, got)
		}
	}
}

func TestTooLongIsSaid(t *testing.T) {
	if _, err := encode(strings.Repeat("x", maxPayload)); err == nil {
		t.Error("a payload over the limit was encoded")
	}
	if f, err := encode("a\x1eb\nc"); err != nil || bytes.Count(f, []byte{recordStart}) != 1 {
		t.Errorf("record start occurs in a payload: %q %v", f, err)
	}
}

// Any splitting of a stream gives the same frames.
func TestPiecesDoNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		payloads := rapid.SliceOfN(rapid.String(), 1, 8).Draw(t, "payloads")
		var all []byte
		for _, f := range frames(t, payloads...) {
			noise := rapid.SliceOfN(rapid.Byte().Filter(func(b byte) bool { return b != recordStart }), 0, 8)
			all = append(append(all, noise.Draw(t, "noise")...), f...)
		}
		var whole, parts decoder
		want := decodeAll(&whole, all)
		var got []string
		for len(all) > 0 {
			n := rapid.IntRange(1, len(all)).Draw(t, "piece")
			got = append(got, decodeAll(&parts, all[:n])...)
			all = all[n:]
		}
		if len(want) != len(payloads) || strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Fatalf("want %q\ngot %q", want, got)
		}
	})
}

func FuzzDecoder(f *testing.F) {
	for _, b := range frames(f, "", "hello", strings.Repeat("x", 3000)) {
		f.Add(b, 3)
		f.Add(append(b[:len(b)/2], b...), 1)
	}
	f.Add([]byte(magic+"ffffffff00000000"), 5)
	f.Add([]byte(magic+"0000000000000000"), 100)
	f.Fuzz(func(t *testing.T, b []byte, piece int) {
		piece = max(1, piece&0xff)
		var d decoder
		good := frames(t, "good")[0]
		for rest := b; len(rest) > 0; {
			n := min(piece, len(rest))
			d.feed(rest[:n], func([]byte) {})
			rest = rest[n:]
			if len(d.pending) > headerBytes+maxPayload {
				t.Fatalf("%d bytes are held", len(d.pending))
			}
		}
		if got := decodeAll(&d, good); len(got) != 1 || got[0] != `"good"` {
			t.Fatalf("a good frame after it was not found: %q", got)
		}
	})
}
