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
//	GET  /v1/checkpoints/C/copy         → fleet.SealedCopy
//	POST /v1/checkpoints/C/GUEST/VERB?digest=  bytes → bytes, by a fleet.PartVerb
//	GET, POST /v1/handed/ID             the bytes of such a call, from and to the agent of the vault's host
//	POST /v1/vault/unknown              IDs of checkpoints → fleet.VaultAnswer
//	GET  /v1/agent                      WebSocket: Up from the agent, Down to it
//	GET  /v1/whoami                     → Who the caller is
//	POST /v1/join                       Joining → Joined; Authorization: Bearer TOKEN
//	POST /v1/renew                      a certificate request → Renewed
//
// Over the controller's UNIX socket the kernel identifies the caller (SO_PEERCRED). Over TLS
// 1.3 the caller shows a certificate of the cluster's own authority, which package identity
// makes. Only who joins has none yet, and shows a join token, "ID.SECRET.FINGERPRINT". By its
// last part, the hex SHA-256 of the authority's certificate, the caller knows the controller.
// What each caller may do is in decide/access.
//
// Who asks for too much is answered 429, and in Retry-After when to ask again; a Client does so by itself.
//
// Every request and every answer says in the header Pagurus-Protocol which version of the
// protocol its sender speaks, 0 if it is missing. Versions that are one apart work together;
// others are refused with status 422 and a Problem that says which side to upgrade. What is
// unknown in a message of a newer version is ignored, and in any other is a mistake. An answer
// has the controller's build in Pagurus-Version.
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
	Lease  *fleet.Lease  `json:"lease,omitempty"` // grants what facts have asked for

	Answers *fleet.WishAnswers `json:"answers,omitempty"` // to what a guest's programs asked for, in facts
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
	Part    *fleet.PartCall  `json:"part,omitempty"`    // about a part of a checkpoint in the host's vault
	Handed  string           `json:"handed,omitempty"`  // of Part: where what it puts is got, and what it asks for is handed
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
