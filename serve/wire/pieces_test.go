package wire

import (
	"bufio"
	"bytes"
	"fmt"
	"net/http"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/serve/identity"
)

// Who has many large pieces of streams under way gets small ones, and is asked for small ones: nothing is lost, and all of their streams go on. Large requests
// have their own places; beyond these they are told to come again, and small ones are made. Others have large pieces.
func TestPiecesOfManyStreamsAreSmall(t *testing.T) {
	ctx, s := limited(t), serve(t, &world{})
	s.stop()
	s.paces = newPaces()
	s.paces.answers, s.paces.held = 50*time.Millisecond, time.Millisecond
	s.start(t)
	user := s.userClient(t, 4242)
	for range piecesEach {
		c, err := asUser(s.socket, 4242, 4243, []uint32{4243})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "GET /v1/jobs/big/stdout?offset=0 HTTP/1.1\r\nHost: x\r\n%s: %d\r\n\r\n", protocolHeader, fleet.Protocol())
		if line, err := bufio.NewReaderSize(c, 16).ReadString('\n'); err != nil || line[9:12] != "200" {
			t.Fatalf("%q, %v", line, err)
		}
	}
	big := Place{Job: "big", Stream: fleet.Stdout}
	if data, ended, err := user.ReadStream(ctx, big); err != nil || len(data) != smallPiece || ended {
		t.Errorf("one more reads %d bytes, ended: %v, %v", len(data), ended, err)
	}
	at, text := Place{Job: "j1", Stream: fleet.Stdin}, make([]byte, pieceBytes)
	if next, err := user.WriteStream(ctx, at, text, true); err != nil || next != smallPiece {
		t.Errorf("of one more %d bytes are taken: %v", next, err)
	}
	if next, err := user.WriteStream(ctx, at, text[:100], true); err != nil || next != 1100 {
		t.Errorf("of a small one %d: %v", next, err)
	}
	long := append(bytes.Repeat([]byte(" "), 2*smallPiece), `{"verb":"cancel","job":"j1"}`...)
	asks := func(want map[string]int) {
		t.Helper()
		for body, want := range want {
			r, err := user.exchange(ctx, http.MethodPost, "/v1/ask", []byte(body))
			if err != nil {
				t.Fatal(err)
			}
			r.Body.Close()
			if r.StatusCode != want {
				t.Errorf("a request of %d bytes: %s", len(body), r.Status)
			}
		}
	}
	const short = `{"verb":"cancel","job":"j1"}`
	asks(map[string]int{string(long): http.StatusOK, short: http.StatusOK})
	for range piecesEach {
		c, err := asUser(s.socket, 4242, 4243, []uint32{4243})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "POST /v1/ask HTTP/1.1\r\nHost: x\r\n%s: %d\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", protocolHeader, fleet.Protocol(), len(long))
		if line, err := bufio.NewReaderSize(c, 16).ReadString('\n'); err != nil || line[9:12] != "100" { // it has its place, and is awaited
			t.Fatalf("%q, %v", line, err)
		}
	}
	asks(map[string]int{string(long): http.StatusTooManyRequests, short: http.StatusOK})
	ada := s.member(t, identity.Subject{Role: identity.User, Name: "ada"})
	if data, ended, err := ada.ReadStream(ctx, big); err != nil || len(data) != pieceBytes || !ended {
		t.Errorf("another user reads %d bytes, ended: %v, %v", len(data), ended, err)
	}
	if next, err := ada.WriteStream(ctx, at, text, true); err != nil || next != pieceBytes+1000 {
		t.Errorf("of another user %d bytes are taken: %v", next, err)
	}
}
