package wire

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"time"
)

// What is read of streams, what is written to them, and requests have a megabyte at the most, and stay as long as the other end takes for them. A caller
// has few such at once, and as many requests. More pieces of streams are small ones: nobody waits for another stream of theirs that stands still.
const (
	piecesEach = 16
	smallPiece = 16 << 10
)

// takePlace takes one of a caller's places, until the request is over. false: there is none.
func (s *server) takePlace(r *http.Request, id Peer) bool {
	leave, room := s.pieces.enterNow(r.Context(), id.name(), 0)
	if room {
		context.AfterFunc(r.Context(), leave) // which ends when the answer is sent
	}
	return room
}

// piece is what is sent of some bytes of a stream that were read.
func (s *server) piece(r *http.Request, id Peer, data []byte, ended bool, err error) ([]byte, bool, error) {
	if err != nil || len(data) <= smallPiece || s.takePlace(r, id) {
		return data, ended, err
	}
	return bytes.Clone(data[:smallPiece]), false, nil
}

// pieceOf reads what is to be written to a stream, or the beginning of it. The rest is sent again, from where the answer says.
func (s *server) pieceOf(id Peer, w http.ResponseWriter, r *http.Request) (data []byte, all bool, err error) {
	if small := r.ContentLength >= 0 && r.ContentLength <= smallPiece; small || s.takePlace(r, id) {
		data, err = body(w, r, pieceBytes)
		return data, true, err
	}
	in := http.MaxBytesReader(w, r.Body, pieceBytes)
	data, err = io.ReadAll(io.LimitReader(in, smallPiece))
	rest, cut := io.Copy(io.Discard, in) // who sends it has to come to its end, to hear the answer
	if err = errors.Join(err, cut); err != nil {
		return nil, false, &Error{http.StatusBadRequest, "the request was cut off, or too long: " + err.Error()}
	}
	return data, rest == 0, http.NewResponseController(w).SetReadDeadline(time.Time{})
}

// bodyOf reads a request, when the caller may have one more that is large.
func (s *server) bodyOf(id Peer, w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if r.ContentLength < 0 || r.ContentLength > smallPiece {
		leave, err := s.requests.enter(r.Context(), id.name())
		if err != nil {
			return nil, err
		}
		context.AfterFunc(r.Context(), leave)
	}
	return body(w, r, limit)
}
