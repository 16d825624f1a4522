package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"pagurus/fleet"
	"pagurus/serve/wire"
	"pagurus/show/view"
)

// Document describes all operations by OpenAPI 3.1. A test prints it from Operations.
//
//go:embed openapi.json
var Document []byte

// Limits of a request.
const (
	bodyBytes   = 1 << 20
	inputBytes  = 1 << 20
	headerEnded = "Pagurus-Ended"
	headerNext  = "Pagurus-Next-Offset"
)

// API serves the operations. It is a wire.Face.
type API struct {
	authority []byte // certificate, PEM
	mux       *http.ServeMux
	feeds     feeds
	readings  readings
}

// New makes one. authority is the certificate, PEM, by which the controller is known.
func New(authority []byte) *API {
	p := &API{authority: authority, mux: http.NewServeMux(), feeds: feeds{most: feedsMost}}
	for _, o := range Operations {
		p.mux.HandleFunc(o.Method+" "+Prefix+o.Path, func(w http.ResponseWriter, r *http.Request) {
			c, known := r.Context().Value(callKey{}).(*call)
			if !known {
				panic("an operation was called by nobody")
			}
			c.w, c.r = w, r
			c.err = c.serve(o)
		})
	}
	p.mux.HandleFunc("/", func(_ http.ResponseWriter, r *http.Request) {
		if c, known := r.Context().Value(callKey{}).(*call); known {
			c.err = p.unknown(r)
		}
	})
	return p
}

// unknown says that there is no such operation, or which methods there are.
func (p *API) unknown(r *http.Request) error {
	var methods []string
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete} {
		other := r.Clone(r.Context())
		other.Method = method
		if _, pattern := p.mux.Handler(other); pattern != "/" {
			methods = append(methods, method)
		}
	}
	if len(methods) > 0 {
		return &wire.Error{Status: http.StatusMethodNotAllowed, Reason: fmt.Sprintf("%s takes %s, not %s", r.URL.Path, strings.Join(methods, ", "), r.Method)}
	}
	return &wire.Error{Status: http.StatusNotFound, Reason: fmt.Sprintf("there is nothing at %s; %s/openapi.json says what there is", r.URL.Path, Prefix)}
}

// Public answers with the document, and with the authority's certificate, by whose fingerprint at the end of a token a
// program knows the controller.
func (p *API) Public(w http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodGet {
		return false
	}
	switch r.URL.Path {
	case Prefix + "/openapi.json":
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(Document) // who is gone does not want it
	case Prefix + "/authority":
		w.Header().Set("Content-Type", "application/x-pem-file")
		_, _ = w.Write(p.authority)
	default:
		return false
	}
	return true
}

type callKey struct{}

// call is one request for an operation.
type call struct {
	p   *API
	by  *wire.Acting
	w   http.ResponseWriter
	r   *http.Request
	err error
}

// Serve answers a request for an operation.
func (p *API) Serve(a *wire.Acting, w http.ResponseWriter, r *http.Request) error {
	c := &call{p: p, by: a}
	p.mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callKey{}, c)))
	return c.err
}

func (c *call) serve(o Operation) error {
	q := Asked{Path: map[string]string{}, Query: c.r.URL.Query()}
	for _, name := range parameters(o.Path) {
		q.Path[name] = c.r.PathValue(name)
	}
	if err := o.checkQuery(q.Query); err != nil {
		return err
	}
	if o.large() {
		done, err := c.by.Answering(c.r.Context())
		if err != nil {
			return err
		}
		defer done()
	}
	if o.raw != nil {
		return o.raw(c)
	}
	if o.Verb != "" {
		body, err := c.json()
		if err != nil {
			return err
		}
		if q.Request, err = o.request(q.Path, body); err != nil {
			return err
		}
		if q.Request.ID = fleet.RequestID(c.r.Header.Get("Idempotency-Key")); q.Request.ID != "" {
			q.Request.Asks = digest(c.r.Method+" "+c.r.URL.Path, body)
		}
	}
	out, err := o.do(c.r.Context(), sharing{c.by, &c.p.readings}, q)
	if err != nil {
		return err
	}
	return c.reply(out)
}

// large reports whether the answer is made as a whole, of all that there is.
func (o Operation) large() bool {
	return o.Verb == "" && (o.raw == nil || o.Media == "text/csv" || o.Media == "text/plain")
}

// digest tells what is asked of an operation from anything else that can be asked. How a body is laid out does not count.
func digest(operation string, body []byte) string {
	var v any
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if d.Decode(&v) == nil { // an empty body stays empty
		if text, err := json.Marshal(v); err == nil {
			body = text
		}
	}
	sum := sha256.Sum256(append([]byte(operation+"\n"), body...))
	return hex.EncodeToString(sum[:16])
}

// reply sends a value as --json prints it.
func (c *call) reply(v any) error {
	var text bytes.Buffer
	if err := json.NewEncoder(&text).Encode(v); err != nil {
		return fmt.Errorf("encoding the answer: %w", err)
	}
	c.w.Header().Set("Content-Type", "application/json")
	wire.SendAnswer(c.w, text.Bytes())
	return nil
}

// json reads a body. A form of another site has another type, which a browser would send without asking.
func (c *call) json() ([]byte, error) {
	if said := c.r.Header.Get("Content-Type"); said != "" {
		if kind, _, err := mime.ParseMediaType(said); err != nil || kind != "application/json" {
			return nil, &wire.Error{Status: http.StatusUnsupportedMediaType, Reason: "the body is JSON: send the header Content-Type: application/json"}
		}
	} else if c.r.ContentLength != 0 {
		return nil, &wire.Error{Status: http.StatusUnsupportedMediaType, Reason: "the body has no type: send the header Content-Type: application/json"}
	}
	return c.by.Body(c.w, c.r, bodyBytes)
}

var parameterForm = regexp.MustCompile(`\{([a-z]+)\}`)

// parameters are the names in a path.
func parameters(path string) (out []string) {
	for _, m := range parameterForm.FindAllStringSubmatch(path, -1) {
		out = append(out, m[1])
	}
	return out
}

func wrong(format string, args ...any) error {
	return &wire.Error{Status: http.StatusBadRequest, Reason: fmt.Sprintf(format, args...)}
}

func (o Operation) checkQuery(q url.Values) error {
	for name, values := range q {
		i := slices.IndexFunc(o.Query, func(p Parameter) bool { return p.Name == name })
		if i < 0 || len(values) != 1 {
			return wrong("%s has no parameter %q, or it is given twice; %s/openapi.json has all", o.ID, name, Prefix)
		}
		switch o.Query[i].Kind {
		case "integer":
			if n, err := strconv.ParseInt(values[0], 10, 64); err != nil || n < 0 {
				return wrong("%s is a number, not %q", name, values[0])
			}
		case "boolean":
			if values[0] != "true" && values[0] != "false" {
				return wrong("%s is true or false, not %q", name, values[0])
			}
		}
	}
	return nil
}

// places says where a request has what a path names, if not in the field of that name.
var places = map[string]string{"token": "token.id", "user": "user.id"}

// request makes the request of an operation from its path and its body.
func (o Operation) request(path map[string]string, body []byte) (q fleet.Request, err error) {
	all := map[string]json.RawMessage{}
	if body = bytes.TrimSpace(body); len(body) > 0 {
		switch {
		case o.Whole != "":
			all[o.Whole] = body
		case json.Unmarshal(body, &all) != nil || all == nil:
			return q, wrong("the body is not a JSON object")
		}
	}
	for name := range all {
		if o.Whole == "" && !slices.Contains(o.Fields, name) {
			return q, wrong("%s does not take %q; it takes %s", o.ID, name, orNothing(o.Fields))
		}
	}
	if o.Whole != "" && all[o.Whole] == nil {
		return q, wrong("%s needs a body; %s/openapi.json describes it", o.ID, Prefix)
	}
	for name, value := range path {
		if err := put(all, orSame(places[name], name), value); err != nil {
			return q, err
		}
	}
	text, err := json.Marshal(all)
	if err != nil {
		return q, wrong("the body is not JSON: %v", err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&q); err != nil {
		return q, wrong("the request cannot be understood: %v", err)
	}
	if o.Whole != "" && string(all[o.Whole]) == "null" {
		return q, wrong("%s needs a body; %s/openapi.json describes it", o.ID, Prefix)
	}
	q.Verb = o.Verb
	return q, nil
}

func orSame(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func orNothing(fields []string) string {
	if len(fields) == 0 {
		return "no body"
	}
	return strings.Join(fields, ", ")
}

// put sets a field, or one of an object in it, to what the path says.
func put(all map[string]json.RawMessage, at, value string) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	field, inner, nested := strings.Cut(at, ".")
	if !nested {
		all[field] = text
		return nil
	}
	object := map[string]json.RawMessage{}
	if all[field] != nil && (json.Unmarshal(all[field], &object) != nil || object == nil) {
		return wrong("the body is not a JSON object")
	}
	if said, given := object[inner]; given && !bytes.Equal(said, text) {
		return wrong("the body is about %s and the path about %s", said, text)
	}
	object[inner] = text
	all[field], err = json.Marshal(object)
	return err
}

// place is the place in a stream that a call names.
func (c *call) place(stream string) wire.Place {
	at := wire.Place{Job: fleet.JobID(c.r.PathValue("job")), Stream: stream}
	if said := c.r.URL.Query().Get("offset"); said != "" {
		at.Offset, _ = strconv.ParseInt(said, 10, 64) // checked
	}
	return at
}

func readOutput(c *call) error {
	stream := c.r.PathValue("stream")
	if stream != fleet.Stdout && stream != fleet.Stderr {
		return &wire.Error{Status: http.StatusNotFound, Reason: fmt.Sprintf("a job has no output %q: it has %s and %s", stream, fleet.Stdout, fleet.Stderr)}
	}
	at := c.place(stream)
	read := c.by.PeekStream
	if c.r.URL.Query().Get("wait") == "true" {
		read = c.by.ReadStream
	}
	data, ended, err := read(c.r.Context(), at)
	if err != nil {
		return err
	}
	h := c.w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", "attachment") // a program may print a page
	h.Set(headerNext, strconv.FormatInt(at.Offset+int64(len(data)), 10))
	h.Set(headerEnded, strconv.FormatBool(ended))
	_, _ = c.w.Write(data) // who is gone asks again from their offset
	return nil
}

func writeInput(c *call) error {
	if kind, _, err := mime.ParseMediaType(c.r.Header.Get("Content-Type")); err != nil || kind != "application/octet-stream" {
		return &wire.Error{Status: http.StatusUnsupportedMediaType, Reason: "the body is bytes: send the header Content-Type: application/octet-stream"}
	}
	at := c.place(fleet.Stdin)
	data, all, err := c.by.Piece(c.w, c.r)
	if err != nil {
		return err
	}
	next, err := c.by.WriteStream(c.r.Context(), at, data, all && c.r.URL.Query().Get("eof") == "true")
	if err != nil {
		return err
	}
	return c.reply(Offset{next})
}

// waitForJob answers when a job has ended, or after some time with how far it is.
func waitForJob(c *call) error {
	ctx, cancel := context.WithTimeout(c.r.Context(), waitLimit)
	defer cancel()
	snaps, err := c.by.Watch(ctx)
	if err != nil {
		return err
	}
	var last fleet.Snapshot
	id := fleet.JobID(c.r.PathValue("job"))
	for last = range snaps {
		if j, there := last.Jobs[id]; !there || j.State == fleet.JobEnded {
			break
		}
	}
	job, there := view.ReadWork(last).Job(id)
	switch {
	case last.At.IsZero():
		return &wire.Error{Status: wire.NotLeading, Reason: "the controller does not know its state yet: try again in a few seconds"}
	case !there:
		return missing("job", string(id))
	}
	return c.reply(job)
}

func backUp(c *call) error { return c.by.Backup(c.w, c.r) }
