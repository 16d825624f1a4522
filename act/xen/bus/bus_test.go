package bus

import (
	"bytes"
	"errors"
	"io/fs"
	"sync/atomic"
	"testing"
)

// A ring passes what is written, however often it wraps, and refuses senseless positions.
func TestRing(t *testing.T) {
	r := &ring{page: make([]byte, 4096)}
	text := bytes.Repeat([]byte("0123456789abc"), 1000)
	var got []byte
	for at := 0; at < len(text); {
		n, err := r.write(text[at:])
		if err != nil || n > inBytes {
			t.Fatalf("%d bytes: %v", n, err)
		}
		at += n
		cons, prod := atomic.LoadUint32(r.at(inCons)), atomic.LoadUint32(r.at(inProd))
		for half := cons + (prod-cons+1)/2; cons != half; cons++ { // the guest reads a half of it
			got = append(got, r.page[cons%inBytes])
		}
		atomic.StoreUint32(r.at(inCons), cons)
	}
	if !bytes.HasPrefix(text, got) || len(got) < len(text)-inBytes {
		t.Errorf("%d of %d bytes came", len(got), len(text))
	}
	for i := range uint32(outBytes) { // the guest writes all that there is room for
		r.page[outAt+int(i)] = byte(i)
	}
	atomic.StoreUint32(r.at(outProd), outBytes)
	b := make([]byte, outBytes+1)
	if n, err := r.read(b); err != nil || n != outBytes || b[7] != 7 {
		t.Errorf("%d bytes: %v", n, err)
	}
	atomic.StoreUint32(r.at(outProd), 3*outBytes)
	atomic.StoreUint32(r.at(inCons), 5*inBytes*inBytes)
	if _, err := r.read(b); !errors.Is(err, errRing) {
		t.Errorf("read: %v", err)
	}
	if _, err := r.write(b); !errors.Is(err, errRing) {
		t.Errorf("write: %v", err)
	}
}

func TestMessages(t *testing.T) {
	long := append(make([]byte, 12), 255, 255, 255, 255)
	for _, text := range [][]byte{nil, make([]byte, 15), long, append(make([]byte, 12), 1, 0, 0, 0)} {
		if m, err := readMessage(bytes.NewReader(text)); err == nil {
			t.Errorf("%x is %+v", text, m)
		}
	}
	if err := storeError(message{xsError, []byte("ENOENT\x00")}); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := storeError(message{xsError, []byte("EACCES\x00")}); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := storeError(message{xsRead, nil}); err != nil {
		t.Error(err)
	}
}
