// Package wire is the protocol between command line, controller and agents: HTTP with JSON,
// and WebSocket where either side may speak first. Clients and agents dial the controller, so
// agents work behind a firewall. It makes no decision. Its tests run against real sockets.
//
//	POST /v1/ask                        Request → Answer; 422 with a Problem: refused
//	POST /v1/predict                    Request → fleet.Forecast: its effect; nothing is done
//	GET  /v1/score                      → fleet.Calibration: how good past predictions were
//	GET  /v1/snapshot                   → fleet.Snapshot
//	GET  /v1/watch                      WebSocket: a fleet.Snapshot at once and after every change (≤ 10/s)
//	GET  /v1/explain?guest=|job=|host=  → Explanation
//	GET  /v1/jobs/J/STREAM?offset=N&wait=1   → bytes from N; header Pagurus-Ended: 1 when nothing will follow
//	POST /v1/jobs/J/STREAM?offset=N[&eof=1]  bytes at N → Offset, the next one
//	GET  /v1/jobs/J/trace               → []fleet.Trace, from the job's agents, or those kept at its end
//	GET  /v1/images/DIGEST/FILE         → a file of an image
//	GET  /v1/agent                      WebSocket: Up from the agent, Down to it
//
// Over the controller's UNIX socket the kernel identifies the caller (SO_PEERCRED). Over TLS
// the caller shows the cluster's token and is an administrator. The token is
// "SECRET.FINGERPRINT": base64url of 32 random bytes, and the hex SHA-256 of the controller's
// certificate. The client checks that fingerprint, so no certificate authority is needed.
package wire

import (
	"pagurus/fleet"
)

// Up is one message from an agent to the controller. One field is set.
type Up struct {
	Hello  *Hello        `json:"hello,omitempty"` // always the first message
	Facts  *fleet.Facts  `json:"facts,omitempty"` // about once a second
	Report *fleet.Report `json:"report,omitempty"`
	Reply  *Reply        `json:"reply,omitempty"`
}

// Hello introduces an agent.
type Hello struct {
	Host    fleet.HostID `json:"host"`
	Cluster string       `json:"cluster"` // the host's cluster; empty: none yet
	Facts   fleet.Facts  `json:"facts"`
}

// Down is one message from the controller to an agent. One field is set. The agent handles
// messages in order: Wanted is applied before a later Task starts. Tasks then run
// concurrently.
type Down struct {
	Wanted *fleet.Wanted `json:"wanted,omitempty"`
	Task   *fleet.Task   `json:"task,omitempty"`
	Query  *Query        `json:"query,omitempty"`
}

// Query is a question that an agent answers with a Reply of the same ID.
type Query struct {
	ID      uint64           `json:"id"`
	Trace   fleet.GuestID    `json:"trace,omitempty"` // the MPI traces of this guest's ranks
	About   fleet.TraceQuery `json:"about"`
	Profile fleet.GuestID    `json:"profile,omitempty"` // a new profile of this guest
	Signal  *fleet.Signal    `json:"signal,omitempty"`  // for the ranks of the job whose guest 0 is To
	To      fleet.GuestID    `json:"to,omitempty"`
	Program fleet.JobID      `json:"program,omitempty"` // of Signal: the program's job
}

// Reply answers a Query.
type Reply struct {
	ID      uint64         `json:"id"`
	Traces  []fleet.Trace  `json:"traces,omitempty"`
	Profile *fleet.Profile `json:"profile,omitempty"`
	Error   string         `json:"error,omitempty"`
}

// Offset is the position in a stream at which to continue.
type Offset struct {
	Offset int64 `json:"offset"`
}

// Problem is the controller's answer when it fails or refuses.
type Problem struct {
	Error string `json:"error"` // one sentence for people, with what to do next
}

// Explanation says why something is as it is, in sentences for people, one per line.
type Explanation struct {
	Lines []string `json:"lines"`
}
