package main

import (
	"bufio"
	"bytes"
	"testing"
)

// FuzzRemote: what another guest of the job sends to have a program started, or says of one, is read or refused.
func FuzzRemote(f *testing.F) {
	f.Add([]byte("{\"command\":\"true\",\"env\":[\"A=b\"]}\n\x01\x00\x00\x00\x01x"))
	f.Add([]byte("\x04\x00\x00\x00\x04\x00\x00\x00\x07"))
	f.Add([]byte("\x00\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		in := bufio.NewReaderSize(bytes.NewReader(b), 4<<10)
		_, _ = readRequest(in)
		for _, r := range []*bufio.Reader{in, bufio.NewReader(bytes.NewReader(b))} {
			for {
				_, content, err := receive(r)
				if err != nil {
					break
				}
				if len(content) > messageMax || len(content) > len(b) {
					t.Fatalf("a message of %d bytes", len(content))
				}
			}
		}
	})
}
