package agent

import (
	"bytes"
	"context"
	"log/slog"
	"testing"

	"pagurus/fleet"
	"pagurus/serve/wire"
)

// sparing is a controller that takes no more of a piece than a little, and counts what it was sent.
type sparing struct {
	memoryController
	most, sent int
	has        bytes.Buffer
}

func (c *sparing) WriteStream(_ context.Context, at wire.Place, data []byte, _ bool) (int64, error) {
	c.sent += len(data)
	if at.Offset == int64(c.has.Len()) {
		c.has.Write(data[:min(len(data), c.most)])
	}
	return int64(c.has.Len()), nil
}

// A controller that takes small pieces is sent small pieces: what it does not take is not sent again and again. When it takes more it is sent more.
func TestPiecesAreAsLargeAsWhatIsTaken(t *testing.T) {
	text := bytes.Repeat([]byte("0123456789abcdef"), pumpMost/16)
	c, most := &sparing{most: 16 << 10}, pumpMost
	p := Pump{Controller: c, Log: slog.New(slog.DiscardHandler), Job: "j1"}
	at := wire.Place{Job: "j1", Stream: fleet.Stdout}
	if err := p.deliverPieces(t.Context(), &at, text, false, &most); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(c.has.Bytes(), text) || at.Offset != pumpMost {
		t.Errorf("%d bytes arrive, and it goes on at %d", c.has.Len(), at.Offset)
	}
	if c.sent > 4*pumpMost {
		t.Errorf("%d bytes are sent for %d", c.sent, pumpMost)
	}
	c.most = 2 * pumpMost
	for range 2 {
		if err := p.deliverPieces(t.Context(), &at, text, false, &most); err != nil {
			t.Fatal(err)
		}
	}
	if most != pumpMost || c.has.Len() != 3*pumpMost {
		t.Errorf("after %d bytes it is sent %d at once", c.has.Len(), most)
	}
}
