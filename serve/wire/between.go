package wire

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"pagurus/fleet"
	"pagurus/serve/identity"
)

// This file has what controllers of one cluster ask each other: to keep copies of jobs' streams and of
// images. The one that leads says in which term it does: after another has led, it is refused.

// Between is what a controller does for another.
type Between interface {
	// Held says what is kept of streams, in a term, of these jobs; what is kept of others goes.
	Held(term int64, jobs []fleet.JobID) ([]Held, error)
	// KeepPiece keeps a piece of a stream, and returns the stream's end, which is smaller if bytes before are missing.
	KeepPiece(term int64, at Place, p Piece) (int64, error)
	// Give gives bytes of a stream.
	Give(at Place) ([]byte, error)
	// Images are the images that are here.
	Images() ([]fleet.Image, error)
	// ImageFile gives the path of a file of an image.
	ImageFile(fleet.Digest, string) (string, error)
}

// Held is what is kept of a job's streams.
type Held struct {
	Job    fleet.JobID       `json:"job"`
	Notes  map[string]string `json:"notes,omitempty"`  // files beside the streams, as of checkpoints
	Begins string            `json:"begins,omitempty"` // where the job's incarnation begins in them
	Ends   map[string]int64  `json:"ends"`             // by stream
	Over   map[string]bool   `json:"over,omitempty"`   // streams to which nothing is added
}

// Piece is a part of a stream.
type Piece struct {
	Data   []byte
	Hole   int64  // bytes after Data that are not kept, but count
	Over   bool   // nothing follows
	Begins string // as of Held
	Notes  map[string]string
}

const (
	beginsHeader = "Pagurus-Begins"
	notesHeader  = "Pagurus-Notes"
	copiedBytes  = 2 << 20 // a piece
)

func (s *server) routeBetween(mux *http.ServeMux) {
	add := func(pattern string, serve func(http.ResponseWriter, *http.Request) error) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			s.answer(w, r, func(w http.ResponseWriter, r *http.Request) error {
				if err := s.fromController(r); err != nil {
					return err
				}
				if s.Between == nil {
					return alone
				}
				return serve(w, r)
			})
		})
	}
	add("POST "+betweenPath+"held", s.held)
	add("POST "+betweenPath+"spool/{job}/{stream}", s.keepPiece)
	add("GET "+betweenPath+"spool/{job}/{stream}", s.give)
	add("GET "+betweenPath+"images", func(w http.ResponseWriter, _ *http.Request) error {
		list, err := s.Between.Images()
		if err != nil {
			return err
		}
		return reply(w, list)
	})
	add("GET "+betweenPath+"images/{digest}/{file}", func(w http.ResponseWriter, r *http.Request) error {
		digest, file := r.PathValue("digest"), r.PathValue("file")
		if !digestForm.MatchString(digest) || !fileForm.MatchString(file) {
			return &Error{http.StatusBadRequest, "that is not the name of a file of an image"}
		}
		path, err := s.Between.ImageFile(fleet.Digest(digest), file)
		if err != nil {
			return err
		}
		return sendFile(w, r, path)
	})
}

// number reads a number of a request.
func number(r *http.Request, name string) int64 {
	n, _ := strconv.ParseInt(r.URL.Query().Get(name), 10, 64) // 0 is the oldest term, and the beginning
	return max(n, 0)
}

func (s *server) held(w http.ResponseWriter, r *http.Request) error {
	var jobs []fleet.JobID
	if err := understood(w, r, &jobs); err != nil {
		return err
	}
	list, err := s.Between.Held(number(r, "term"), jobs)
	if err != nil {
		return err
	}
	return reply(w, list)
}

func (s *server) keepPiece(w http.ResponseWriter, r *http.Request) error {
	at, err := place(r)
	if err != nil {
		return err
	}
	data, err := body(w, r, copiedBytes)
	if err != nil {
		return err
	}
	var notes map[string]string
	if text := r.Header.Get(notesHeader); text != "" {
		if err := json.Unmarshal([]byte(text), &notes); err != nil {
			return &Error{http.StatusBadRequest, "the notes cannot be understood: " + err.Error()}
		}
	}
	next, err := s.Between.KeepPiece(number(r, "term"), at, Piece{Data: data, Hole: number(r, "hole"), Over: r.URL.Query().Get("over") == "1", Begins: r.Header.Get(beginsHeader), Notes: notes})
	if err != nil {
		return err
	}
	return reply(w, Offset{next})
}

func (s *server) give(w http.ResponseWriter, r *http.Request) error {
	at, err := place(r)
	if err != nil {
		return err
	}
	data, err := s.Between.Give(at)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	_, _ = w.Write(data) // the other asks again
	return nil
}

// CallController makes a client of another controller, by a controller's own certificate.
func CallController(address string, config *tls.Config) *Client {
	c := &Client{address: address, base: "https://" + identity.ServerName, addresses: &addresses{own: address, all: []string{address}}}
	c.http = c.over("tcp", config)
	return c
}

// Held asks another controller what it keeps of these jobs' streams.
func (c *Client) Held(ctx context.Context, term int64, jobs []fleet.JobID) ([]Held, error) {
	b, err := json.Marshal(jobs)
	if err != nil {
		return nil, fmt.Errorf("encoding the request: %w", err)
	}
	var out []Held
	err = c.call(ctx, http.MethodPost, betweenPath+"held?term="+strconv.FormatInt(term, 10), b, &out)
	return out, err
}

func (p Place) between() string {
	return betweenPath + "spool/" + url.PathEscape(string(p.Job)) + "/" + url.PathEscape(p.Stream) + "?offset=" + strconv.FormatInt(p.Offset, 10)
}

// KeepPiece has another controller keep a piece of a stream, and returns the end of what it keeps.
func (c *Client) KeepPiece(ctx context.Context, term int64, at Place, p Piece) (int64, error) {
	path := fmt.Sprintf("%s&term=%d&hole=%d", at.between(), term, p.Hole)
	if p.Over {
		path += "&over=1"
	}
	notes, err := json.Marshal(p.Notes)
	if err != nil {
		return 0, fmt.Errorf("encoding notes: %w", err)
	}
	var o Offset
	err = c.callWith(ctx, path, p.Data, http.Header{beginsHeader: {p.Begins}, notesHeader: {string(notes)}}, &o)
	return o.Offset, err
}

// Give reads bytes of a stream that another controller keeps.
func (c *Client) Give(ctx context.Context, at Place) ([]byte, error) {
	r, err := c.send(ctx, http.MethodGet, at.between(), nil)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, c.explained(err)
	}
	return data, nil
}

// ImagesThere are the images that another controller has.
func (c *Client) ImagesThere(ctx context.Context) ([]fleet.Image, error) {
	var out []fleet.Image
	err := c.call(ctx, http.MethodGet, betweenPath+"images", nil, &out)
	return out, err
}

// FetchImageBetween copies a file of an image that another controller has to w.
func (c *Client) FetchImageBetween(ctx context.Context, d fleet.Digest, file string, w io.Writer) error {
	return c.fetchFile(ctx, betweenPath+"images/", d, file, w)
}

// callWith posts bytes with more headers.
func (c *Client) callWith(ctx context.Context, path string, body []byte, more http.Header, into any) error {
	if err := c.meet(ctx); err != nil {
		return err
	}
	r, err := c.exchangeWith(ctx, request{http.MethodPost, path, body, more})
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return c.problem(r)
	}
	if err := json.NewDecoder(r.Body).Decode(into); err != nil {
		return c.explained(err)
	}
	return nil
}
