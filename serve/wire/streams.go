package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strconv"

	"pagurus/fleet"
)

// understand decodes a request. A caller that speaks a newer version knows what it may leave
// out, so a field that is unknown here is ignored. Anybody else has mistyped it.
func (s *server) understand(r *http.Request, b []byte, into any) error {
	if err := decode(b, into, !s.newer(r)); err != nil {
		return &Error{http.StatusBadRequest, "the request cannot be understood: " + err.Error() + s.tooOld(r)}
	}
	return nil
}

// tooOld ends a sentence about something unknown that a caller has said.
func (s *server) tooOld(r *http.Request) string {
	if s.newer(r) {
		return "; upgrade the controller, which is older than what asks"
	}
	return ""
}

// decode decodes one JSON object; if strict, without unknown fields.
func decode(b []byte, into any, strict bool) error {
	d := json.NewDecoder(bytes.NewReader(b))
	if strict {
		d.DisallowUnknownFields()
	}
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("more data follows the object")
	}
	return nil
}

// place reads the stream and offset of a request.
func place(r *http.Request) (Place, error) {
	at := Place{Job: fleet.JobID(r.PathValue("job")), Stream: r.PathValue("stream")}
	switch at.Stream {
	case fleet.Stdin, fleet.Stdout, fleet.Stderr:
	default:
		return at, &Error{http.StatusNotFound, fmt.Sprintf("a job has no stream %q: it has stdin, stdout and stderr", at.Stream)}
	}
	var err error
	if at.Offset, err = strconv.ParseInt(r.URL.Query().Get("offset"), 10, 64); err != nil || at.Offset < 0 {
		return at, &Error{http.StatusBadRequest, "offset is not a number of bytes"}
	}
	if text := r.URL.Query().Get("incarnation"); text != "" {
		if at.Incarnation, err = strconv.Atoi(text); err != nil || at.Incarnation < 0 {
			return at, &Error{http.StatusBadRequest, "incarnation is not a number"}
		}
	}
	return at, nil
}

// patience is a context that bounds the wait for a stream. If waits is false, it has already
// ended.
func patience(r *http.Request, waits bool) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(r.Context(), streamLimit)
	if !waits {
		cancel()
	}
	return ctx, cancel
}

func (s *server) read(id Peer, w http.ResponseWriter, r *http.Request) error {
	at, err := place(r)
	if err != nil {
		return err
	}
	ctx, cancel := patience(r, r.URL.Query().Get("wait") == "1")
	defer cancel()
	data, ended, err := s.Streams.Read(ctx, id.Caller, at)
	if data, ended, err = s.piece(r, id, data, ended, err); err != nil {
		return err
	}
	if ended {
		w.Header().Set(endedHeader, "1")
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	_, _ = w.Write(data) // a reader that is gone asks again from its offset
	return nil
}

func (s *server) write(id Peer, w http.ResponseWriter, r *http.Request) error {
	at, err := place(r)
	if err != nil {
		return err
	}
	data, all, err := s.pieceOf(id, w, r)
	if err != nil {
		return err
	}
	ctx, cancel := patience(r, true)
	defer cancel()
	next, err := s.Streams.Write(ctx, id.Caller, at, data, all && r.URL.Query().Get("eof") == "1")
	if err != nil {
		return err
	}
	return reply(w, Offset{next})
}

// sendFile answers with a file, or with the requested ranges of it.
func sendFile(w http.ResponseWriter, r *http.Request, path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &Error{http.StatusNotFound, "the controller has no such file of that image: build the image again"}
	}
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return &Error{http.StatusNotFound, "that is not a file of an image"}
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", st.ModTime(), f)
	return nil
}
