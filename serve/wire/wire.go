// Package wire is the one protocol between the command line, the controller
// and the agents: HTTP with JSON, WebSocket where either side may speak first.
// Whoever is not the controller dials, so agents work behind an office
// firewall. It knows no decision. Its tests run against real sockets.
//
//	POST /v1/ask                        Request → Answer; 422 with a Problem: refused
//	POST /v1/predict                    Request → fleet.Forecast: what it would lead to; nothing is done
//	GET  /v1/score                      → fleet.Calibration: how good past predictions were
//	GET  /v1/snapshot                   → fleet.Snapshot
//	GET  /v1/watch                      WebSocket: a fleet.Snapshot at once and after every change (≤ 10/s)
//	GET  /v1/explain?guest=|job=|host=  → Explanation
//	GET  /v1/jobs/J/STREAM?offset=N&wait=1   → bytes from N; header Pagurus-Ended: 1 when nothing will follow
//	POST /v1/jobs/J/STREAM?offset=N[&eof=1]  bytes at N → Offset, where to go on
//	GET  /v1/jobs/J/trace               → []fleet.Trace, asked from the job's agents, or as they were at its end
//	GET  /v1/images/DIGEST/FILE         → a file of an image
//	GET  /v1/agent                      WebSocket: Up from the agent, Down to it
//
// Over the controller's UNIX socket the caller is who the kernel says
// (SO_PEERCRED); over TLS the caller shows the cluster's token and is an
// administrator. The token is "SECRET.FINGERPRINT": base64url of 32 random
// bytes, and hex SHA-256 of the controller's certificate, which is how the
// dialling side knows the controller (no certificate authority is needed).
package wire

import (
	"pagurus/fleet"
)

// Up is one message from an agent to the controller. One field is set.
type Up struct {
	Hello  *Hello        `json:"hello,omitempty"` // always the first
	Facts  *fleet.Facts  `json:"facts,omitempty"` // about once a second
	Report *fleet.Report `json:"report,omitempty"`
	Reply  *Reply        `json:"reply,omitempty"`
}

// Hello says who calls.
type Hello struct {
	Host    fleet.HostID `json:"host"`
	Cluster string       `json:"cluster"` // the cluster the host belongs to; empty: none yet
	Facts   fleet.Facts  `json:"facts"`
}

// Down is one message from the controller to an agent. One field is set. The
// agent takes them in the order they come; Wanted is made so before any later
// Task is begun, tasks then run side by side.
type Down struct {
	Wanted *fleet.Wanted `json:"wanted,omitempty"`
	Task   *fleet.Task   `json:"task,omitempty"`
	Query  *Query        `json:"query,omitempty"`
}

// Query is a question that an agent answers with a Reply of the same ID.
type Query struct {
	ID      uint64           `json:"id"`
	Trace   fleet.GuestID    `json:"trace,omitempty"` // what this guest's ranks have done with MPI
	About   fleet.TraceQuery `json:"about"`
	Profile fleet.GuestID    `json:"profile,omitempty"` // a look at this guest's memory now
	Signal  *fleet.Signal    `json:"signal,omitempty"`  // for the ranks of the job whose guest 0 is To
	To      fleet.GuestID    `json:"to,omitempty"`
	Program fleet.JobID      `json:"program,omitempty"` // of Signal: whose program it is
}

// Reply answers a Query.
type Reply struct {
	ID      uint64         `json:"id"`
	Traces  []fleet.Trace  `json:"traces,omitempty"`
	Profile *fleet.Profile `json:"profile,omitempty"`
	Error   string         `json:"error,omitempty"`
}

// Offset says where in a stream to go on.
type Offset struct {
	Offset int64 `json:"offset"`
}

// Problem is what the controller answers when it cannot or will not.
type Problem struct {
	Error string `json:"error"` // one sentence for people, with what to do next
}

// Explanation is why something is as it is, in a person's words, a line each.
type Explanation struct {
	Lines []string `json:"lines"`
}
