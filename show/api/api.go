// Package api is the controller's HTTP interface for programs: JSON over HTTP below /api/v1, described by OpenAPI, with
// server-sent events. Operations is the one list of what can be asked. The routes, the document that is served and the
// short help of the commands come from it, and what --json prints is what an operation answers.
//
// It makes no decision and identifies nobody: package wire hands it a caller who can do what they may. Its tests run real
// servers, and compare with the command line.
package api

import (
	"context"
	"net/url"
	"reflect"
	"time"

	"pagurus/fleet"
	"pagurus/serve/wire"
	"pagurus/show/view"
)

// Prefix begins the path of every operation. Another version of the interface would have another.
const Prefix = wire.FacePath + "v1"

// Used tells what jobs used and left.
type Used interface {
	Usage(ctx context.Context, since time.Time) (fleet.UsageAnswer, error)
	Output(context.Context) (fleet.Output, error)
}

// Reader tells what the cluster is like. A wire.Client is one, and so is a caller of the controller itself.
type Reader interface {
	WhoAmI(context.Context) (wire.Who, error)
	Snapshot(context.Context) (fleet.Snapshot, error)
	Explain(context.Context, wire.About) ([]string, error)
	Trace(context.Context, fleet.JobID) ([]fleet.Trace, error)
	Used
	Audit(ctx context.Context, since time.Time, each func(fleet.AuditRecord) error) (damaged int, err error)
	Heads(context.Context) ([]wire.Head, error)
}

// Cluster is a Reader that also does something.
type Cluster interface {
	Reader
	Ask(context.Context, fleet.Request) (fleet.Answer, error)
	Predict(context.Context, fleet.Request) (fleet.Forecast, error)
	Score(context.Context) (fleet.Calibration, error)
	RemoveHead(ctx context.Context, name string) error
}

// Both ends of the protocol are such clusters.
var (
	_ Cluster = (*wire.Client)(nil)
	_ Cluster = (*wire.Acting)(nil)
)

// Operation is something that a program or a person can ask.
type Operation struct {
	ID      string // as clients call it: drainHost
	Method  string
	Path    string // below Prefix, with {parameters}
	Command string // that does the same, without "pagurus"; empty: there is none
	Summary string // of the document, and of the command's help

	Verb     fleet.RequestVerb // of the request that it makes; empty: it makes none
	Fields   []string          // of the request, that the body may have
	Whole    string            // the one field that the body is; empty: the body is an object of Fields
	Predicts bool              // it says what the request would do, and does nothing

	Query []Parameter
	Gives reflect.Type // of the answer; nil: it is in Media
	Media string       // of an answer or events that are not one JSON value
	Takes string       // media type of a body that is not JSON

	do  func(context.Context, Cluster, Asked) (any, error)
	raw func(*call) error // for Media and Takes
}

// Parameter is one of a query.
type Parameter struct {
	Name string
	Kind string // of its JSON Schema: string, integer or boolean
	Says string
}

// Asked is what a request for an operation says.
type Asked struct {
	Path    map[string]string
	Query   url.Values
	Request fleet.Request // of an operation with a Verb
}

// Token is a new token, which is told once.
type Token struct {
	Token   string    `json:"token"`
	Expires time.Time `json:"expires"`
}

// UsageReport is what jobs used since a time, added up by user, job or host.
type UsageReport struct {
	Since   time.Time               `json:"since"`
	Until   time.Time               `json:"until"`
	By      string                  `json:"by"`
	Rows    []view.UsageRow         `json:"rows"`
	NoPower map[fleet.HostID]string `json:"no_power,omitempty"` // why hosts do not tell the energy that they use
}

// Offset is the place in a stream at which to go on.
type Offset struct {
	Offset int64 `json:"offset"`
}

// Summary is the short help of the command that does what an operation does.
func Summary(id string) string {
	for _, o := range Operations {
		if o.ID == id {
			return o.Summary
		}
	}
	panic("there is no operation " + id)
}

// Do asks a cluster for an operation that answers with one value.
func (o Operation) Do(ctx context.Context, c Cluster, q Asked) (any, error) { return o.do(ctx, c, q) }
